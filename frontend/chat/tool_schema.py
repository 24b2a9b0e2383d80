"""Tools: Python functions, or schemas of functions, that a model may call."""

from __future__ import annotations

import copy
import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union

from ...grammar_spec import JsonModel
from ...tool_prompts import call_schema as function_call_schema
from ..errors import InvalidProgramError, ToolCallError

TOOL_CHOICES = ("auto", "none", "required")
"""What a tool_choice may be, beside the name of a tool."""

_SIMPLE: Mapping[object, Mapping[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    None: {"type": "null"},
    type(None): {"type": "null"},
    list: {"type": "array"},
    dict: {"type": "object"},
    Any: {},
}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call.

    Attributes:
        schema: what the model is told of it, in OpenAI's form.
        function: None if only a schema was given: who runs the conversation then answers the calls.
    """

    schema: Mapping[str, Any]
    function: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        return str(self.schema["function"]["name"])

    def call(self, arguments: Mapping[str, Any]) -> Any:
        """What the function returns, a coroutine if it is one of those.

        Raises:
            ToolCallError: there is no function, or it does not take these arguments.
            Exception: whatever the function raises.
        """
        if self.function is None:
            raise ToolCallError(
                f"{self.name} was given as a schema, so it cannot be run here: answer the call with "
                "add_tool_result(call, ...)"
            )
        try:
            given = {name: _as_argument(self.function, name, value) for name, value in arguments.items()}
            inspect.signature(self.function).bind(**given)
        except (TypeError, ValueError) as error:
            raise ToolCallError(f"{self.name} does not take the arguments {dict(arguments)!r}: {error}") from error
        return self.function(**given)


def as_tools(tools: Sequence[Callable[..., Any] | Mapping[str, Any]] | None) -> tuple[Tool, ...]:
    """Functions and schemas as tools.

    Raises:
        InvalidProgramError: one is neither, a parameter has no type or one with no JSON schema, or two have one name.
    """
    if tools is None:
        return ()
    if isinstance(tools, Mapping | str) or not isinstance(tools, Sequence):
        raise InvalidProgramError(f"tools={tools!r:.80} is not allowed: give a list of functions or JSON schemas")
    made = tuple(_tool_of(idx, tool) for idx, tool in enumerate(tools))
    names = [tool.name for tool in made]
    for name in names:
        if names.count(name) > 1:
            raise InvalidProgramError(f"tools has more than one {name!r}: a model tells them apart by their names")
        if name in TOOL_CHOICES:
            raise InvalidProgramError(f"a tool cannot be called {name!r}: as a tool_choice that means something else")
    return made


def _tool_of(idx: int, tool: object) -> Tool:
    if isinstance(tool, Mapping):
        function = tool.get("function", tool)
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
            raise InvalidProgramError(
                f"tools[{idx}]={tool!r:.80} is not allowed: a schema is {{'type': 'function', 'function': "
                "{'name': ..., 'description': ..., 'parameters': {...}}}"
            )
        return Tool({"type": "function", "function": copy.deepcopy(dict(function))})
    if callable(tool):
        return Tool(function_schema(tool), tool)
    raise InvalidProgramError(f"tools[{idx}]={tool!r:.80} is not allowed: give a function or a JSON schema of one")


def function_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """The schema of a function, from its signature, its type hints and its docstring.

    Parameters need a type: str, int, float, bool, None, list[...], dict[str, ...], Literal, a union of these, or a
    model class such as pydantic's. Annotated[..., "text"] describes a parameter. One without a default is required.

    Raises:
        InvalidProgramError: a parameter has no type, or one with no JSON schema.
    """
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise InvalidProgramError(f"{function!r:.80} has no name: give a function made with def")
    hints = typing.get_type_hints(function, include_extras=True)
    definitions: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        where = f"parameter {parameter.name!r} of {name}"
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise InvalidProgramError(f"{where} cannot be given by name, as a model gives it")
        if parameter.name not in hints:
            raise InvalidProgramError(f"{where} has no type: write {parameter.name}: str or another one")
        properties[parameter.name] = _schema_of(where, hints[parameter.name], definitions)
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    parameters: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    if definitions:
        parameters["$defs"] = definitions
    description = inspect.getdoc(function)
    described = {"description": description} if description else {}
    return {"type": "function", "function": {"name": name, **described, "parameters": parameters}}


def _schema_of(where: str, hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        texts = [extra for extra in args[1:] if isinstance(extra, str)]
        described = {"description": texts[0]} if texts else {}
        return {**_schema_of(where, args[0], definitions), **described}
    if origin is Literal:
        return {"enum": list(args)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema_of(where, arg, definitions) for arg in args]}
    if origin is list and args:
        return {"type": "array", "items": _schema_of(where, args[0], definitions)}
    if origin is dict and args and args[0] is str:
        return {"type": "object", "additionalProperties": _schema_of(where, args[1], definitions)}
    if isinstance(hint, type) and isinstance(hint, JsonModel):
        schema = hint.model_json_schema()
        definitions.update(schema.pop("$defs", {}))
        return schema
    try:
        return dict(_SIMPLE[hint])
    except (KeyError, TypeError):
        raise InvalidProgramError(
            f"{where} has the type {hint!r}, which has no JSON schema: use str, int, float, bool, list, dict, Literal, "
            "a union of these or a model class"
        ) from None


def _as_argument(function: Callable[..., Any], name: str, value: Any) -> Any:
    """A parameter with a model class gets an object of it; others what the JSON says."""
    hint = typing.get_type_hints(function).get(name)
    if isinstance(hint, type) and isinstance(hint, JsonModel):
        return hint.model_validate_json(json.dumps(value))
    return value


def call_schema(tools: Sequence[Tool], arguments_key: str) -> dict[str, Any]:
    """The JSON schema of a call of one of these tools. References inside a tool's schema lead where they led."""
    return function_call_schema([tool.schema["function"] for tool in tools], arguments_key)
