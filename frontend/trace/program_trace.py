"""ProgramTrace: one run of a program as plain data: every call with its prompt, its outcome, its times and its error.

All times are seconds since the run began. Nothing here refers to the run: a trace can be kept, compared, sent and read
back (`to_json`, `from_json`) where there is no backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import Literal

from ..calls import CallKind, CallMeta

CallStatus = Literal["done", "waiting", "running", "unparsed", "failed", "cancelled"]
"""waiting: not sent yet: what is before it has not ended. unparsed: there is a text, but not the value asked for."""

ProgramStatus = Literal["running", "done", "failed", "raised"]
"""failed: the body returned, but a call has no value. raised: the body raised."""


@dataclass(frozen=True, slots=True)
class ErrorTrace:
    """An exception in words.

    Attributes:
        type: the name of its class.
        message: what it says.
        causes: what led to it, the nearest first, each as "Type: message".
        source: file and line of the program that raised it, where that is known.
    """

    type: str
    message: str
    causes: tuple[str, ...] = ()
    source: str | None = None

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"


@dataclass(frozen=True, slots=True)
class TokenText:
    """What one token reads as by itself. A special token is one that literal text never becomes."""

    token_id: int
    text: str
    is_special: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTrace:
    """One call.

    Attributes:
        call_id, kind, name, parent_ids, branch, source, num_branches: as in the run's CallRecord.
        text: what it adds to the text: that of a text node, the first text of a gen as far as it has come, the winner
            of a select.
        prompt_token_ids: the exact ids before a gen or select; empty if it was never sent.
        prompt_text: the same as text, special tokens included; None if the backend cannot tell.
        params: the sampling parameters that differ from their defaults; of a select, the method.
        value: what the name is bound to, as JSON has it; what JSON has no form for is its repr.
        meta: what it took: token counts, samples, scores of choices, finish reason. None without an outcome.
        asked_s: when the program asked for it.
        submitted_s: when it went to the backend.
        started_s: when the backend began to compute it, if that is known.
        first_token_s: when its first token was there, if that is known.
        ended_s: when it ended, well or not.
    """

    call_id: int
    kind: CallKind
    name: str | None = None
    status: CallStatus = "done"
    parent_ids: tuple[int, ...] = ()
    branch: tuple[int, ...] = ()
    source: str = ""
    num_branches: int = 0
    text: str = ""
    prompt_token_ids: tuple[int, ...] = ()
    prompt_text: str | None = None
    params: Mapping[str, object] = field(default_factory=dict)
    value: object = None
    meta: CallMeta | None = None
    asked_s: float = 0.0
    submitted_s: float | None = None
    started_s: float | None = None
    first_token_s: float | None = None
    ended_s: float | None = None
    error: ErrorTrace | None = None

    @property
    def is_model_call(self) -> bool:
        """Whether the model works on it."""
        return self.kind in ("gen", "select")

    @property
    def chosen_idx(self) -> int | None:
        """Which choice of a select won."""
        if self.meta is None or not self.meta.choices:
            return None
        scores = [choice.score for choice in self.meta.choices]
        return scores.index(max(scores))

    @property
    def output_token_ids(self) -> tuple[int, ...]:
        """Of the first text of a gen, all that the model produced; of a select, the winner's as they were scored."""
        if self.meta is None:
            return ()
        if self.meta.samples:
            return self.meta.samples[0].token_ids
        return () if self.chosen_idx is None else self.meta.choices[self.chosen_idx].choice.token_ids

    def describe(self) -> str:
        """Kind and name, for people."""
        return self.kind if self.name is None else f"{self.kind} {self.name!r}"


@dataclass(frozen=True)
class ProgramTrace:
    """One run.

    Attributes:
        name: of the program.
        run_id: no two runs have the same.
        status, error: how it went so far.
        arguments: what it was called with, as JSON has it.
        start_time: in seconds since 1970.
        duration_s: until the body and every call had ended; until now, if it is still running.
        calls: in the order the program asked for them.
        messages: the complete chat messages.
        model: what the backend says of itself; empty if no call reached it.
        vocabulary: the text of every token id that occurs.
    """

    name: str
    run_id: str
    status: ProgramStatus = "done"
    arguments: Mapping[str, object] = field(default_factory=dict)
    start_time: float = 0.0
    duration_s: float = 0.0
    error: ErrorTrace | None = None
    calls: tuple[CallTrace, ...] = ()
    messages: tuple[Mapping[str, object], ...] = ()
    model: Mapping[str, object] = field(default_factory=dict)
    vocabulary: tuple[TokenText, ...] = ()

    @cached_property
    def model_calls(self) -> tuple[CallTrace, ...]:
        """The gens and selects."""
        return tuple(call for call in self.calls if call.is_model_call)

    @cached_property
    def token_texts(self) -> Mapping[int, TokenText]:
        """The vocabulary by token id."""
        return {token.token_id: token for token in self.vocabulary}

    @property
    def num_prompt_tokens(self) -> int:
        """Over all calls that have ended."""
        return sum(call.meta.num_prompt_tokens for call in self.model_calls if call.meta is not None)

    @property
    def num_cached_tokens(self) -> int:
        return sum(call.meta.num_cached_tokens for call in self.model_calls if call.meta is not None)

    @property
    def num_generated_tokens(self) -> int:
        return sum(call.meta.num_generated_tokens for call in self.model_calls if call.meta is not None)

    def text(self, *, has_prompts: bool = False) -> str:
        """One line a call, indented by branch, for a terminal; with every prompt behind it if wanted."""
        from .text import trace_text

        return trace_text(self, has_prompts=has_prompts)

    def __str__(self) -> str:
        return self.text()

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to a file, which is replaced if it exists; `save_traces` writes several into one.

        `.html` is a page that needs nothing else, `.jsonl` is for `load`, `.txt` is the text with every prompt.

        Raises:
            ValueError: the name ends in none of these.
            OSError: the file cannot be written.
        """
        from .files import save_traces

        save_traces([self], path)

    @staticmethod
    def load(path: str | PathLike[str]) -> list[ProgramTrace]:
        """The traces in a `.jsonl` file, in order.

        Raises:
            ProgramTraceFormatError: a line is no trace, or is cut off; the message gives the line.
            OSError: the file cannot be read.
        """
        from .files import load_traces

        return load_traces(path)

    def to_json(self) -> str:
        """One JSON object on one line, in ASCII. A prompt is written as what it adds to the call before it."""
        from .trace_json import trace_to_json

        return trace_to_json(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> ProgramTrace:
        """The trace that `to_json` was called on, or one that is equal to it.

        Raises:
            ProgramTraceFormatError: the text is no such trace; the message says where.
        """
        from .trace_json import trace_from_json

        return trace_from_json(text)
