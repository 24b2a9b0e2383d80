"""A ProgramTrace as one JSON object.

    {"format": "ramet-program-trace", "version": 1, "name": ..., "run_id": ..., "calls": [
      {"call_id": 1, "kind": "gen", ..., "prompt_token_ids": [1, 2, 3, ...], "prompt_text": "..."},
      {"call_id": 3, "kind": "gen", "after": 1, ..., "prompt_token_ids": [45, 9, 8], "prompt_text": [120, "..."]}]}

The prompts of a run grow from one another. A call with `after` gives of its prompt only what differs from that call's
prompt and output: how many tokens they have in common, then the rest; and the same for the text, in characters.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..token_log import common_prefix_len
from .json_codec import JsonShapeError, from_jsonable, parse_text, to_jsonable
from .program_trace import CallTrace, ProgramTrace

FORMAT = "ramet-program-trace"
VERSION = 1
_MAX_BRANCHES = 1_000_000


class ProgramTraceFormatError(ValueError):
    """A text or file is not a program trace; the message says where it is not."""


def trace_to_json(trace: ProgramTrace) -> str:
    """See `ProgramTrace.to_json`."""
    value = {"format": FORMAT, "version": VERSION, **to_jsonable(replace(trace, calls=()))}
    value["calls"] = [_call_to_jsonable(trace.calls, call) for call in trace.calls]
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def trace_from_json(text: str | bytes) -> ProgramTrace:
    """See `ProgramTrace.from_json`."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ProgramTraceFormatError(f"it is not JSON: {error}") from None
    try:
        return _trace_from_jsonable(value)
    except (JsonShapeError, RecursionError) as error:
        raise ProgramTraceFormatError(f"it is no program trace: {error}") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"it has {name}, which is no JSON")


def _trace_from_jsonable(value: object) -> ProgramTrace:
    if not isinstance(value, dict):
        raise JsonShapeError("it must be an object")
    if value.get("format") != FORMAT:
        raise JsonShapeError(f"format={value.get('format')!r}, and one has {FORMAT!r}")
    if value.get("version") != VERSION:
        raise JsonShapeError(f"version={value.get('version')!r}, and this program reads version {VERSION}")
    rows = value.get("calls", [])
    if not isinstance(rows, list):
        raise JsonShapeError("calls must be a list")
    rest = {name: item for name, item in value.items() if name not in ("format", "version", "calls")}
    calls: list[CallTrace] = []
    for idx, row in enumerate(rows):
        calls.append(_call_from_jsonable(calls, row, f"calls[{idx}]"))
    for call in calls:
        _check_relations(call, len(calls))
    return replace(from_jsonable(ProgramTrace, rest), calls=tuple(calls))


def _check_relations(call: CallTrace, num_calls: int) -> None:
    place = f"calls[{call.call_id}]"
    if not all(0 <= parent_id < num_calls for parent_id in call.parent_ids):
        raise JsonShapeError(f"{place}.parent_ids={list(call.parent_ids)} must be ids of the {num_calls} calls")
    if call.num_branches > _MAX_BRANCHES:
        raise JsonShapeError(f"{place}.num_branches={call.num_branches:,}, at most {_MAX_BRANCHES:,} can be shown")


def _call_to_jsonable(calls: Sequence[CallTrace], call: CallTrace) -> dict[str, Any]:
    value: dict[str, Any] = to_jsonable(call)
    base = prompt_base(calls, call)
    if base is None:
        return value
    value["after"] = base.call_id
    same_len = common_prefix_len(_tokens_after(base), call.prompt_token_ids)
    value["prompt_token_ids"] = [same_len, *call.prompt_token_ids[same_len:]]
    if call.prompt_text is not None:
        base_text = _text_after(base)
        num_chars = _num_common_chars(base_text, call.prompt_text)
        value["prompt_text"] = [num_chars, to_jsonable(call.prompt_text[num_chars:])]
    return value


def _call_from_jsonable(before: Sequence[CallTrace], row: object, place: str) -> CallTrace:
    if not isinstance(row, dict) or "after" not in row:
        return _checked_id(from_jsonable(CallTrace, row, place), before, place)
    row = dict(row)
    base_id, token_ids, text = row.pop("after"), row.get("prompt_token_ids"), row.get("prompt_text")
    if type(base_id) is not int or not 0 <= base_id < len(before):
        raise JsonShapeError(f"{place}.after must be an earlier call, not {base_id!r}")
    base = before[base_id]
    if not isinstance(token_ids, list) or not token_ids or not _is_count(token_ids[0], len(_tokens_after(base))):
        raise JsonShapeError(f"{place}.prompt_token_ids must begin with how many tokens of call {base_id} it shares")
    row["prompt_token_ids"] = [*_tokens_after(base)[: token_ids[0]], *token_ids[1:]]
    if text is not None:
        base_text = _text_after(base)
        if not isinstance(text, list) or len(text) != 2 or not _is_count(text[0], len(base_text)):
            raise JsonShapeError(
                f"{place}.prompt_text must be how many characters of call {base_id} it shares, and a text"
            )
        rest = parse_text(text[1], f"{place}.prompt_text[1]")
        row["prompt_text"] = to_jsonable(base_text[: text[0]] + rest)
    return _checked_id(from_jsonable(CallTrace, row, place), before, place)


def _is_count(value: object, limit: int) -> bool:
    return type(value) is int and 0 <= value <= limit


def _checked_id(call: CallTrace, before: Sequence[CallTrace], place: str) -> CallTrace:
    if call.call_id != len(before):
        raise JsonShapeError(f"{place}.call_id must be {len(before)}, not {call.call_id}")
    return call


def prompt_base(calls: Sequence[CallTrace], call: CallTrace) -> CallTrace | None:
    """The nearest call before this one in its branch, or in the one that was forked, that has a prompt; None if this
    one has no prompt or is the first."""
    if not call.prompt_token_ids:
        return None
    current = call
    while current.parent_ids and current.parent_ids[0] < current.call_id:
        current = calls[current.parent_ids[0]]
        if current.prompt_token_ids:
            return current
    return None


def _tokens_after(call: CallTrace) -> tuple[int, ...]:
    return (*call.prompt_token_ids, *call.output_token_ids)


def _text_after(call: CallTrace) -> str:
    return (call.prompt_text or "") + call.text


def _num_common_chars(left: str, right: str) -> int:
    """Length of the common beginning, by halving: comparing slices is fast, comparing characters is not."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[:middle] == right[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
