"""What a line of a journal is made of beside the trace, to check one that was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..trace.json_codec import JsonShapeError, from_jsonable


@dataclass(frozen=True, slots=True)
class RecordHead:
    """Which item a line is of, and whether it failed."""

    key: str
    occurrence: int
    item: int
    failed: bool


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """An exception in words; `text` is that of a gen which did not become a value."""

    type: str
    message: str
    causes: tuple[str, ...]
    text: str | None = None


@dataclass(frozen=True, slots=True)
class StateShape:
    """The `state` of a line; see record.py."""

    variables: Mapping[str, object]
    values: Mapping[str, object]
    return_value: object
    text: str
    messages: tuple[Mapping[str, object], ...]
    role: str | None
    role_text: str
    token_ids: tuple[int, ...]
    pending: tuple[tuple[str, bool], ...]
    failure: ErrorShape | None
    first_failure: ErrorShape | None
    body_error: ErrorShape | None


@dataclass(frozen=True, slots=True)
class JoinedShape:
    """Names of several branches: references to their values."""

    joined: tuple[object, ...]
    on_error: str


def record_head(record: Mapping[str, object]) -> RecordHead:
    """
    Raises:
        JsonShapeError: the line is not of an item.
    """
    known = ("key", "occurrence", "item", "failed")
    return from_jsonable(RecordHead, {name: record[name] for name in known if name in record})


def check_state(state: object) -> None:
    """
    Raises:
        JsonShapeError: it is not the state of a finished run.
        RecursionError: it is nested too deep.
    """
    shape = from_jsonable(StateShape, state, "state")
    for idx, message in enumerate(shape.messages):
        if not isinstance(message.get("role"), str):
            raise JsonShapeError(f"state.messages[{idx}] must have a role")
    for name, reference in shape.variables.items():
        _check_reference(reference, f"state.variables[{name!r}]")


def _check_reference(reference: object, place: str) -> None:
    if type(reference) is int:
        return
    if not isinstance(reference, dict):
        raise JsonShapeError(f"{place} must be the id of a call or an object, not {reference!r}")
    if "joined" in reference:
        shape = from_jsonable(JoinedShape, reference, place)
        if shape.on_error not in ("raise", "return"):
            raise JsonShapeError(f"{place}.on_error must be 'raise' or 'return', not {shape.on_error!r}")
        for idx, item in enumerate(shape.joined):
            _check_reference(item, f"{place}.joined[{idx}]")
    elif set(reference) == {"error"}:
        from_jsonable(ErrorShape, reference["error"], f"{place}.error")
    elif set(reference) != {"value"}:
        raise JsonShapeError(f"{place} must have a value or an error, not {sorted(reference)}")
