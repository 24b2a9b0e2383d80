"""Fields by which one endpoint limits or shapes an answer, and another does not: refused by name, never dropped.

What no endpoint knows is accepted silently, as clients send much. But a limit that one API has and another spells
otherwise was meant, and an answer that does not keep it would pass for one that does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ...suggestions import did_you_mean
from .errors import ApiError

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"


@dataclass(frozen=True, slots=True)
class Meaning:
    """One thing that can be said of an answer.

    Attributes:
        names: what the APIs call it; "text.format" is the field `format` of `text`.
        at: an endpoint that knows it.
    """

    names: tuple[str, ...]
    at: str = CHAT


MEANINGS: Mapping[str, Meaning] = {
    "max_tokens": Meaning(("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens")),
    "min_tokens": Meaning(("min_tokens", "min_new_tokens")),
    "stop": Meaning(("stop", "stop_sequences")),
    "stop_regex": Meaning(("stop_regex",), GENERATE),
    "stop_token_ids": Meaning(("stop_token_ids",)),
    "regex": Meaning(("regex", "guided_regex")),
    "ebnf": Meaning(("ebnf", "guided_grammar")),
    "choices": Meaning(("choices", "guided_choice")),
    "json_schema": Meaning(
        ("json_schema", "guided_json", "response_format", "output_format", "text.format", "output_config.format")
    ),
    "structured_outputs": Meaning(("structured_outputs",)),
    "json_whitespace": Meaning(("json_whitespace",), GENERATE),
    "on_incomplete": Meaning(("on_incomplete",), GENERATE),
    "grammar_backend": Meaning(("grammar_backend",), GENERATE),
    "system": Meaning(("system", "instructions"), "/v1/messages"),
    "previous_response_id": Meaning(("previous_response_id",), "/v1/responses"),
    "logprobs": Meaning(("logprobs", "return_logprob")),
    "tool_choice": Meaning(("tool_choice",)),
    "logit_bias": Meaning(("logit_bias",)),
    "n": Meaning(("n",)),
    "best_of": Meaning(("best_of",), COMPLETIONS),
    "sampling_params": Meaning(("sampling_params",), GENERATE),
    "seed": Meaning(("seed", "sampling_seed")),
    **{
        name: Meaning((name,))
        for name in (
            *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
            *("ignore_eos", "skip_special_tokens"),
        )
    },
    "include_stop_str_in_output": Meaning(("include_stop_str_in_output", "no_stop_trim")),
}
"""By what SamplingParams calls it, where that has it."""

_MAX_COMPARED = 64
"""Names of a body, and characters of one."""
_NOTHING: tuple[object, ...] = (None, False, "", [], {})
_TEXT_FORMAT = {"type": "text"}
ASKS_FOR_NOTHING: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(("n", "best_of"), (*_NOTHING, 1)),
    **dict.fromkeys(("min_tokens", "min_new_tokens"), (*_NOTHING, 0)),
    **dict.fromkeys(("response_format", "output_format", "text.format"), (*_NOTHING, _TEXT_FORMAT)),
    "tool_choice": (*_NOTHING, "none", "auto"),
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "min_p"), (*_NOTHING, 0, 0.0)),
    **dict.fromkeys(("repetition_penalty", "top_p"), (*_NOTHING, 1, 1.0)),
    "top_k": (*_NOTHING, -1),
    "on_incomplete": (*_NOTHING, "return"),
    "json_whitespace": (*_NOTHING, "fixed"),
    "skip_special_tokens": (None, True),
}
"""Values with which a field changes nothing, by its name; of others they are null, false and what is empty. Clients and
routers send such defaults along."""


def refuse_foreign(body: Mapping[str, Any], known: Collection[str], called_here: Mapping[str, str]) -> None:
    """
    Args:
        known: the fields of the endpoint.
        called_here: by meaning, what to use here where no field of `known` is called by a name of it.

    Raises:
        ApiError: 400, a field that is not known limits or shapes the answer, and none that is known says the same.
    """
    for meaning, about in MEANINGS.items():
        own = called_here.get(meaning) or next((name for name in about.names if _root(name) in known), None)
        for name in about.names:
            value = _value(body, name)
            if _root(name) in known or _is_one_of(value, ASKS_FOR_NOTHING.get(name, _NOTHING)):
                continue
            if own is not None and _is_one_of(value, [_value(body, own)]):
                continue
            instead = f"use {own}" if own is not None else f"{about.at} has it; leave it out here"
            raise ApiError(400, f"{name} is not a field of this endpoint: {instead}", param=name)


def refuse_misspelt(body: Mapping[str, Any], known: Collection[str]) -> None:
    """
    Raises:
        ApiError: 400, a field that is not known is spelt nearly as one that is.
    """
    for name in _looked_at(name for name in body if name not in known):
        meant = did_you_mean(name, known, cutoff=0.9)
        if meant != ";":
            raise ApiError(400, f"{name:.80} is not a field of this endpoint{meant}", param=f"{name:.80}")


def missing(name: str, body: object) -> str:
    """What to say of a field that a body has to have, and has not: also which one may have been meant."""
    given: Iterable[str] = body if isinstance(body, Mapping) else ()
    for other, at in (("messages", CHAT), ("prompt", COMPLETIONS), ("input", "/v1/responses"), ("text", GENERATE)):
        if other in given and name in ("messages", "prompt"):
            return f"{name} is missing: {other} is for {at}"
    meant = next((other for other in _looked_at(given) if did_you_mean(other, [name]) != ";"), None)
    return f"{name} is missing" + (f"; did you mean it by {meant!r:.80}?" if meant is not None else "")


def _looked_at(names: Iterable[str]) -> Iterable[str]:
    """Comparing spellings takes its time, and nobody misspells a field of a thousand."""
    return (name for name in islice(names, _MAX_COMPARED) if len(name) <= _MAX_COMPARED)


def _root(name: str) -> str:
    return name.partition(".")[0]


def _value(body: object, name: str) -> object:
    for part in name.split("."):
        body = body.get(part) if isinstance(body, Mapping) else None
    return body


def _is_one_of(value: object, others: Iterable[object]) -> bool:
    """0 is not False here."""
    return any(type(value) is type(other) and value == other for other in others)
