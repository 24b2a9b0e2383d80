"""RecordingBackend: opens another backend when it is first needed and keeps a row of the report for each call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..frontend.backend import Backend, GenerateCall, Message, ProgramHint, ScoreCall, Scoring, TextSegment
from ..frontend.generation import Generation
from ..frontend.handle import Handle
from .errors import one_line
from .report import CallRow, FailedCall, Totals

if TYPE_CHECKING:
    from ..frontend.backends.local import LLM


class RecordingBackend:
    """A Backend that remembers what its calls took. Cancelled calls leave no trace.

    Attributes:
        is_opening: whether some thread is opening the other backend now.
        open_error: why the other backend could not be opened; every use raises it.
    """

    def __init__(self, open_backend: Callable[[], Backend]) -> None:
        self.is_opening = False
        self.open_error: Exception | None = None
        self._open_backend = open_backend
        self._open_lock = threading.Lock()
        self._opened: Backend | None = None
        self._lock = threading.Lock()
        self._calls: list[CallRow | FailedCall] = []
        self._first_start: float | None = None
        self._last_end = 0.0

    def calls(self) -> list[CallRow | FailedCall]:
        """What has ended so far, in the order it ended."""
        with self._lock:
            return list(self._calls)

    def rows(self) -> list[CallRow]:
        """What has ended well so far."""
        return [call for call in self.calls() if isinstance(call, CallRow)]

    def failures(self) -> list[FailedCall]:
        """What has failed so far."""
        return [call for call in self.calls() if isinstance(call, FailedCall)]

    def totals(self) -> Totals:
        rows = self.rows()
        with self._lock:
            elapsed_s = 0.0 if self._first_start is None else max(0.0, self._last_end - self._first_start)
        return Totals.of(rows, elapsed_s)

    def generate(self, call: GenerateCall) -> Generation:
        label = _label("gen", call.name)
        inner, start = self._inner, self._started()
        try:
            generation = inner.generate(call)
        except Exception as error:
            self._failed(label, error)
            raise
        generation.add_done_callback(lambda: self._generation_ended(generation, label, start))
        return generation

    def score(self, call: ScoreCall) -> Scoring:
        label = _label("select", call.name)
        inner, start = self._inner, self._started()
        try:
            scoring = inner.score(call)
        except Exception as error:
            self._failed(label, error)
            raise
        scoring.add_done_callback(lambda: self._scoring_ended(scoring, label, start))
        return scoring

    def encode(self, segments: Sequence[TextSegment], *, at_start: bool) -> list[int]:
        return self._inner.encode(segments, at_start=at_start)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._inner.decode(token_ids)

    def role_prefix(self, messages: Sequence[Message], role: str) -> Sequence[TextSegment]:
        return self._inner.role_prefix(messages, role)

    def role_suffix(self, messages: Sequence[Message], role: str) -> Sequence[TextSegment]:
        return self._inner.role_suffix(messages, role)

    def chat_segments(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> Sequence[TextSegment]:
        return self._inner.chat_segments(messages, tools=tools, add_generation_prompt=add_generation_prompt)

    def hint(self, hint: ProgramHint) -> None:
        if self._opened is not None:
            self._opened.hint(hint)

    def flush_cache(self) -> None:
        self._inner.flush_cache()

    def info(self) -> Mapping[str, object]:
        return self._inner.info()

    @property
    def llm(self) -> LLM:
        """The model and its engine, as a LocalBackend has them; opens it.

        Raises:
            AttributeError: the other backend is none.
        """
        from ..frontend.backends.local import LocalBackend

        inner = self._inner
        if not isinstance(inner, LocalBackend):
            raise AttributeError(f"a {type(inner).__name__} has no llm")
        return inner.llm

    @property
    def _inner(self) -> Backend:
        with self._open_lock:
            if self.open_error is not None:
                raise self.open_error
            if self._opened is None:
                self.is_opening = True
                try:
                    self._opened = self._open_backend()
                except Exception as error:
                    self.open_error = error
                    raise
                finally:
                    self.is_opening = False
            return self._opened

    def _started(self) -> float:
        now = time.monotonic()
        with self._lock:
            if self._first_start is None:
                self._first_start = now
        return now

    def _generation_ended(self, generation: Generation, label: str, start: float) -> None:
        if self._is_without_result(generation, label):
            return
        result = generation.result(timeout=0)
        num_generated_tokens = sum(len(sample.token_ids) for sample in result.samples)
        self._ended(label, result.num_prompt_tokens, result.num_cached_tokens, num_generated_tokens, start)

    def _scoring_ended(self, scoring: Scoring, label: str, start: float) -> None:
        if self._is_without_result(scoring, label):
            return
        result = scoring.result(timeout=0)
        self._ended(label, result.num_prompt_tokens, result.num_cached_tokens, 0, start)

    def _is_without_result(self, handle: Handle[Any], label: str) -> bool:
        error = handle.error()
        if error is not None and not handle.is_cancelled:
            self._failed(label, error)
        return error is not None

    def _failed(self, label: str, error: BaseException) -> None:
        with self._lock:
            self._calls.append(FailedCall(label, one_line(error)))

    def _ended(
        self, label: str, num_prompt_tokens: int, num_cached_tokens: int, num_generated_tokens: int, start: float
    ) -> None:
        now = time.monotonic()
        row = CallRow(label, num_prompt_tokens, num_cached_tokens, num_generated_tokens, now - start)
        with self._lock:
            self._calls.append(row)
            self._last_end = max(self._last_end, now)


def _label(kind: str, name: str | None) -> str:
    return kind if name is None else f"{kind} {name}"
