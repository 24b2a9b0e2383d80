"""Outline: what is looked at of a `/generate` before it has its place. It costs little, whatever was asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...generate_request import check_flag, one_each
from ..config import ServerConfig
from ..errors import ApiError

Fields = Mapping[str, Any]

MAX_RID_CHARS = 256
_CONSTRAINTS = ("regex", "json_schema", "ebnf", "choices", "stop_regex")


@dataclass(frozen=True, slots=True)
class Outline:
    """
    Attributes:
        is_streamed: answers are wanted as they come.
        is_constrained: there are grammars to be compiled.
        num_samples: over all prompts.
        rids: the client's name for all of it, or one for each prompt; None for none.
        are_scored: for each prompt, whether nothing is generated.
    """

    is_streamed: bool
    is_constrained: bool
    num_prompts: int
    num_samples: int
    rids: str | list[str] | None
    are_scored: list[bool]


def outline_of(fields: Fields, config: ServerConfig) -> Outline:
    """
    Args:
        fields: those of GenerateBody that are not None, by name.

    Raises:
        ApiError: there are more prompts or samples than the server takes, or a name is malformed.
        InvalidRequestError: so is another field.
    """
    is_streamed = fields.get("stream", False)
    check_flag("stream", is_streamed)
    num_prompts = _count_prompts(fields, config.max_prompts)
    given = one_each("sampling_params", fields.get("sampling_params"), num_prompts, Mapping | None)
    params = [each or {} for each in given]
    return Outline(
        is_streamed=is_streamed,
        is_constrained=any(each.get(name) for each in params for name in _CONSTRAINTS),
        num_prompts=num_prompts,
        num_samples=sum(_count_samples(each, config.max_n) for each in params),
        rids=_read_rids(fields.get("rid"), num_prompts),
        are_scored=[_is_scored(each) for each in params],
    )


def _count_prompts(fields: Fields, most: int) -> int:
    text, ids = fields.get("text"), fields.get("input_ids")
    if isinstance(text, list):
        name, count = "text", len(text)
    else:
        name, count = "input_ids", len(ids) if isinstance(ids, list) and ids and isinstance(ids[0], list) else 1
    if count > most:
        raise ApiError(400, f"{name} has {count} prompts, and this server takes {most} at a time", param=name)
    return count


def _count_samples(params: Fields, most: int) -> int:
    """How many samples of one prompt. What is no number is refused later, with the reason."""
    count = 1
    for name in ("n", "best_of"):
        value = params.get(name)
        if isinstance(value, int) and value > most:
            raise ApiError(400, f"{name}={value} is too many: this server takes at most {most}", param=name)
        count = max(count, value) if isinstance(value, int) else count
    return 1 if _is_scored(params) else count


def _is_scored(params: Fields) -> bool:
    return bool(params.get("max_new_tokens", 1) == 0)


def _read_rids(given: Any, num_prompts: int) -> str | list[str] | None:
    if given is None:
        return None
    rids = [given] if isinstance(given, str) else one_each("rid", given, num_prompts, str)
    for rid in rids:
        if not 1 <= len(rid) <= MAX_RID_CHARS:
            raise ApiError(400, f"rid={rid!r:.80} must have 1 to {MAX_RID_CHARS} characters", param="rid")
    return given if isinstance(given, str) else rids
