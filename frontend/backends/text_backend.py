"""TextBackend: what backends over HTTP have in common. They exchange text, and their calls run on one event loop."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from ..backend import GenerateCall, Message, ProgramHint, ScoreCall, Scoring, TextSegment
from ..generation import Generation
from .call_loop import CallLoop
from .errors import UnsupportedByBackendError
from .text_ids import TextIds


class TextBackend(ABC):
    """A backend whose token ids stand for text (see text_ids.py). What follows from a finished call runs on its thread.

    Attributes:
        name: of the backend, in messages.
    """

    name: str

    def __init__(self, max_concurrency: int, on_close: Callable[[], Awaitable[None]]) -> None:
        self._ids = TextIds()
        self._calls = CallLoop(f"ramet-{self.name}", max_concurrency, on_close)
        weakref.finalize(self, self._calls.stop)

    # The Backend protocol, as far as it is the same for all

    def encode(self, segments: Sequence[TextSegment], *, at_start: bool) -> list[int]:
        """One id per character; no begin token, which is the server's business."""
        return self._ids.encode(segments)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._ids.decode(token_ids)

    @abstractmethod
    def role_prefix(self, messages: Sequence[Message], role: str) -> Sequence[TextSegment]: ...

    @abstractmethod
    def role_suffix(self, messages: Sequence[Message], role: str) -> Sequence[TextSegment]: ...

    @abstractmethod
    def chat_segments(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> Sequence[TextSegment]: ...

    @abstractmethod
    def generate(self, call: GenerateCall) -> Generation: ...

    @abstractmethod
    def score(self, call: ScoreCall) -> Scoring: ...

    def hint(self, hint: ProgramHint) -> None:  # noqa: B027 (most have no use for it)
        """Has no use for it: nothing of what it tells can be sent."""

    def flush_cache(self) -> None:
        """
        Raises:
            UnsupportedByBackendError: an API does not let its users do this.
        """
        raise UnsupportedByBackendError(
            f"the {self.name} backend cannot flush a cache: what is kept there is the provider's decision; leave it out"
        )

    @abstractmethod
    def info(self) -> Mapping[str, object]: ...

    # Life

    @property
    def is_closed(self) -> bool:
        return self._calls.is_closed

    def close(self) -> None:
        """Cancel running calls, close the connections and end the thread. Idempotent."""
        self._calls.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
