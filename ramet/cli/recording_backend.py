"""RecordingBackend: opens another backend when it is first needed and keeps a row of the report for each call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..frontend.backend import Backend, GenerateCall, Message, ProgramHint, ScoreCall, ScoreResult, Scoring, TextSegment
from ..frontend.generation import GenerateResult, Generation
from ..frontend.handle import Handle
from .errors import one_line
from .program_log import ProgramLog
from .report import CallRow, FailedCall, Totals

if TYPE_CHECKING:
    from ..frontend.backends.local import LLM
    from ..frontend.run_context import RunContext
    from ..frontend.trace.cache_tree import CacheTree
    from ..frontend.trace.program_trace import ProgramTrace
    from ..frontend.trace.report import ProgramReport


@dataclass(frozen=True, slots=True)
class SentCall:
    """A call under way: what the report names it, when it was sent, and whether it is the first of its run."""

    label: str
    call: GenerateCall | ScoreCall
    start: float
    is_first: bool


class RecordingBackend:
    """A Backend that remembers what its calls took, and which programs ran. Cancelled calls leave no row.

    Args:
        open_backend: opens the other backend.
        keeps_runs: whether `traces` will be asked for: all runs are kept in memory then.

    Attributes:
        is_opening: whether some thread is opening the other backend now.
        open_error: why the other backend could not be opened; every use raises it.
    """

    def __init__(self, open_backend: Callable[[], Backend], *, keeps_runs: bool = False) -> None:
        self.is_opening = False
        self.open_error: Exception | None = None
        self._open_backend = open_backend
        self._open_lock = threading.Lock()
        self._opened: Backend | None = None
        self._lock = threading.Lock()
        self._calls: list[CallRow | FailedCall] = []
        self._first_start: float | None = None
        self._last_end = 0.0
        self._runs: list[RunContext] | None = [] if keeps_runs else None
        self._programs = ProgramLog()

    def run_began(self, run: RunContext) -> None:
        """A program runs on this backend. Opens it, so that a run does not last as long as a model takes to load."""
        with self._lock:
            if self._runs is not None:
                self._runs.append(run)
        with suppress(Exception):  # the first call of the run raises it
            self._inner  # noqa: B018

    def traces(self) -> list[ProgramTrace]:
        """Of the runs that were kept, as far as they have come."""
        from ..frontend.trace.capture import TokenReader, capture_trace

        with self._lock:
            runs = list(self._runs or ())
        reader = TokenReader(self)
        return [capture_trace(run, reader=reader) for run in runs]

    def reports(self) -> list[ProgramReport]:
        """What the runs of each program had in common, so far."""
        with self._lock:
            return self._programs.reports()

    def cache_tree(self) -> CacheTree | None:
        """What the other backend's cache holds; None if it was not opened, or has none to show."""
        from ..frontend.trace.cache_tree import cache_tree_of

        return None if self._opened is None else cache_tree_of(self._opened)

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
        inner, sent = self._inner, self._sent("gen", call)
        try:
            generation = inner.generate(call)
        except Exception as error:
            self._failed(sent.label, error)
            raise
        generation.add_done_callback(lambda: self._generation_ended(generation, sent))
        return generation

    def score(self, call: ScoreCall) -> Scoring:
        inner, sent = self._inner, self._sent("select", call)
        try:
            scoring = inner.score(call)
        except Exception as error:
            self._failed(sent.label, error)
            raise
        scoring.add_done_callback(lambda: self._scoring_ended(scoring, sent))
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

    def _sent(self, kind: str, call: GenerateCall | ScoreCall) -> SentCall:
        now = time.monotonic()
        label = kind if call.name is None else f"{kind} {call.name}"
        with self._lock:
            if self._first_start is None:
                self._first_start = now
            return SentCall(label, call, now, self._programs.call_sent(call))

    def _generation_ended(self, generation: Generation, sent: SentCall) -> None:
        if self._is_without_result(generation, sent.label):
            return
        result = generation.result(timeout=0)
        num_generated_tokens = sum(len(sample.token_ids) for sample in result.samples)
        self._ended(sent, result, num_generated_tokens, result.first_token_s)

    def _scoring_ended(self, scoring: Scoring, sent: SentCall) -> None:
        if self._is_without_result(scoring, sent.label):
            return
        self._ended(sent, scoring.result(timeout=0), 0, time.monotonic() - sent.start)

    def _is_without_result(self, handle: Handle[Any], label: str) -> bool:
        error = handle.error()
        if error is not None and not handle.is_cancelled:
            self._failed(label, error)
        return error is not None

    def _failed(self, label: str, error: BaseException) -> None:
        with self._lock:
            self._calls.append(FailedCall(label, one_line(error)))

    def _ended(
        self,
        sent: SentCall,
        result: GenerateResult | ScoreResult,
        num_generated_tokens: int,
        prompt_end_s: float | None,
    ) -> None:
        """`prompt_end_s` is how long after it was sent its prompt was computed, if that is known."""
        now = time.monotonic()
        num_prompt_tokens, num_cached_tokens = result.num_prompt_tokens, result.num_cached_tokens
        row = CallRow(sent.label, num_prompt_tokens, num_cached_tokens, num_generated_tokens, now - sent.start)
        prefill_s = None if prompt_end_s is None or result.queued_s is None else prompt_end_s - result.queued_s
        with self._lock:
            self._calls.append(row)
            self._last_end = max(self._last_end, now)
            self._programs.call_ended(sent.call.program, row, prefill_s, is_first=sent.is_first)
