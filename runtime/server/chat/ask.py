"""ChatAsk: what a client wants to be answered. ChatEvents: what becomes of it, piece by piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ....sampling_params import SamplingParams
from ...outputs import RequestOutput, TokenLogprobs

FinishLiteral = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether tools are called, and which.

    Attributes:
        mode: "auto" leaves it to the model, whose calls are held to their form all the same.
        names: of the tools that may be called, of those that the model is told of; None for all.
        is_single: one call at most.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] | None = None
    is_single: bool = False

    @classmethod
    def of(cls, name: str) -> ToolChoice:
        """This tool is to be called, once."""
        return cls("required", (name,), is_single=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAsk:
    """One request for the next message of a conversation.

    Attributes:
        messages: in OpenAI's form.
        sampling: with the constraint of response_format, if there is one.
        tools: JSON schemas in OpenAI's form, {"type": "function", "function": {...}}.
        tool_choice: enforced by a grammar.
        continues_last: the last message is the assistant's and is to be gone on with.
        chat_template: a template to use instead of the model's; only where the server allows it.
        template_options: further variables for the template.
        cache_salt, priority, rid: as in the request.
        is_streamed: deltas are wanted as they come.
        is_cut_at_context: where the prompt leaves less room than max_tokens, that room is the limit; otherwise such a
            request is refused.
        is_prompt_only: as of a Request.
    """

    messages: Sequence[Mapping[str, Any]]
    sampling: SamplingParams
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: ToolChoice = ToolChoice()
    continues_last: bool = False
    chat_template: str | None = None
    template_options: Mapping[str, Any] | None = None
    cache_salt: str | None = None
    priority: int = 0
    rid: str | None = None
    is_streamed: bool = False
    is_cut_at_context: bool = False
    is_prompt_only: bool = False

    @property
    def callable_tools(self) -> list[tuple[int, Mapping[str, Any]]]:
        """The functions that the model may call, each with its index among `tools`."""
        if self.tool_choice.mode == "none":
            return []
        functions = [(idx, tool["function"]) for idx, tool in enumerate(self.tools)]
        if self.tool_choice.names is None:
            return functions
        names = set(self.tool_choice.names)
        return [(idx, function) for idx, function in functions if function["name"] in names]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of the message's content.

    Attributes:
        index: which of the n samples.
        token_ids, logprobs: of the tokens that have come since the last delta, without the stop token; their text may
            follow in a later one. Those whose text is never shown, as that of tool calls and stop strings, come with an
            empty text, so that all deltas together have every token of the answer.
    """

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallBegin:
    """The model calls a tool; its arguments follow as JSON text."""

    index: int
    call_idx: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of the JSON text of a call's arguments."""

    index: int
    call_idx: int
    arguments: str


@dataclass(frozen=True, slots=True)
class SampleEnd:
    """A sample has ended.

    Attributes:
        finish: in OpenAI's words. JSON that ends where max_tokens does, because it was steered so, is "stop".
        stop_reason: the stop string or token id that ended it; None for end of sequence.
        complete: as CompletionOutput.complete.
        num_tokens: that were generated.
        reason: the engine's own word, a FinishReason: "length" also where JSON was steered to its end.
    """

    index: int
    finish: FinishLiteral
    stop_reason: int | str | None
    complete: bool | None
    num_tokens: int
    reason: str = "stop"


@dataclass(frozen=True, slots=True)
class ChatEnd:
    """The whole request has ended; it has the usage. The last event."""

    output: RequestOutput


ChatEvent = TextDelta | ToolCallBegin | ToolCallDelta | SampleEnd | ChatEnd


@dataclass(frozen=True, slots=True)
class ToolCallMade:
    """A whole call. `arguments` is JSON text."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One sample, whole. `token_ids` and `logprobs` are without the stop token."""

    index: int
    content: str
    tool_calls: tuple[ToolCallMade, ...]
    end: SampleEnd
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
