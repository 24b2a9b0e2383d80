"""A trace as a file: one JSON value a line, the first for the metadata, then one a step.

    {"format": "ramet-trace", "version": 2, "model": ..., "options": {...}, "versions": {...}, "labels": {...}}
    {"step_idx": 0, "start_time": 12.5, "phase_seconds": {"intake": 0.0001, ...},
     "parts": [["A", 0, 0, 512, 96, false, true, false, false], ...], "admitted": [["A", 0]], ...,
     "waiting": [[["B", 0], "prefix", ["A", 0]], ...], ..., "memory": [...]}

What occurs often is an array in the order of its class's fields; each step is an object. Lines end in a newline, also
the last one, so a file that was cut off inside a line can be told.

Version 1 is read too. It had no labels and no recompute; its `waiting` were names, and the names of those who waited
for a prefix stood in a list of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import fields
from operator import attrgetter
from os import PathLike
from typing import Any

from ...whole_file import whole_file
from ..errors import RametError
from .record import (
    FinishedSequence,
    MemoryRecord,
    SequenceName,
    StepRecord,
    TracedPart,
    TraceMetadata,
    WaitingSequence,
)

FORMAT = "ramet-trace"
VERSION = 2


FromJson = Callable[[object, str], Any]
"""What makes a value of one from JSON, given its name; raises ValueError if it is of another kind."""


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
        "labels": metadata.labels,
    }
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    with whole_file(path, encoding="ascii") as file:
        file.write(encode(header) + "\n")
        for step in steps:
            file.write(encode({name: _to_json(getattr(step, name)) for name in _STEP_FROM_JSON}) + "\n")


def read_jsonl(path: str | PathLike[str]) -> tuple[TraceMetadata, list[StepRecord]]:
    """See `Trace.load_jsonl`."""
    metadata, version = None, VERSION
    steps: list[StepRecord] = []
    line_idx = 0
    with open(path, "rb") as file:
        for line_idx, line in enumerate(file, start=1):
            try:
                if not line.endswith(b"\n"):
                    raise ValueError("it is cut off: its end of line is missing")
                value = json.loads(line)
                if metadata is None:
                    metadata, version = _metadata_from_json(value)
                else:
                    steps.append(_step_from_json(value) if version == VERSION else _step_from_json_1(value))
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


def _metadata_from_json(value: object) -> tuple[TraceMetadata, int]:
    """The metadata, and the version of the lines that follow."""
    header = _checked(value, dict, "the first line")
    if header.get("format") != FORMAT:
        raise ValueError(f"format={header.get('format')!r}, and a trace has {FORMAT!r}")
    version = header.get("version")
    if version not in (1, VERSION):
        raise ValueError(f"version={version!r} of the format; this program reads versions 1 to {VERSION}")
    metadata = TraceMetadata(
        model=_checked(header.get("model"), str, "model"),
        options=_checked(header.get("options"), dict, "options"),
        versions=_dict_of(str)(header.get("versions"), "versions"),
        labels={} if version == 1 else _dict_of(str)(header.get("labels"), "labels"),
    )
    return metadata, version


def _step_from_json(value: object) -> StepRecord:
    return StepRecord(**_step_fields(value, _STEP_FROM_JSON))


def _step_from_json_1(value: object) -> StepRecord:
    values = _step_fields(value, _STEP_FROM_JSON_1)
    for_prefix = set(values.pop("waiting_for_prefix"))
    waiting = [WaitingSequence(name, "prefix" if name in for_prefix else None) for name in values["waiting"]]
    return StepRecord(**values | {"waiting": tuple(waiting)})


def _step_fields(value: object, from_json_of: dict[str, FromJson]) -> dict[str, Any]:
    step = _checked(value, dict, "a step")
    missing, unknown = from_json_of.keys() - step.keys(), step.keys() - from_json_of.keys()
    if missing or unknown:
        raise ValueError(f"its fields are wrong: missing {sorted(missing)}, unknown {sorted(unknown)}")
    return {name: from_json(step[name], name) for name, from_json in from_json_of.items()}


def _checked(value: object, kind: type, name: str) -> Any:
    """The value, if it is of this kind. A bool is no int here; an int is a float."""
    if type(value) is not kind and (kind is not float or type(value) is not int):
        raise ValueError(f"{name}={value!r} must be of type {kind.__name__}")
    return value


def _one(kind: type) -> FromJson:
    return lambda value, name: _checked(value, kind, name)


def _optional(from_json: FromJson) -> FromJson:
    return lambda value, name: None if value is None else from_json(value, name)


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
    for kind in (SequenceName, TracedPart, WaitingSequence, FinishedSequence, MemoryRecord)
}
_INT, _FLOAT, _BOOL, _STR = (_one(kind) for kind in (int, float, bool, str))
_NAME = _record_of(SequenceName, _STR, _INT)
_NAMES = _tuple_of(_NAME)
_PART = (_STR, _INT, _INT, _INT, _optional(_INT), _BOOL, _BOOL, _BOOL)
_STEP_FROM_JSON: dict[str, FromJson] = {
    "step_idx": _INT,
    "start_time": _FLOAT,
    "phase_seconds": _dict_of(float),
    "parts": _tuple_of(_record_of(TracedPart, *_PART, _BOOL)),
    "admitted": _NAMES,
    "preempted": _NAMES,
    "finished": _tuple_of(_record_of(FinishedSequence, _NAME, _optional(_STR))),
    "waiting": _tuple_of(_record_of(WaitingSequence, _NAME, _optional(_STR), _optional(_NAME))),
    "num_waiting": _INT,
    "num_running": _INT,
    "num_padding_rows": _INT,
    "memory": _record_of(MemoryRecord, *[_INT] * len(fields(MemoryRecord))),
}
_STEP_FROM_JSON_1 = _STEP_FROM_JSON | {
    "parts": _tuple_of(_record_of(TracedPart, *_PART)),
    "waiting": _NAMES,
    "waiting_for_prefix": _NAMES,
}
