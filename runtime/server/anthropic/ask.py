"""A body of `/v1/messages` as a ChatAsk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ....sampling_params import SamplingParams
from ..chat.ask import ChatAsk, ToolChoice
from ..errors import ApiError
from .conversation import openai_messages
from .schema import CountTokensBody, GivenChoice, MessagesBody, Tool

NAMES = {
    r"tools\[(\d+)\]\.function\.parameters": r"tools[\1].input_schema",
    r"tools\[(\d+)\]\.function": r"tools[\1]",
    "response_format": "output_config.format",
    r"^json_schema\b": "output_config.format.schema",
    r"^stop\b": "stop_sequences",
}
"""For `in_words_of`: what a ChatAsk calls fields that have other names here."""


def chat_ask(body: MessagesBody) -> ChatAsk:
    """
    Raises:
        ApiError: 400, something is asked for that is not served, or a value is wrong.
    """
    is_streamed = bool(body.stream)
    if body.max_tokens == 0:
        ask = _ask(body, SamplingParams(max_tokens=1, temperature=0.0), ToolChoice(), is_streamed=is_streamed)
        return replace(ask, is_prompt_only=True)
    sampling = body.sampling_params(
        NAMES,
        max_tokens=body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        stop=body.stop_sequences,
        json_schema=body.output_config.format.schema_ if body.output_config and body.output_config.format else None,
    )
    return _ask(body, sampling, _tool_choice(body.tool_choice), is_streamed=is_streamed)


def prompt_ask(body: CountTokensBody) -> ChatAsk:
    """The same prompt, for counting its tokens.

    Raises:
        ApiError: as `chat_ask`.
    """
    return _ask(body, SamplingParams(max_tokens=1), _tool_choice(body.tool_choice))


def _ask(
    body: CountTokensBody, sampling: SamplingParams, tool_choice: ToolChoice, *, is_streamed: bool = False
) -> ChatAsk:
    if body.thinking is not None and body.thinking.type == "enabled":
        message = "thinking.type='enabled' is not served: no thoughts are kept apart here; leave thinking to the model"
        raise ApiError(400, f"{message} ('adaptive') or out ('disabled')", param="thinking.type")
    if body.mcp_servers:
        raise ApiError(400, "mcp_servers is not served: this server calls no other ones", param="mcp_servers")
    if body.messages[-1].role == "system":
        raise ApiError(400, "the last of messages has the role system: nobody has asked anything", param="messages")
    messages = openai_messages(body.system, body.messages)
    if "tool_calls" in messages[-1]:
        raise ApiError(400, "the last of messages calls a tool: its tool_result must follow", param="messages")
    return ChatAsk(
        messages=messages,
        sampling=sampling,
        tools=[_function(f"tools[{idx}]", tool) for idx, tool in enumerate(body.tools or ())],
        tool_choice=tool_choice,
        continues_last=messages[-1]["role"] == "assistant",
        template_options=body.chat_template_kwargs,
        cache_salt=body.cache_salt,
        priority=body.priority or 0,
        rid=body.rid or None,
        is_streamed=is_streamed,
        is_cut_at_context=True,
    )


def _function(where: str, tool: Tool) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        message = f"{where}.type={tool.type!r:.80} is not served: only tools that the client runs are ('custom')"
        raise ApiError(400, message, param=f"{where}.type")
    if not tool.name:
        raise ApiError(400, f"{where}.name is missing", param=f"{where}.name")
    if tool.input_schema is None:
        raise ApiError(400, f"{where}.input_schema is missing", param=f"{where}.input_schema")
    about = {} if tool.description is None else {"description": tool.description}
    strict = {"strict": True} if tool.strict else {}
    return {"type": "function", "function": {"name": tool.name, **about, "parameters": tool.input_schema, **strict}}


def _tool_choice(given: GivenChoice | None) -> ToolChoice:
    if given is None:
        return ToolChoice()
    is_single = bool(given.disable_parallel_tool_use)
    match given.type:
        case "tool":
            if given.name is None:
                raise ApiError(400, "tool_choice.name is missing: which tool?", param="tool_choice.name")
            return ToolChoice.of(given.name)
        case "any":
            return ToolChoice("required", is_single=is_single)
        case "auto" | "none":
            return ToolChoice(given.type, is_single=is_single)
