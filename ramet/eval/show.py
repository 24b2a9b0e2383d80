"""The exact prompts of a task, without a model computing anything: what its tokenizer and template make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..frontend.backend import Backend, GenerateCall, Message, ProgramHint, ScoreCall, ScoreResult, Scoring, TextSegment
from ..frontend.generation import GenerateResult, Generation, Sample
from ..frontend.handle import Handle
from ..frontend.program import Program
from ..frontend.state import ProgramState
from .programs import ASK
from .question import Question
from .task import Task


@dataclass(frozen=True, slots=True)
class ShownPrompt:
    """What a model is sent for a question.

    Attributes:
        text: the prompt with its special tokens; only what comes from the chat template is one.
        num_tokens: of the prompt.
        continuations: per distinct choice, the tokens that are scored, as texts.
    """

    question: Question
    text: str
    num_tokens: int
    continuations: tuple[tuple[str, ...], ...]


def exact_prompt(task: Task, question: Question, backend: Backend) -> ShownPrompt:
    """The prompt that `evaluate` sends for a question.

    Raises:
        GenerationError: it cannot be written: the model has no chat template, or it refuses these roles.
    """
    if task.kind == "perplexity":
        text = question.parts[0][1]
        return ShownPrompt(question, text, len(backend.encode([TextSegment(text)], at_start=True)), ())
    probe = PromptProbe(backend)

    def ask(s: ProgramState) -> None:
        ASK[task.kind](s, task, question, probe)

    Program(ask).run(backend=probe)
    call = probe.calls[0]
    continuations = call.continuations if isinstance(call, ScoreCall) else ()
    return ShownPrompt(
        question,
        backend.decode(call.prompt_token_ids),
        len(call.prompt_token_ids),
        tuple(tuple(backend.decode([token_id]) for token_id in each) for each in continuations),
    )


class PromptProbe:
    """A Backend that keeps the calls it gets and answers them with nothing; text and tokens are another backend's.

    Attributes:
        calls: in order of arrival.
    """

    def __init__(self, backend: Backend) -> None:
        self.calls: list[GenerateCall | ScoreCall] = []
        self._backend = backend

    def generate(self, call: GenerateCall) -> Generation:
        self.calls.append(call)
        generation = Generation()
        generation.finish(GenerateResult((Sample("", (), ()),), len(call.prompt_token_ids), 0))
        return generation

    def score(self, call: ScoreCall) -> Scoring:
        self.calls.append(call)
        scoring: Scoring = Handle()
        logprobs = tuple((0.0,) * len(each) for each in call.continuations)
        scoring.finish(ScoreResult(logprobs, (0.0,) * len(logprobs), len(call.prompt_token_ids), 0))
        return scoring

    def encode(self, segments: Sequence[TextSegment], *, at_start: bool) -> list[int]:
        return self._backend.encode(segments, at_start=at_start)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._backend.decode(token_ids)

    def role_prefix(self, messages: Sequence[Message], role: str) -> Sequence[TextSegment]:
        return self._backend.role_prefix(messages, role)

    def role_suffix(self, messages: Sequence[Message], role: str) -> Sequence[TextSegment]:
        return self._backend.role_suffix(messages, role)

    def chat_segments(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> Sequence[TextSegment]:
        return self._backend.chat_segments(messages, tools=tools, add_generation_prompt=add_generation_prompt)

    def hint(self, hint: ProgramHint) -> None:
        """Of no use here."""

    def flush_cache(self) -> None:
        """There is none."""

    def info(self) -> Mapping[str, object]:
        return self._backend.info()
