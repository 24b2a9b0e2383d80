"""The body of `/v1/chat/completions`, and the ChatAsk that it means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, WithJsonSchema

from ..body_types import ListOf
from ..chat.ask import ChatAsk
from ..chat.tools import function_tool
from ..errors import ApiError
from .fields import MAX_LISTED_LOGPROBS, Mode, SharedFields
from .tool_choice import tool_choice

_CONTENT = {
    "anyOf": [
        {"type": "string"},
        {"type": "null"},
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                "required": ["type", "text"],
            },
        },
    ]
}
_MESSAGE = {
    "type": "object",
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": _CONTENT,
        "tool_calls": {"anyOf": [{"type": "array", "items": {"type": "object"}}, {"type": "null"}]},
        "tool_call_id": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["role"],
}
Messages = Annotated[
    ListOf[dict[str, Any]], WithJsonSchema({"type": "array", "items": _MESSAGE, "minItems": 1}), Field(min_length=1)
]


class ChatCompletionRequest(SharedFields):
    """As OpenAI's, with the extensions of vLLM and SGLang."""

    CALLED_HERE: ClassVar[Mapping[str, str]] = {
        **SharedFields.CALLED_HERE,
        "system": "messages, one of them with the role 'system'",
    }

    messages: Messages
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LISTED_LOGPROBS)
    tools: ListOf[dict[str, Any]] | None = None
    tool_choice: Mode = None
    parallel_tool_calls: bool | None = None
    functions: ListOf[dict[str, Any]] | None = None
    function_call: Mode = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    modalities: ListOf[str] | None = None

    def ask(self) -> ChatAsk:
        """
        Raises:
            ApiError: a value is out of range, contradicts others, or asks for what there is not.
        """
        self._refuse()
        most = self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens
        num_top = (self.top_logprobs or 0) if self.logprobs else None
        return ChatAsk(
            messages=self.messages,
            sampling=self.sampling(max_tokens=most, logprobs=num_top),
            tools=[function_tool(idx, tool) for idx, tool in enumerate(self.tools or ())],
            tool_choice=tool_choice(self.tool_choice, is_nested=True, is_single=self.parallel_tool_calls is False),
            continues_last=bool(self.continue_final_message),
            chat_template=self.chat_template,
            template_options=self.chat_template_kwargs,
            cache_salt=self.cache_salt,
            priority=self.priority or 0,
            rid=self.own_id,
            is_streamed=bool(self.stream),
        )

    def names(self) -> dict[str, str]:
        most = {} if self.max_completion_tokens is None else {r"\bmax_tokens\b": "max_completion_tokens"}
        return super().names() | most | {"^prompt$": "messages"}

    def _refuse(self) -> None:
        if self.functions or self.function_call is not None:
            param = "functions" if self.functions else "function_call"
            raise ApiError(400, f"{param} is the old form and not supported: use tools and tool_choice", param=param)
        if self.best_of not in (None, 1, self.n):
            raise ApiError(400, f"best_of={self.best_of} is not supported in a chat: use n", param="best_of")
        if self.modalities and self.modalities != ["text"]:
            raise ApiError(400, f"modalities={self.modalities!r:.80}: this model writes text only", param="modalities")
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, f"top_logprobs={self.top_logprobs} needs logprobs=true", param="top_logprobs")
        is_open = self.add_generation_prompt is not False
        if self.continue_final_message and self.add_generation_prompt:
            raise ApiError(
                400,
                "continue_final_message=true and add_generation_prompt=true contradict each other",
                param="continue_final_message",
            )
        if not is_open and not self.continue_final_message:
            raise ApiError(
                400,
                "add_generation_prompt=false asks for something else than the assistant's next message: render the "
                "conversation yourself and use /v1/completions, or set continue_final_message=true",
                param="add_generation_prompt",
            )
