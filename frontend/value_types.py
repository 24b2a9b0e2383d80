"""What the text of a gen becomes when its value is read: a number, a bool, a string, a JSON document, a model object.

The patterns are narrow on purpose, so that every text they allow becomes a value: numbers have at most as many digits
as an int of 64 bits or a float can tell apart, and a string is what JSON calls one, on one line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..grammar_spec import JsonModel
from ..sampling_params import InvalidSamplingParamsError
from .errors import InvalidProgramError

DTYPE_PATTERNS: Mapping[type, str] = {
    int: r"-?(0|[1-9][0-9]{0,17})",
    float: r"-?(0|[1-9][0-9]{0,16})(\.[0-9]{1,17})?",
    bool: r"True|False",
    str: r'"([^"\\\x00-\x1f\x7f]|\\["\\/bfnrt])*"',
}

_CONSTRAINTS = ("regex", "json_schema", "ebnf", "choices")


@dataclass(frozen=True, slots=True)
class ValueType:
    """What a text becomes. `parse` raises for a text that cannot become it; `name` is for messages."""

    name: str
    parse: Callable[[str], object]


_DTYPE_PARSERS: Mapping[type, Callable[[str], object]] = {
    int: int,
    float: float,
    bool: {"True": True, "False": False}.__getitem__,
    str: json.loads,
}


def dtype_pattern(dtype: object, options: Mapping[str, Any]) -> str:
    """The pattern of a text that becomes a value of this type.

    Args:
        options: what else the gen was given; no constraint may be among it.

    Raises:
        InvalidSamplingParamsError: another type, or there is another constraint.
    """
    if not isinstance(dtype, type) or dtype not in DTYPE_PATTERNS:
        raise InvalidSamplingParamsError(
            f"dtype={_shown(dtype)} is not allowed: it must be int, float, bool or str (model classes: json_schema)"
        )
    for name in _CONSTRAINTS:
        if name in options:
            raise InvalidSamplingParamsError(
                f"dtype={_shown(dtype)} is not allowed: {name} is given too, and a text has one constraint"
            )
    return DTYPE_PATTERNS[dtype]


def resolve_value_type(dtype: type | None, json_schema: object, parse: object) -> ValueType | None:
    """What the text of a gen becomes; None if it stays a text.

    Args:
        dtype: None or one that `dtype_pattern` takes.
        parse: None parses where a type was given: a dtype or a model class.

    Raises:
        InvalidProgramError: parse is no bool, or True where there is nothing to parse as.
    """
    if parse is not None and not isinstance(parse, bool):
        raise InvalidProgramError(f"parse={parse!r} is not allowed: it must be True, False or None")
    if parse is False:
        return None
    if dtype is not None:
        return ValueType(dtype.__name__, _DTYPE_PARSERS[dtype])
    if isinstance(json_schema, type) and isinstance(json_schema, JsonModel):
        return ValueType(json_schema.__name__, json_schema.model_validate_json)
    if parse and json_schema is None:
        raise InvalidProgramError(
            "parse=True is not allowed: it needs a json_schema or a dtype to say what to parse as"
        )
    return ValueType("JSON document", json.loads) if parse else None


def _shown(dtype: object) -> str:
    return dtype.__name__ if isinstance(dtype, type) else repr(dtype)
