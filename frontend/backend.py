"""Backend: what the language needs from whatever runs the model. Token ids go both ways; text is for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from ..sampling_params import SamplingParams
from .generation import Generation
from .handle import Handle

Message = dict[str, Any]
"""One chat message: {"role": ..., "content": ...}, and what OpenAI's format has beside these, such as tool_calls."""


@dataclass(frozen=True, slots=True)
class TextSegment:
    """Text not yet tokenised. Only template text may contain special tokens.

    Attributes:
        origin: where a text in a rendered conversation that is not the template's comes from, such as
            "messages[2].content (user)".
    """

    text: str
    is_template: bool = False
    origin: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ProgramRef:
    """Which place of which program a call comes from. A backend may serve the calls of a program as a whole.

    Attributes:
        run_id: of the run; no two runs have the same.
        program_name: of the function.
        branch: which branch of the run: () for the program itself, (1, 0) for branch 0 of branch 1.
    """

    run_id: str
    program_name: str
    branch: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ProgramEnded:
    """No call of this run will come any more."""

    run_id: str


@dataclass(frozen=True, slots=True)
class ProgramForked:
    """Branches of this one are about to make their first calls, which begin with all of its text.

    Attributes:
        branch: the one that was forked.
        first_idx, num_branches: its branches first_idx, first_idx + 1, and so on.
    """

    run_id: str
    branch: tuple[int, ...]
    first_idx: int
    num_branches: int


@dataclass(frozen=True, slots=True)
class ProgramJoined:
    """Branches were joined: their parent is next, and from them hardly any call comes.

    Attributes:
        branch: the parent.
        joined: the branches, which may still be running.
        num_calls_before: how many calls, one after the other, the parent has to wait for at least.
    """

    run_id: str
    branch: tuple[int, ...]
    joined: tuple[tuple[int, ...], ...]
    num_calls_before: int


@dataclass(frozen=True, slots=True)
class CallExpected:
    """The program says when the next call of this branch comes.

    Attributes:
        num_calls_before: after about so many others; None: there will be none.
    """

    run_id: str
    branch: tuple[int, ...]
    num_calls_before: int | None


ProgramHint = ProgramEnded | ProgramForked | ProgramJoined | CallExpected
"""What a program tells a backend ahead of its calls, or after the last of them."""


@dataclass(frozen=True, slots=True)
class GenerateCall:
    """One gen, ready to run.

    Attributes:
        prompt_token_ids: the whole text so far; never empty.
        shared_prefix_len: leading tokens that sibling branches of a fork share, so that they are computed once.
        name: the variable it binds, for display.
        num_healable_tokens: so many tokens at the end of the prompt spell literal text, which a constrained generation
            may begin again with other tokens (see GenerateResult.num_healed_tokens). 0 keeps the prompt as it is.
        program: where it comes from; None outside a program.
        prompt_logprobs_start: the first token of the prompt whose logprob is wanted, where sampling_params want any.
    """

    prompt_token_ids: tuple[int, ...]
    sampling_params: SamplingParams
    shared_prefix_len: int = 0
    name: str | None = field(default=None, compare=False)
    num_healable_tokens: int = 0
    program: ProgramRef | None = field(default=None, compare=False)
    prompt_logprobs_start: int = 0


@dataclass(frozen=True, slots=True)
class ScoreCall:
    """One select, ready to run: what is the log-probability of each continuation after the prompt?

    Attributes:
        prompt_token_ids: what all continuations follow. May be empty: then the first token of a continuation has
            no log-probability and None is reported for it.
        continuations: token ids, each non-empty.
        shared_prefix_len, name, program: as for GenerateCall.
    """

    prompt_token_ids: tuple[int, ...]
    continuations: tuple[tuple[int, ...], ...]
    shared_prefix_len: int = 0
    name: str | None = field(default=None, compare=False)
    program: ProgramRef | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """Log-probabilities of continuations.

    Attributes:
        logprobs: per continuation, one value per token.
        end_logprobs: per continuation, the log-probability that the text does not go on from it into a longer one of
            the continuations: log(1 - sum of p(next token) over those that it is the beginning of); 0 if there is none.
        num_prompt_tokens: length of the common prompt.
        num_cached_tokens: how many of these were in the cache.
        queued_s: seconds from submission until it began to be computed; None if the backend does not know.
        token_ids: per continuation, the tokens that the values belong to, where the model cuts the text otherwise than
            the call did; None if they are those of the call.
    """

    logprobs: tuple[tuple[float | None, ...], ...]
    end_logprobs: tuple[float, ...]
    num_prompt_tokens: int
    num_cached_tokens: int
    queued_s: float | None = None
    token_ids: tuple[tuple[int, ...], ...] | None = None


Scoring = Handle[ScoreResult]
"""A select under way."""


@runtime_checkable
class Backend(Protocol):
    """Runs a model for the language. All methods may be called from several threads at once.

    `generate` and `score` return at once. They may raise for calls that can never run; a call that fails later
    reports it through its handle. Callbacks of handles may run in any thread.
    """

    def encode(self, segments: Sequence[TextSegment], *, at_start: bool) -> list[int]:
        """Token ids of the segments. At the start of a text the model's begin token is put first if it wants one."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the tokens, special tokens included."""
        ...

    def role_prefix(self, messages: Sequence[Message], role: str) -> Sequence[TextSegment]:
        """The template text that opens one more message after the complete `messages`."""
        ...

    def role_suffix(self, messages: Sequence[Message], role: str) -> Sequence[TextSegment]:
        """The template text that closes the message opened after `messages`."""
        ...

    def chat_segments(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> Sequence[TextSegment]:
        """A whole conversation in the model's format, tool calls included.

        Args:
            tools: JSON schemas of the functions that the model may call.
            add_generation_prompt: end with what opens the assistant's next message.

        Raises:
            ValueError: the messages are malformed, or the template does not allow them.
        """
        ...

    def generate(self, call: GenerateCall) -> Generation: ...

    def score(self, call: ScoreCall) -> Scoring: ...

    def hint(self, hint: ProgramHint) -> None:
        """Something that it may make use of. Does not block or raise. May be called by the garbage collector, that is
        at any point of any thread."""
        ...

    def flush_cache(self) -> None:
        """Forget cached prefixes that are not in use."""
        ...

    def info(self) -> Mapping[str, object]:
        """What is running: model, limits, cache state. Keys are the backend's own."""
        ...
