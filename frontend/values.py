"""Values of variables: a call's own, or those of a fork's branches joined into a list."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol

from .callbacks import Callback, Forget, nothing_to_forget
from .calls import CallMeta
from .errors import ForkError, InvalidProgramError, ProgramError

OnError = Literal["raise", "return"]


class Value(Protocol):
    """What a name is bound to. `get`, `metas` and `chunks` block until there is something to hand out."""

    @property
    def is_done(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> None: ...

    def when_done(self, callback: Callback) -> Forget:
        """Call `callback` once, when there is a value or a failure; now if there is. It must not block or raise."""
        ...

    def get(self, timeout: float | None = None) -> object: ...

    def metas(self, timeout: float | None = None) -> list[CallMeta]: ...

    def chunks(self, timeout: float | None = None) -> Iterator[str]: ...


class Joined:
    """The values of one name in several branches, in branch order."""

    def __init__(self, name: str, values: Sequence[Value], on_error: OnError) -> None:
        self.name = name
        self.values = tuple(values)
        self.on_error = on_error

    @property
    def is_done(self) -> bool:
        return all(value.is_done for value in self.values)

    def when_done(self, callback: Callback) -> Forget:
        values = iter(self.values)
        forget: Forget = nothing_to_forget

        def await_next() -> None:
            nonlocal forget
            value = next((value for value in values if not value.is_done), None)
            if value is None:
                callback()
            else:
                forget = value.when_done(await_next)

        def forget_last() -> None:
            forget()

        await_next()
        return forget_last

    def wait(self, timeout: float | None = None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        for value in self.values:
            value.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def get(self, timeout: float | None = None) -> list[Any]:
        """One entry per branch that binds the name.

        Raises:
            ForkError: a branch failed and the join was not told to return errors as entries.
            ReadTimeoutError: not there within `timeout` seconds.
        """
        self.wait(timeout)
        results: list[Any] = []
        errors: list[tuple[int, ProgramError]] = []
        for idx, value in enumerate(self.values):
            try:
                results.append(value.get())
            except ProgramError as error:
                results.append(error)
                errors.append((idx, error))
        if errors and self.on_error == "raise":
            first_idx, first = errors[0]
            raise ForkError(
                f"{len(errors)} of {len(self.values)} branches did not give {self.name!r}; entry {first_idx}: {first}",
                results,
            ) from first
        return results

    def metas(self, timeout: float | None = None) -> list[CallMeta]:
        """The meta of every branch's calls; raises like the calls themselves."""
        self.wait(timeout)
        return [meta for value in self.values for meta in value.metas()]

    def chunks(self, timeout: float | None = None) -> Iterator[str]:
        raise InvalidProgramError(
            f"{self.name!r} is a list joined from {len(self.values)} branches and has no text of its own to stream: "
            "iterate over the branches and stream theirs"
        )
