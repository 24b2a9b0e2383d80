"""Numbers that are not Python's own, such as numpy's, where a plain one is meant."""

from __future__ import annotations

import numbers


def plain_number(value: object) -> object:
    """A number of numpy's, or of another library that registers its types as numbers, as an int or float of Python's;
    anything else as it is."""
    if type(value) in (bool, int, float):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value
