"""A body of `/v1/responses` as a ChatAsk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..chat.ask import ChatAsk
from ..chat.turns import OpenAIMessage
from ..errors import ApiError
from .responses_input import joined_messages
from .responses_schema import FunctionTool, ResponsesBody, TextFormat

_NAMES = {"max_tokens": "max_output_tokens", "json_schema": "text.format.schema"}
_LOGPROBS = "message.output_text.logprobs"
_NOT_SERVED = {
    "top_logprobs": "/v1/chat/completions tells logprobs",
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
    if _LOGPROBS in (body.include or ()):
        message = f"include={_LOGPROBS!r} is not served: {_NOT_SERVED['top_logprobs']}"
        raise ApiError(400, message, param="include")
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
        _NAMES,
        max_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        json_schema=_schema(body.text.format if body.text else None),
    )
    instructions = [{"role": "system", "content": body.instructions}] if body.instructions else []
    joined = joined_messages([*instructions, *messages])
    if "tool_calls" in joined[-1]:
        raise ApiError(400, "the last of input calls a function: its function_call_output must follow", param="input")
    tools = body.tools or []
    return ChatAsk(
        messages=joined,
        sampling=sampling,
        tools=[_function(f"tools[{idx}]", tool) for idx, tool in enumerate(tools)],
        tool_choice=_tool_choice(body.tool_choice, tools),
        parallel_tool_calls=body.parallel_tool_calls is not False,
        template_options=body.chat_template_kwargs,
        cache_salt=body.cache_salt,
        priority=body.priority or 0,
        rid=body.rid or None,
        is_streamed=bool(body.stream),
    )


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


def _tool_choice(choice: str | dict[str, Any] | None, tools: Sequence[FunctionTool]) -> str:
    if choice is None or choice in ("auto", "none"):
        return str(choice or "auto")
    if choice == "required":
        if not tools:
            raise ApiError(400, "tool_choice='required' needs tools", param="tool_choice")
        return "required"
    if isinstance(choice, str):
        message = f"tool_choice={choice!r:.40} must be 'auto', 'none', 'required' or an object with type 'function'"
        raise ApiError(400, message, param="tool_choice")
    if choice.get("type") != "function":
        message = f"tool_choice.type={choice.get('type')!r:.40} is not served: only 'function' is"
        raise ApiError(400, message, param="tool_choice.type")
    name = choice.get("name")
    if not isinstance(name, str) or name not in {tool.name for tool in tools}:
        raise ApiError(400, f"tool_choice.name={name!r:.80} is none of the tools", param="tool_choice.name")
    return name
