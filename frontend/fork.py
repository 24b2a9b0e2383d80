"""ForkGroup: the branches of a fork, which share everything up to it and then go their own ways side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

from .errors import InvalidProgramError
from .primitives import Expression
from .values import Joined, OnError

Appendable = Expression | str

JoinMode = Literal["gather_variable", "concate_and_append"]


class Branch(Protocol):
    """What the group needs from a state."""

    def append(self, expression: Appendable | Sequence[Appendable]) -> None: ...


BranchT = TypeVar("BranchT", bound=Branch)


class JoinedValues(Mapping[str, list[Any]]):
    """Name to list of the branches' values, in branch order. Reading one blocks until all of it is there."""

    def __init__(self, values: Mapping[str, Joined]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> list[Any]:
        """Raises ForkError if a branch failed, and KeyError if no branch binds the name."""
        return self._values[name].get()

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name!r}: {'done' if value.is_done else 'pending'}" for name, value in self._values.items())
        return f"<JoinedValues {{{shown}}}>"


class ForkGroup(Generic[BranchT]):
    """The branches of one fork: `group[i]`, iteration, `len(group)`, `group += ...`, `group.join()`."""

    def __init__(
        self,
        branches: Sequence[BranchT],
        join: Callable[[Sequence[BranchT], OnError, JoinMode], Mapping[str, Joined]],
    ) -> None:
        self._branches = tuple(branches)
        self._join = join
        self._is_appended = False

    def __len__(self) -> int:
        return len(self._branches)

    def __getitem__(self, idx: int) -> BranchT:
        """
        Raises:
            InvalidProgramError: a name instead of an index.
        """
        if isinstance(idx, str):
            raise InvalidProgramError(
                f"a fork has no variables of its own: read {idx!r} of one branch with forks[i][{idx!r}], or of all "
                f"with forks.join()[{idx!r}]; once joined, the state that was forked has it too"
            )
        return self._branches[idx]

    def __setitem__(self, idx: int, branch: BranchT) -> None:
        """Makes `group[i] += ...` work; a branch cannot be replaced by another."""
        if branch is not self._branches[idx]:
            raise InvalidProgramError(
                f"branch {idx} of a fork cannot be replaced; append to it with group[{idx}] += ..."
            )

    def __iter__(self) -> Iterator[BranchT]:
        return iter(self._branches)

    def __iadd__(self, other: Appendable | Sequence[Appendable] | Callable[[int], Appendable]) -> Self:
        """Append to every branch: the same to all, the i-th item of a list, or what a function gives for i.

        Raises:
            InvalidProgramError: a list whose length is not the number of branches.
        """
        if isinstance(other, Expression | str):
            parts: Sequence[Appendable] = [other] * len(self)
        elif callable(other):
            parts = [other(idx) for idx in range(len(self))]
        else:
            parts = list(other)
            if len(parts) != len(self):
                raise InvalidProgramError(
                    f"cannot append a list of {len(parts)} expressions to {len(self)} branches: give one per branch"
                )
        for branch, part in zip(self._branches, parts, strict=True):
            branch.append(part)
        return self

    def join(self, mode: JoinMode = "gather_variable", *, on_error: OnError = "raise") -> JoinedValues:
        """Bind in the parent, as a list in branch order, every name that branches bound since the fork.

        Does not block. A name the parent has already is bound anew, as by any assignment; the branches' own values
        stay readable through the branches. A branch that did not bind a name has no entry in its list. A branch that
        failed has one: reading the list raises ForkError, or with on_error="return" gives the exception as the entry.

        With mode="concate_and_append", as SGLang spells it, no name is bound: the parent's text goes on with what each
        branch has added since the fork, in branch order, with the tokens the branches have. If a branch failed, so has
        the parent, from there on.

        Raises:
            InvalidProgramError: another mode or value for on_error; or branches cannot be appended because messages
                were opened or closed since the fork, or they were already.
        """
        return JoinedValues(self._joined(on_error, mode))

    def _joined(self, on_error: OnError, mode: JoinMode = "gather_variable") -> Mapping[str, Joined]:
        if mode == "concate_and_append":
            self._check_appending(on_error)
            joined = self._join(self._branches, on_error, mode)
            self._is_appended = True
            return joined
        if mode != "gather_variable":
            raise InvalidProgramError(f"join({mode!r}) is not allowed: use 'gather_variable' or 'concate_and_append'")
        if on_error not in ("raise", "return"):
            raise InvalidProgramError(f"join(on_error={on_error!r}) is not allowed: use 'raise' or 'return'")
        return self._join(self._branches, on_error, mode)

    def _check_appending(self, on_error: OnError) -> None:
        if on_error != "raise":
            raise InvalidProgramError(
                f"join('concate_and_append', on_error={on_error!r}) is not allowed: a text with a branch missing would "
                "be another text; join the variables instead"
            )
        if self._is_appended:
            raise InvalidProgramError("the branches of this fork are appended already: fork again for more")

    def __repr__(self) -> str:
        return f"<ForkGroup of {len(self)} branches>"
