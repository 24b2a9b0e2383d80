"""JSON as the server writes it: compact, valid for every value it is given."""

from __future__ import annotations

import json
import math
from typing import Any

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


def to_json(value: Any) -> bytes:
    """Compact UTF-8. Half of a surrogate pair, which UTF-8 cannot say, is escaped.

    Raises:
        ValueError: a number is not finite; see `finite`.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LEAST_LOGPROB
