"""What Python reads of a body although no JSON says it: numbers that are none, and halves of surrogate pairs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from .errors import ApiError

_MAY_BE_HALF = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
"""Half of a surrogate pair, as JSON escapes it and as Python reads it unescaped. Escaped pairs have it too."""


class NumberReader:
    """Reads the numbers of a body that are no integers: `float` for `json.loads`.

    Attributes:
        are_finite: all have been so far.
    """

    def __init__(self) -> None:
        self.are_finite = True

    def __call__(self, text: str) -> float:
        number = float(text)
        self.are_finite = self.are_finite and math.isfinite(number)
        return number


def may_have_half_pairs(content: bytes) -> bool:
    return _MAY_BE_HALF.search(content) is not None


def refuse_unsayable(body: object, fields: Iterable[str]) -> None:
    """
    Args:
        body: as it was read; nested no deeper than bodies may be.
        fields: its fields that mean something. Others may hold anything.

    Raises:
        ApiError: 400, a text among them is no Unicode, or a number no number.
    """
    for name in fields:
        if isinstance(body, dict) and name in body:
            _look(name, body[name])


def _look(where: str, value: object) -> None:
    _judge(where, value, field=where)
    if isinstance(value, dict):
        for name, item in value.items():
            _judge(f"a key of {where}", name, field=where)
            _look(f"{where}.{name:.40}", item)
    elif isinstance(value, list):
        for idx, item in enumerate(value):
            _look(f"{where}[{idx}]", item)


def _judge(where: str, value: object, *, field: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ApiError(400, f"{where}={value} is no number: JSON has finite ones only", param=field)
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            message = f"{where} holds a lone surrogate {value[error.start]!r} at character {error.start}"
            raise ApiError(400, f"{message}; it is not valid Unicode", param=field) from None
