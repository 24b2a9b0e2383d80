"""Calls: what a program asked for, in order, with what came of it. Together they are the graph of a run."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..sampling_params import SamplingParams
from .callbacks import Callback, Callbacks, Forget
from .choices import ChoiceLogprobs, ChoicesMethod
from .errors import GenerationError, ProgramCancelledError, ProgramError, ReadTimeoutError, UnparsedTextError
from .generation import Generation, Sample, TokenLogprob
from .reasoning import ReasoningFormat
from .value_types import ValueType

CallKind = Literal["text", "gen", "select", "fork", "join"]

PACKAGE_DIR = str(Path(__file__).parent)
_NOT_THE_PROGRAM = (PACKAGE_DIR, contextlib.__file__)
"""Files whose lines are not a program's: this package, and what enters and leaves its context managers."""


@dataclass(frozen=True, slots=True)
class ChoiceScore:
    """One choice of a select.

    Attributes:
        choice: its log-probabilities.
        score: what the method made of them.
        probability: that the model writes this one, given that it writes one of the choices: exp(choice.sum_logprob +
            choice.end_logprob), divided by the sum of that over all choices. 0 for all if none is possible.
    """

    choice: ChoiceLogprobs
    score: float
    probability: float


@dataclass(frozen=True, slots=True)
class CallMeta:
    """What running a gen or select took. Times are seconds.

    Attributes:
        num_prompt_tokens: tokens before the call; those of a healed boundary count as generated.
        num_cached_tokens: how many of them the cache held.
        num_generated_tokens: tokens produced, over all samples; 0 for select.
        finish_reason: "stop" or "length"; "select" for a select.
        stop_reason: stop string or stop token id that ended it, if any.
        samples: of a gen, with token ids and logprobs.
        choices: of a select, in the order they were given.
        first_token_s: from submission to the first token, if known.
        queued_s: from submission until the backend began to compute it, if known.
        duration_s: from submission to the end.
        complete: of a constrained gen: whether the text satisfies the constraint (the first text, with n > 1). False
            for one that was cut off. None for a select or without a constraint.
        prompt_logprobs: one per prompt token if asked for; None for the first and for those not asked for.
    """

    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    finish_reason: str
    stop_reason: str | int | None
    samples: tuple[Sample, ...]
    choices: tuple[ChoiceScore, ...]
    first_token_s: float | None
    duration_s: float
    complete: bool | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    queued_s: float | None = None

    @property
    def num_computed_tokens(self) -> int:
        """Prompt tokens that were not in the cache."""
        return self.num_prompt_tokens - self.num_cached_tokens


@dataclass(frozen=True, slots=True)
class Failure:
    """Why something has no value. A fresh exception is made for every reader."""

    message: str
    cause: BaseException | None
    error_type: type[ProgramError] = GenerationError

    def to_error(self) -> ProgramError:
        error = self.error_type(self.message)
        error.__cause__ = self.cause
        return error

    def of_dependent(self, record: CallRecord) -> Failure:
        """The failure of a call that could not run because of this one."""
        return self.of_what_depends(record.describe())

    def of_what_depends(self, what: str) -> Failure:
        """The failure of something described as `what` that could not run because of this one."""
        if self.error_type is ProgramCancelledError:
            return Failure(f"{what} was cancelled: {self.message}", self.cause, ProgramCancelledError)
        return Failure(f"{what} was not run: {self.message}", self.to_error())


@dataclass(frozen=True, slots=True)
class ParseFailure(Failure):
    """Why a call whose text is there has no value: the text did not become one. What follows the call is unaffected."""

    text: str = ""

    def to_error(self) -> ProgramError:
        error = UnparsedTextError(self.message, self.text)
        error.__cause__ = self.cause
        return error


@dataclass(slots=True, eq=False)
class CallRecord:
    """One node of the graph of a run.

    Attributes:
        call_id: position in the run, from 0, in the order the program asked.
        parent_ids: the calls directly before it: one in the same branch, the fork for a branch's first call, the last
            call of every branch for a join.
        branch: which branch it belongs to: () for the program itself, (1, 0) for branch 0 of branch 1.
        source: file and line of the program that asked.
        text: of a text node.
        sampling_params: of a gen.
        choices: of a select.
        choices_method: of a select, by name.
        num_branches: of a fork or join.
        asked_at: when the program asked for it, on the monotonic clock.
        submitted_at: when it went to the backend, on the same clock.
        ended_at: when it had an outcome, on the same clock.
        value: once it has succeeded.
        meta: once it has succeeded.
        failure: once it has failed. A call whose text did not become the value asked for has a meta too.
    """

    call_id: int
    kind: CallKind
    name: str | None
    parent_ids: tuple[int, ...]
    branch: tuple[int, ...]
    source: str
    text: str = ""
    sampling_params: SamplingParams | None = None
    choices: tuple[str, ...] = ()
    choices_method: str | None = None
    num_branches: int = 0
    asked_at: float = field(default_factory=time.monotonic)
    submitted_at: float | None = None
    ended_at: float | None = None
    value: object = None
    meta: CallMeta | None = None
    failure: Failure | None = None
    _prompt: tuple[Sequence[int], int, tuple[int, ...]] = field(default=((), 0, ()), repr=False)
    _call: Call | None = field(default=None, repr=False)

    def belongs_to(self, call: Call) -> None:
        """The text of the record is what there is of the call's."""
        self._call = call

    def text_so_far(self) -> str:
        """What it adds to the state's text, as far as that is known now; never blocks."""
        return self.text if self._call is None else self._call.text_so_far()

    def set_prompt(self, token_log: Sequence[int], prompt_len: int, held_back: tuple[int, ...] = ()) -> None:
        """The prompt is the first `prompt_len` items of `token_log`, a list that only ever grows, then `held_back`."""
        self._prompt = (token_log, prompt_len, held_back)
        self.submitted_at = time.monotonic()

    def settle_prompt(self, prompt_len: int) -> None:
        """Of what was held back, only what `token_log` has now among its first `prompt_len` items was prompt."""
        self._prompt = (self._prompt[0], prompt_len, ())

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """The exact token ids before a gen or select; empty until it was submitted. Tokens of a healed boundary are
        among them only until it has ended."""
        token_log, prompt_len, held_back = self._prompt
        return (*token_log[:prompt_len], *held_back)

    def describe(self) -> str:
        name = f" {self.name!r}" if self.name is not None else ""
        return f"{self.kind}{name} at {self.source}"


class CallGraph:
    """Every call of one run, in the order the program asked for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: list[CallRecord] = []

    def add(
        self, kind: CallKind, parent_ids: tuple[int, ...], branch: tuple[int, ...], name: str | None = None
    ) -> CallRecord:
        """A new record; its source is the line of the program that is running in this thread."""
        source = call_site()
        with self._lock:
            record = CallRecord(len(self._records), kind, name, parent_ids, branch, source)
            self._records.append(record)
        return record

    def append(self, record: CallRecord) -> None:
        """A record of an earlier run; they come in order."""
        with self._lock:
            assert record.call_id == len(self._records), record
            self._records.append(record)

    def records(self) -> tuple[CallRecord, ...]:
        with self._lock:
            return tuple(self._records)


class Call:
    """A gen or select of a run: its record, its handle once it was submitted, its value once it is done.

    Attributes:
        method: of a select.
        value_type: what the text of a gen becomes; None leaves it a text.
        is_healed: of a constrained gen: whether one of its tokens may span the boundary to the literal text before it.
        reasoning: what of the text of a gen is not added to the state; None adds all of it.
        prompt_logprobs_start: the first token of the prompt whose logprob is wanted, if its sampling_params want any.
        text: what it adds to the state, once it is done.
    """

    def __init__(
        self,
        record: CallRecord,
        method: ChoicesMethod | None = None,
        *,
        value_type: ValueType | None = None,
        is_healed: bool = True,
        reasoning: ReasoningFormat | None = None,
        prompt_logprobs_start: int = 0,
    ) -> None:
        self.record = record
        self.method = method
        self.value_type = value_type
        self.is_healed = is_healed
        self.reasoning = reasoning
        self.prompt_logprobs_start = prompt_logprobs_start
        self.text = ""
        self._started: Future[Generation | None] = Future()
        self._outcome: Future[object] = Future()
        self._when_started = Callbacks()
        self._when_done = Callbacks()
        record.choices_method = None if method is None else method.name
        record.belongs_to(self)

    def start(self, generation: Generation | None) -> None:
        """It was submitted; a select has no generation to follow."""
        self._started.set_result(generation)
        self._when_started.call()

    def succeed(self, value: object, text: str, meta: CallMeta) -> None:
        """It ended with `value`; `text` is what it adds to the state. The value may be a ParseFailure."""
        self.text = text
        self.record.ended_at = time.monotonic()
        if isinstance(value, ParseFailure):
            self.record.failure = value
        else:
            self.record.value = value
        self.record.meta = meta
        self._outcome.set_result(value)
        self._when_done.call()

    def fail(self, failure: Failure) -> None:
        """It has no value, unless it has ended already."""
        if self._outcome.done():
            return
        self.record.ended_at = time.monotonic()
        self.record.failure = failure
        if not self._started.done():
            self.start(None)
        self._outcome.set_result(failure)
        self._when_done.call()

    @property
    def is_done(self) -> bool:
        return self._outcome.done()

    def when_started(self, callback: Callback) -> Forget:
        """Call `callback` once, when it was submitted or has failed; now if it has. It must not block or raise."""
        forget = self._when_started.add(callback)
        if self._started.done():
            self._when_started.call()
        return forget

    def when_done(self, callback: Callback) -> Forget:
        """Call `callback` once, when it has ended, well or not; now if it has. It must not block or raise."""
        forget = self._when_done.add(callback)
        if self._outcome.done():
            self._when_done.call()
        return forget

    @property
    def is_started(self) -> bool:
        return self._started.done()

    @property
    def generation(self) -> Generation | None:
        """What was submitted, if it can be followed; only to be asked once started."""
        return self._started.result(timeout=0)

    def wait(self, timeout: float | None = None) -> None:
        """Block until it has ended, well or not.

        Raises:
            ReadTimeoutError: it has not ended within `timeout` seconds.
        """
        try:
            self._outcome.result(timeout)
        except TimeoutError:
            raise ReadTimeoutError(
                f"{self.record.describe()} has no value yet after {timeout} s; it is still running"
            ) from None

    def get(self, timeout: float | None = None) -> object:
        """The value; blocks until it is there.

        Raises:
            GenerationError, ProgramCancelledError: there is none, with the cause. It is an UnparsedTextError if there
                is a text.
            ReadTimeoutError: not within `timeout` seconds.
        """
        self.wait(timeout)
        value = self._outcome.result()
        if isinstance(value, Failure):
            raise value.to_error()
        return value

    def _await_text(self, timeout: float | None) -> None:
        """Block until all of its text is there, and raise like `get` if there is none."""
        self.wait(timeout)
        self.raise_without_text()

    def raise_without_text(self) -> None:
        """Raise like `get` if it ended without a text. Only to be called once done."""
        if self.record.meta is None:
            self.get()

    def metas(self, timeout: float | None = None) -> list[CallMeta]:
        """What it took, as the only item; blocks, and raises like `get` if there is no text."""
        self._await_text(timeout)
        assert self.record.meta is not None
        return [self.record.meta]

    def chunks(self, timeout: float | None = None) -> Iterator[str]:
        """Its text from the beginning as it comes; blocks for what is not there yet.

        Raises:
            GenerationError, ProgramCancelledError: after what there was of the text, if it failed.
            ReadTimeoutError: nothing new came for `timeout` seconds.
        """
        try:
            generation = self._started.result(timeout)
        except TimeoutError:
            raise ReadTimeoutError(f"{self.record.describe()} has not started after {timeout} s") from None
        if generation is not None:
            chunks = generation.chunks(timeout)
            yield from chunks if self.reasoning is None else self.reasoning.answer_chunks(chunks)
            self._await_text(timeout)
            return
        self._await_text(timeout)
        yield self.text

    def text_so_far(self) -> str:
        """The text there is now; never blocks."""
        if self._outcome.done() or not self._started.done():
            return self.text
        generation = self._started.result()
        text = "" if generation is None else generation.text_so_far()
        return text if self.reasoning is None else self.reasoning.answer_so_far(text)


def call_site() -> str:
    """File and line of the nearest caller outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_PROGRAM):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
