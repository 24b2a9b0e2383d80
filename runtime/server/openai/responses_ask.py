"""A body of `/v1/responses` as a ChatAsk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..chat.ask import ChatAsk
from ..chat.turns import OpenAIMessage, joined_turns
from ..errors import ApiError
from .responses_schema import FunctionTool, ResponsesBody, TextFormat
from .tool_choice import tool_choice

NAMES = {
    r"tools\[(\d+)\]\.function": r"tools[\1]",
    "response_format": "text.format",
    r"^json_schema\b": "text.format.schema",
    "max_tokens": "max_output_tokens",
    "^prompt$": "input",
}
"""For `in_words_of`: what a ChatAsk calls fields that have other names here."""
_NOT_SERVED = {
    "background": "an answer is made while its client waits",
    "conversation": "conversations are not kept as such; go on from a previous_response_id",
    "prompt": "no prompts are kept here; write it into instructions and input",
}


def check_served(body: ResponsesBody) -> None:
    """
    Raises:
        ApiError: 400, something is asked for that is not served.
    """
    for name, instead in _NOT_SERVED.items():
        if getattr(body, name):
            raise ApiError(400, f"{name} is not served: {instead}", param=name)
    if body.input is None or body.input == []:
        raise ApiError(400, "input is missing: give a text or a list of items", param="input")


def chat_ask(body: ResponsesBody, messages: Sequence[OpenAIMessage]) -> ChatAsk:
    """
    Args:
        messages: the whole conversation without instructions.

    Raises:
        ApiError: 400, something is asked for that is not served, or a value is wrong.
    """
    sampling = body.sampling_params(
        NAMES,
        max_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        logprobs=body.num_logprobs,
        json_schema=_schema(body.text.format if body.text else None),
    )
    instructions = [{"role": "system", "content": body.instructions}] if body.instructions else []
    joined = joined_turns([*instructions, *messages])
    if not messages:
        raise ApiError(400, "input has thoughts only: give a message to be answered", param="input")
    if "tool_calls" in joined[-1]:
        raise ApiError(400, "the last of input calls a function: its function_call_output must follow", param="input")
    ask = ChatAsk(
        messages=joined,
        sampling=sampling,
        tools=[_function(f"tools[{idx}]", tool) for idx, tool in enumerate(body.tools or ())],
        tool_choice=tool_choice(body.tool_choice, is_nested=False, is_single=body.parallel_tool_calls is False),
        template_options=body.chat_template_kwargs,
        cache_salt=body.cache_salt,
        priority=body.priority or 0,
        rid=body.rid or None,
        is_streamed=bool(body.stream),
    )
    if body.num_logprobs is not None and ask.callable_tools:  # whose tokens are no part of any text
        param = "top_logprobs" if body.top_logprobs else "include"
        message = f"{param}: logprobs are told of texts without calls; leave out tools, or take tool_choice='none'"
        raise ApiError(400, message, param=param)
    return ask


def _schema(text_format: TextFormat | None) -> dict[str, Any] | None:
    if text_format is None or text_format.type == "text":
        return None
    if text_format.type == "json_object":
        return {"type": "object"}
    if text_format.schema_ is None:
        raise ApiError(400, "text.format.schema is missing", param="text.format.schema")
    return text_format.schema_


def _function(where: str, tool: FunctionTool) -> dict[str, Any]:
    if tool.type != "function":
        message = f"{where}.type={tool.type!r:.80} is not served: only tools that the client runs are ('function')"
        raise ApiError(400, message, param=f"{where}.type")
    if not tool.name:
        raise ApiError(400, f"{where}.name is missing", param=f"{where}.name")
    about = {} if tool.description is None else {"description": tool.description}
    parameters = tool.parameters or {"type": "object", "properties": {}}
    strict = {"strict": True} if tool.strict else {}
    return {"type": "function", "function": {"name": tool.name, **about, "parameters": parameters, **strict}}
