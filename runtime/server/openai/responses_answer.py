"""What a chat turn has become, as `/v1/responses` says it: a response, and the items that it is made of."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ...outputs import RequestOutput
from ..chat.ask import ChatMessage, SampleEnd
from ..chat.turns import OpenAIMessage
from ..errors import ApiError
from .responses_input import call_message
from .responses_schema import ResponsesBody

Json = dict[str, Any]


def new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(16)}"


@dataclass(frozen=True, slots=True)
class Envelope:
    """What surrounds the items of an answer.

    Attributes:
        body: what was asked, which a response repeats.
        model: the name to answer by.
        is_stored: others may go on from it.
    """

    body: ResponsesBody
    model: str
    is_stored: bool
    response_id: str = field(default_factory=lambda: new_id("resp"))
    created_at: int = field(default_factory=lambda: int(time.time()))

    def response(self, status: str, items: list[Json], *, usage: Json | None = None, **more: Json) -> Json:
        body = self.body
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": self.model,
            "output": items,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": None, "summary": None},
            "service_tier": "default",
            "store": self.is_stored,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": self._text_format()},
            "tool_choice": body.tool_choice or "auto",
            "tools": [tool.model_dump() for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": body.truncation or "disabled",
            "usage": usage,
            "user": body.user,
            "metadata": body.metadata or {},
            **more,
        }

    def ended(self, items: list[Json], end: SampleEnd, output: RequestOutput) -> Json:
        """Completed, or incomplete because it was cut off."""
        usage = _usage(output, end.num_tokens)
        if end.finish == "length":
            details = {"reason": "max_output_tokens"}
            return self.response("incomplete", items, usage=usage, incomplete_details=details)
        return self.response("completed", items, usage=usage)

    def failed(self, items: list[Json], error: ApiError) -> Json:
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        return self.response("failed", items, error={"code": code, "message": error.message})

    def _text_format(self) -> Json:
        given = self.body.text.format if self.body.text else None
        return {"type": "text"} if given is None else given.model_dump(by_alias=True, exclude_none=True)


def message_item(item_id: str, parts: list[Json], status: str) -> Json:
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": parts}


def text_part(text: str, logprobs: list[Json]) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def call_item(item_id: str, call_id: str, name: str, arguments: str, status: str) -> Json:
    head = {"id": item_id, "type": "function_call", "status": status}
    return {**head, "call_id": call_id, "name": name, "arguments": arguments}


def message_items(message: ChatMessage, logprobs: list[Json]) -> list[Json]:
    """The text first, if there is any, or nothing else; the last item is incomplete if it was cut off.

    Args:
        logprobs: of the text.
    """
    items = [
        call_item(new_id("fc"), call.call_id, call.name, call.arguments, "completed") for call in message.tool_calls
    ]
    if message.content or not items:
        items.insert(0, message_item(new_id("msg"), [text_part(message.content, logprobs)], "completed"))
    if message.end.finish == "length":
        items[-1]["status"] = "incomplete"
    return items


def answer_messages(items: Iterable[Json]) -> list[OpenAIMessage]:
    """What was answered, for the turns that follow; one message per item. A call that was cut off is left out."""
    messages: list[OpenAIMessage] = []
    for item in items:
        if item["type"] == "message":
            messages.append({"role": "assistant", "content": item["content"][0]["text"]})
        elif item["status"] == "completed":
            call = call_message(item["call_id"], item["name"], item["arguments"])
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
    return messages


def _usage(output: RequestOutput, num_generated: int) -> Json:
    num_prompt = len(output.prompt_token_ids)
    return {
        "input_tokens": num_prompt,
        "input_tokens_details": {"cached_tokens": output.num_cached_tokens, "cache_write_tokens": 0},
        "output_tokens": num_generated,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": num_prompt + num_generated,
    }
