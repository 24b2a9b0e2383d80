"""What a grammar enforces of an answer: its tool calls, and the form of an answer without any."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....sampling_params import SamplingParams
from ....tool_formats import ToolFormat
from ....tool_parameters import closed_parameters
from ...grammar.errors import GrammarError
from ...grammar.tagged_text import Tag, TaggedText
from ...llm import LLM
from ...request import Request
from ..errors import ApiError
from .ask import ChatAsk

_FREE: Mapping[str, Any] = {
    **dict.fromkeys(("json_schema", "regex", "ebnf", "choices", "grammar_backend")),
    "json_whitespace": "fixed",
    "on_incomplete": "return",
}
_ANY_OBJECT = json.dumps({"type": "object"})


def reads_calls(ask: ChatAsk) -> bool:
    return bool(ask.tools) and ask.tool_choice != "none"


def check_tools(ask: ChatAsk) -> None:
    """
    Raises:
        ApiError: a tool has no name, or one that another has too, or parameters that are no schema of an object; there
            is no tool to choose; or the constraint on the text leaves no room for calls.
    """
    names: list[str] = []
    for idx, tool in enumerate(ask.tools):
        where = f"tools[{idx}].function"
        function = tool.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
            raise ApiError(400, f"{where}.name={name!r:.80} must be the name of a function", param=f"{where}.name")
        if name in names:
            raise ApiError(400, f"{where}.name={name!r:.80} is the name of another tool too", param=f"{where}.name")
        if not isinstance(function.get("parameters"), Mapping | None):
            raise ApiError(400, f"{where}.parameters must be a JSON schema, an object", param=f"{where}.parameters")
        kind = (function.get("parameters") or {}).get("type", "object")
        if kind != "object" and not (isinstance(kind, list) and "object" in kind):
            raise ApiError(
                400,
                f"{where}.parameters.type={kind!r:.80} must be 'object': arguments have names",
                param=f"{where}.parameters.type",
            )
        names.append(name)
    if ask.tool_choice not in ("auto", "none") and not names:
        raise ApiError(400, f"tool_choice={ask.tool_choice!r:.80} needs tools", param="tool_choice")
    if ask.tool_choice not in ("auto", "none", "required", *names):
        known = ", ".join(names)
        raise ApiError(400, f"tool_choice={ask.tool_choice!r:.80} is none of the tools: {known}", param="tool_choice")
    spec = ask.sampling.grammar_spec
    is_plain = spec is None or (spec.kind == "json_schema" and spec.json_whitespace == "fixed" and spec.backend is None)
    if reads_calls(ask) and ask.tool_choice == "auto" and not is_plain:
        raise ApiError(
            400, "tools go with a response_format of JSON only: leave out the other constraint, or tool_choice='none'"
        )


@dataclass(frozen=True, slots=True)
class Constrained:
    """A request with what is enforced of its text, prepared.

    Attributes:
        unenforced_tools: names of those whose calls may have any object for arguments: their schemas cannot be enforced
            and nobody insists on it.
    """

    request: Request
    unenforced_tools: tuple[str, ...] = ()


def constrained(llm: LLM, request: Request, ask: ChatAsk, tool_format: ToolFormat) -> Constrained:
    """Compiles a grammar: for a worker.

    Raises:
        ApiError: a tool's parameters cannot be enforced, and have to be.
        InvalidRequestError: the request is refused.
    """
    if not reads_calls(ask):
        return Constrained(llm.prepare(closing(request)))
    request = dataclasses.replace(request, sampling_params=_free(ask.sampling), closes=True)
    schemas = [json.dumps(closed_parameters(tool["function"]), ensure_ascii=False) for tool in ask.tools]
    try:
        return Constrained(_with_calls(llm, request, ask, tool_format, schemas))
    except GrammarError:
        held = [_enforceable(llm, request, ask, tool_format, schemas, idx) for idx in range(len(schemas))]
    names = (tool["function"]["name"] for tool in ask.tools)
    unenforced = tuple(name for name, was, now in zip(names, schemas, held, strict=True) if was != now)
    return Constrained(_with_calls(llm, request, ask, tool_format, held), unenforced)


def closing(request: Request) -> Request:
    """JSON is brought to its end within max_tokens where that can be: half a value is of no use to anybody."""
    spec = request.sampling_params.grammar_spec
    is_json = spec is not None and spec.kind == "json_schema" and not request.sampling_params.use_beam_search
    return dataclasses.replace(request, closes=True) if is_json else request


def _with_calls(
    llm: LLM, request: Request, ask: ChatAsk, tool_format: ToolFormat, schemas: Sequence[str], only: int | None = None
) -> Request:
    """
    Args:
        schemas: of the arguments of all tools.
        only: consider this tool alone.
    """
    named = [(tool["function"]["name"], schema) for tool, schema in zip(ask.tools, schemas, strict=True)]
    is_forced = ask.tool_choice != "auto"
    is_one_asked_for = ask.tool_choice not in ("auto", "required")  # by its name: to be called, and called once
    if only is not None:
        named = [named[only]]
    elif is_one_asked_for:
        named = [(name, schema) for name, schema in named if name == ask.tool_choice]
    tags = tuple(Tag(tool_format.call_begin(name), schema, tool_format.call_end) for name, schema in named)
    otherwise = ask.sampling.json_schema if not is_forced and only is None else None
    assert otherwise is None or isinstance(otherwise, str)
    text = TaggedText(
        tags,
        tool_format.mark,
        is_required=is_forced,
        is_at_start=tool_format.is_whole_text,
        is_single=is_one_asked_for or not (ask.parallel_tool_calls and tool_format.is_parallel),
        otherwise=otherwise,
    )
    return llm.prepare(dataclasses.replace(request, constraint=text.spec()))


def _enforceable(
    llm: LLM, request: Request, ask: ChatAsk, tool_format: ToolFormat, schemas: Sequence[str], idx: int
) -> str:
    """The schema of a tool's arguments, or that of any object if it cannot be enforced and need not be."""
    function = ask.tools[idx]["function"]
    if ask.tool_choice not in ("auto", "required", function["name"]):
        return schemas[idx]
    try:
        _with_calls(llm, request, ask, tool_format, schemas, only=idx)
    except GrammarError as error:
        if ask.tool_choice == "auto" and not function.get("strict"):
            return _ANY_OBJECT
        where = f"tools[{idx}].function.parameters"
        raise ApiError(400, f"{where}: {error}", param=where) from error
    return schemas[idx]


def _free(sampling: SamplingParams) -> SamplingParams:
    """The same parameters for a text that may be anything."""
    return sampling.replace(**_FREE)
