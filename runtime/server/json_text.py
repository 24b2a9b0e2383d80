"""JSON as the server writes it: compact, valid for every value it is given."""

from __future__ import annotations

import json
import math
from typing import Any

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


# Made once: `json.dumps` makes one for each call, which takes as long as a token's event does.
_PLAIN = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_ESCAPED = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def to_json(value: Any) -> bytes:
    """Compact UTF-8. Half of a surrogate pair, which UTF-8 cannot say, is escaped.

    Raises:
        ValueError: a number is not finite; see `finite`.
    """
    try:
        return _PLAIN.encode(value).encode()
    except UnicodeEncodeError:
        return _ESCAPED.encode(value).encode()


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LEAST_LOGPROB
