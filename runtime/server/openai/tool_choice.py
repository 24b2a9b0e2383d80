"""`tool_choice` as OpenAI's endpoints take it: what a choice says is an object of its own in chat completions,
{"type": "function", "function": {"name": ...}}, and stands beside the type in responses."""

from __future__ import annotations

from collections.abc import Mapping

from ..chat.ask import ToolChoice
from ..errors import ApiError


def tool_choice(given: object, *, is_nested: bool, is_single: bool) -> ToolChoice:
    """
    Args:
        is_nested: in the form of chat completions.
        is_single: there may be one call only, whatever is chosen.

    Raises:
        ApiError: it has no known form. Whether there are such tools is looked at by `check_tools`.
    """
    match given:
        case None:
            return ToolChoice(is_single=is_single)
        case "auto" | "none" | "required":
            return ToolChoice(given, is_single=is_single)
        case {"type": "function"}:
            return ToolChoice.of(_function_name("tool_choice", given, is_nested=is_nested))
        case {"type": "allowed_tools"}:
            where, allowed = _inner("tool_choice", given, "allowed_tools", is_nested=is_nested)
            return _allowed(where, allowed, is_nested=is_nested, is_single=is_single)
    known = "'auto', 'none', 'required', or an object with type 'function' or 'allowed_tools'"
    raise ApiError(400, f"tool_choice={given!r:.80} must be {known}", param="tool_choice")


def _allowed(where: str, allowed: Mapping[str, object], *, is_nested: bool, is_single: bool) -> ToolChoice:
    mode, tools = allowed.get("mode"), allowed.get("tools")
    if not isinstance(tools, list):
        raise ApiError(400, f"{where}.tools={tools!r:.80} must be a list of tools", param=f"{where}.tools")
    names = [_function_name(f"{where}.tools[{idx}]", tool, is_nested=is_nested) for idx, tool in enumerate(tools)]
    match mode:
        case "auto" | "required":
            return ToolChoice(mode, tuple(dict.fromkeys(names)), is_single=is_single)
    raise ApiError(400, f"{where}.mode={mode!r:.80} must be 'auto' or 'required'", param=f"{where}.mode")


def _function_name(where: str, tool: object, *, is_nested: bool) -> str:
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    if kind != "function":
        message = f"{where}.type={kind!r:.80} is not served: only tools that the client runs are ('function')"
        raise ApiError(400, message, param=f"{where}.type")
    where, function = _inner(where, tool, "function", is_nested=is_nested)
    name = function.get("name")
    if not isinstance(name, str):
        raise ApiError(400, f"{where}.name={name!r:.80} must be the name of a tool", param=f"{where}.name")
    return name


def _inner(where: str, given: object, kind: str, *, is_nested: bool) -> tuple[str, Mapping[str, object]]:
    """Where it is said what is chosen, and what."""
    if is_nested and isinstance(given, Mapping):
        where, given = f"{where}.{kind}", given.get(kind)
    return where, given if isinstance(given, Mapping) else {}
