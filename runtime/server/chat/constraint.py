"""What a grammar enforces of an answer: its tool calls, and the form of an answer without any."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....sampling_params import SamplingParams
from ....tool_formats import ToolFormat
from ....tool_parameters import closed_parameters
from ...grammar.errors import GrammarError
from ...grammar.tagged_text import Tag, TaggedText
from ...request import Request
from ...sealed_stops import SealedPart
from ..errors import ApiError
from ..preparation import Preparation
from .ask import ChatAsk

_FREE: Mapping[str, Any] = {
    **dict.fromkeys(("json_schema", "regex", "ebnf", "choices", "grammar_backend")),
    "json_whitespace": "fixed",
    "on_incomplete": "return",
}
_ANY_OBJECT = json.dumps({"type": "object"})


@dataclass(frozen=True, slots=True)
class Constrained:
    """A request with what is enforced of its text, prepared.

    Attributes:
        unenforced_tools: names of those whose calls may have any object for arguments: their schemas cannot be enforced
            and nobody insists on it.
    """

    request: Request
    unenforced_tools: tuple[str, ...] = ()


def constrained(preparation: Preparation, request: Request, ask: ChatAsk, tool_format: ToolFormat) -> Constrained:
    """Compiles a grammar: for a worker.

    Raises:
        ApiError: a tool's parameters cannot be enforced, and have to be; or as `Preparation.prepare`.
        GivenUpError: as there.
        InvalidRequestError: the request is refused.
    """
    if not ask.callable_tools:
        return Constrained(preparation.prepare(closing(request)))
    calls = _Calls(preparation, dataclasses.replace(request, sampling_params=_free(ask), closes=True), ask, tool_format)
    schemas = {
        function["name"]: json.dumps(closed_parameters(function), ensure_ascii=False)
        for _, function in ask.callable_tools
    }
    otherwise = ask.sampling.json_schema if ask.tool_choice.mode == "auto" else None
    assert otherwise is None or isinstance(otherwise, str)
    try:
        return Constrained(calls.enforced(schemas, otherwise))
    except GrammarError:
        if otherwise is not None:
            preparation.prepare(request)  # by itself it may be what cannot be enforced, under its own name
        unenforced = calls.unenforceable(schemas)
    return Constrained(calls.enforced(schemas | dict.fromkeys(unenforced, _ANY_OBJECT), otherwise), unenforced)


def closing(request: Request) -> Request:
    """JSON is brought to its end within max_tokens where that can be: half a value is of no use to anybody."""
    spec = request.sampling_params.grammar_spec
    is_json = spec is not None and spec.kind == "json_schema" and not request.sampling_params.use_beam_search
    return dataclasses.replace(request, closes=True) if is_json else request


@dataclass(frozen=True, slots=True)
class _Calls:
    """A request whose calls are to be held to schemas.

    Attributes:
        request: with no other constraint.
    """

    preparation: Preparation
    request: Request
    ask: ChatAsk
    tool_format: ToolFormat

    def enforced(self, schemas: Mapping[str, str], otherwise: str | None = None) -> Request:
        """
        Args:
            schemas: of the arguments, by the names of the tools that may be called.
            otherwise: schema of a text without calls, which is free if it is None.

        Raises:
            GrammarError: a schema cannot be enforced.
        """
        choice, tool_format = self.ask.tool_choice, self.tool_format
        text = TaggedText(
            tuple(Tag(tool_format.call_begin(name), schema, tool_format.call_end) for name, schema in schemas.items()),
            tool_format.mark,
            is_required=choice.mode == "required",
            is_at_start=tool_format.is_whole_text,
            is_single=choice.is_single or not tool_format.is_parallel,
            otherwise=otherwise,
        )
        sealed = SealedPart(tool_format.mark, tool_format.closing or None)
        return self.preparation.prepare(dataclasses.replace(self.request, constraint=text.spec(), sealed=sealed))

    def unenforceable(self, schemas: Mapping[str, str]) -> tuple[str, ...]:
        """The names of the tools whose schemas cannot be enforced, and need not be.

        Raises:
            ApiError: one has to be.
        """
        found = []
        for idx, function in self.ask.callable_tools:
            name = function["name"]
            try:
                self.enforced({name: schemas[name]})
            except GrammarError as error:
                if self.ask.tool_choice.mode == "required" or function.get("strict"):
                    where = f"tools[{idx}].function.parameters"
                    raise ApiError(400, f"{where}: {error}", param=where) from error
                found.append(name)
        return tuple(found)


def _free(ask: ChatAsk) -> SamplingParams:
    """The same parameters for a text that may be anything; where it has to be calls, nothing in it can stop it."""
    unstopped = {"stop": (), "stop_regex": ()} if ask.tool_choice.mode == "required" else {}
    return ask.sampling.replace(**_FREE, **unstopped)
