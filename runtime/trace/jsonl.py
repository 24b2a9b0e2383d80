"""A trace as a file: one JSON value a line, the first for the metadata, then one a step.

    {"format": "ramet-trace", "version": 1, "model": ..., "options": {...}, "versions": {...}}
    {"step_idx": 0, "start_time": 12.5, "phase_seconds": {"intake": 0.0001, ...},
     "parts": [["A", 0, 0, 512, 96, false, true, false], ...], "admitted": [["A", 0]], ..., "memory": [...]}

What occurs often is an array in the order of its class's fields; each step is an object. Lines end in a newline, also
the last one, so a file that was cut off inside a line can be told.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import fields
from operator import attrgetter
from os import PathLike
from typing import Any

from ..errors import RametError
from .record import FinishedSequence, MemoryRecord, SequenceName, StepRecord, TracedPart, TraceMetadata

FORMAT = "ramet-trace"
VERSION = 1


class TraceFormatError(RametError, ValueError):
    """A file is not a trace of this format. The message gives the path and the line."""


def write_jsonl(path: str | PathLike[str], metadata: TraceMetadata, steps: Iterable[StepRecord]) -> None:
    """See `Trace.save_jsonl`."""
    header = {
        "format": FORMAT,
        "version": VERSION,
        "model": metadata.model,
        "options": metadata.options,
        "versions": metadata.versions,
    }
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    with open(path, "w", encoding="ascii", newline="\n") as file:
        file.write(encode(header) + "\n")
        for step in steps:
            file.write(encode({name: _to_json(getattr(step, name)) for name in _STEP_FROM_JSON}) + "\n")


def read_jsonl(path: str | PathLike[str]) -> tuple[TraceMetadata, list[StepRecord]]:
    """See `Trace.load_jsonl`."""
    metadata = None
    steps: list[StepRecord] = []
    line_idx = 0
    with open(path, "rb") as file:
        for line_idx, line in enumerate(file, start=1):
            try:
                if not line.endswith(b"\n"):
                    raise ValueError("it is cut off: its end of line is missing")
                value = json.loads(line)
                if metadata is None:
                    metadata = _metadata_from_json(value)
                else:
                    steps.append(_step_from_json(value))
            except (ValueError, RecursionError) as error:
                raise TraceFormatError(f"{path}, line {line_idx}, is not part of a trace: {error}") from error
    if metadata is None:
        raise TraceFormatError(f"{path}, line {line_idx + 1}, is missing: the file is empty and no trace")
    return metadata, steps


def _to_json(value: object) -> object:
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    field_values = _FIELD_VALUES.get(type(value))
    return value if field_values is None else [_to_json(item) for item in field_values(value)]


def _metadata_from_json(value: object) -> TraceMetadata:
    header = _checked(value, dict, "the first line")
    if header.get("format") != FORMAT:
        raise ValueError(f"format={header.get('format')!r}, and a trace has {FORMAT!r}")
    if header.get("version") != VERSION:
        raise ValueError(f"version={header.get('version')!r} of the format; this program reads version {VERSION}")
    return TraceMetadata(
        model=_checked(header.get("model"), str, "model"),
        options=_checked(header.get("options"), dict, "options"),
        versions=_dict_of(str)(header.get("versions"), "versions"),
    )


def _step_from_json(value: object) -> StepRecord:
    step = _checked(value, dict, "a step")
    missing, unknown = _STEP_FROM_JSON.keys() - step.keys(), step.keys() - _STEP_FROM_JSON.keys()
    if missing or unknown:
        raise ValueError(f"its fields are wrong: missing {sorted(missing)}, unknown {sorted(unknown)}")
    return StepRecord(**{name: from_json(step[name], name) for name, from_json in _STEP_FROM_JSON.items()})


def _checked(value: object, kind: type, name: str) -> Any:
    """The value, if it is of this kind. A bool is no int here; an int is a float."""
    if type(value) is not kind and (kind is not float or type(value) is not int):
        raise ValueError(f"{name}={value!r} must be of type {kind.__name__}")
    return value


FromJson = Callable[[object, str], Any]


def _one(kind: type) -> FromJson:
    return lambda value, name: _checked(value, kind, name)


def _optional(kind: type) -> FromJson:
    return lambda value, name: None if value is None else _checked(value, kind, name)


def _dict_of(kind: type) -> FromJson:
    return lambda value, name: {
        key: _checked(item, kind, f"{name}[{key!r}]") for key, item in _checked(value, dict, name).items()
    }


def _tuple_of(from_json: FromJson) -> FromJson:
    return lambda value, name: tuple([from_json(item, name) for item in _checked(value, list, name)])


def _record_of(make: Callable[..., Any], *field_kinds: FromJson) -> FromJson:
    def from_json(value: object, name: str) -> Any:
        array = _checked(value, list, name)
        if len(array) != len(field_kinds):
            raise ValueError(f"an entry of {name} has {len(array)} values instead of {len(field_kinds)}: {array!r}")
        return make(*[kind(item, name) for kind, item in zip(field_kinds, array, strict=True)])

    return from_json


_FIELD_VALUES: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    kind: attrgetter(*[item.name for item in fields(kind)])
    for kind in (SequenceName, TracedPart, FinishedSequence, MemoryRecord)
}
_INT, _FLOAT, _BOOL, _STR = (_one(kind) for kind in (int, float, bool, str))
_NAME = _record_of(SequenceName, _STR, _INT)
_NAMES = _tuple_of(_NAME)
_STEP_FROM_JSON: dict[str, FromJson] = {
    "step_idx": _INT,
    "start_time": _FLOAT,
    "phase_seconds": _dict_of(float),
    "parts": _tuple_of(_record_of(TracedPart, _STR, _INT, _INT, _INT, _optional(int), _BOOL, _BOOL, _BOOL)),
    "admitted": _NAMES,
    "preempted": _NAMES,
    "finished": _tuple_of(_record_of(FinishedSequence, _NAME, _optional(str))),
    "waiting": _NAMES,
    "num_waiting": _INT,
    "waiting_for_prefix": _NAMES,
    "num_running": _INT,
    "num_padding_rows": _INT,
    "memory": _record_of(MemoryRecord, *[_INT] * len(fields(MemoryRecord))),
}
