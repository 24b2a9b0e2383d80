"""The tools of a request, checked: what is wrong with them is said before anything is rendered or compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ApiError
from .ask import ChatAsk

MAX_TOOLS = 256
"""Where one of their schemas cannot be enforced, a grammar is compiled for each to find which."""


def function_tool(idx: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as OpenAI's clients send it, without what is no part of the form.

    Raises:
        ApiError: it is no function.
    """
    kind = tool.get("type", "function")
    if kind != "function":
        where = f"tools[{idx}].type"
        raise ApiError(400, f"{where}={kind!r:.80} is not supported: it must be 'function'", param=where)
    return {"type": "function", "function": tool.get("function")}


def check_tools(ask: ChatAsk) -> None:
    """
    Raises:
        ApiError: as `check_functions`; or a tool is chosen that is not there, or one is to be called and none may be;
            or the constraint on the text leaves no room for calls.
    """
    check_functions(ask.tools)
    names = {tool["function"]["name"] for tool in ask.tools}
    for name in ask.tool_choice.names or ():
        if name not in names:
            known = ", ".join(sorted(names))
            message = f"tool_choice names {name!r:.80}, which is none of the tools: {known:.400}"
            raise ApiError(400, message, param="tool_choice")
    if ask.tool_choice.mode == "required" and not ask.callable_tools:
        raise ApiError(400, "tool_choice asks for a call, and there are no tools to be called", param="tool_choice")
    spec = ask.sampling.grammar_spec
    is_plain = spec is None or (spec.kind == "json_schema" and spec.json_whitespace == "fixed" and spec.backend is None)
    if ask.tool_choice.mode == "auto" and ask.callable_tools and not is_plain:
        raise ApiError(
            400,
            "tools go with a response_format of JSON only: leave out the other constraint, or take tool_choice='none'",
            param="tools",
        )


def check_functions(tools: Sequence[Mapping[str, Any]]) -> None:
    """
    Args:
        tools: in OpenAI's form.

    Raises:
        ApiError: there are too many; or one has no name, or that of another one, or parameters that are no schema of an
            object.
    """
    if len(tools) > MAX_TOOLS:
        raise ApiError(400, f"tools has {len(tools)} functions, at most {MAX_TOOLS} go", param="tools")
    names = set()
    for idx, tool in enumerate(tools):
        where = f"tools[{idx}].function"
        function = tool.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
            raise ApiError(400, f"{where}.name={name!r:.80} must be the name of a function", param=f"{where}.name")
        if name in names:
            raise ApiError(400, f"{where}.name={name!r:.80} is the name of another tool too", param=f"{where}.name")
        _check_parameters(f"{where}.parameters", function.get("parameters"))
        names.add(name)


def _check_parameters(where: str, parameters: object) -> None:
    if parameters is None:
        return
    if not isinstance(parameters, Mapping):
        raise ApiError(400, f"{where} must be a JSON schema, an object", param=where)
    kind = parameters.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        message = f"{where}.type={kind!r:.80} must be 'object': arguments have names"
        raise ApiError(400, message, param=f"{where}.type")
