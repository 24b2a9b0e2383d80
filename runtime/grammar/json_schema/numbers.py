"""Expressions for the decimal numbers between two bounds.

A number has few enough digits that a double holds it: so a model cannot write digits without end, and a text that is
below an exclusive bound does not round to the bound when it is read.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext

MAX_INTEGER_DIGITS = 18
SIGNIFICANT_DIGITS = 15
ANY_INTEGER = f"(?:0|-?[1-9][0-9]{{0,{MAX_INTEGER_DIGITS - 1}}})"
ANY_NUMBER = f"-?(?:0|[1-9][0-9]{{0,{MAX_INTEGER_DIGITS - 1}}})(?:\\.[0-9]{{1,15}})?(?:[eE][+-]?[0-9]{{1,2}})?"


def integer_range(low: int, high: int) -> str:
    """The integers in [low, high], which is not empty; 0 is never written with a sign."""
    parts = []
    if low < 0:
        parts.append("-" + natural_range(max(1, -high), -low))
    if high >= 0:
        parts.append(natural_range(max(0, low), high))
    return _choice(parts)


def decimal_range(low: Decimal, high: Decimal, num_fraction_digits: int) -> str | None:
    """The numbers in [low, high] with at most so many digits after the point; None if there is none.

    No exponents; 0 has no sign.
    """
    scale = 10**num_fraction_digits
    first, last = scaled(low, num_fraction_digits, ROUND_CEILING), scaled(high, num_fraction_digits, ROUND_FLOOR)
    parts = []
    if first <= last:
        if first < 0:
            parts.append("-" + _magnitudes(max(1, -last), -first, scale))
        if last >= 0:
            parts.append(_magnitudes(max(0, first), last, scale))
    return _choice(parts) if parts else None


def scaled(value: Decimal, num_digits: int, rounding: str) -> int:
    """value * 10**num_digits, rounded to a whole number."""
    with localcontext() as context:
        context.prec = 2000
        return int(value.scaleb(num_digits).to_integral_value(rounding=rounding))


def natural_range(low: int, high: int) -> str:
    """The natural numbers in [low, high] without leading zeros."""
    shortest, longest = len(str(low)), len(str(high))
    if shortest == longest:
        return _digits(str(low), str(high))
    parts = [_digits(str(low), "9" * shortest)]
    if longest - shortest > 1:
        parts.append(f"[1-9][0-9]{{{shortest},{longest - 2}}}")
    parts.append(_digits("1" + "0" * (longest - 1), str(high)))
    return _choice(parts)


def spell(value: Decimal) -> str:
    """A number as JSON: whole numbers without a point, no exponent."""
    if value == value.to_integral_value():
        return str(int(value))
    return format(value.normalize(), "f")


def _digits(start: str, end: str) -> str:
    """Strings of digits as long as both, between them."""
    if not start:
        return ""
    num_rest = len(start) - 1
    if start == "0" * len(start) and end == "9" * len(end):
        return f"[0-9]{{{len(start)}}}"
    first, last = int(start[0]), int(end[0])
    if first == last:
        return start[0] + _digits(start[1:], end[1:])
    parts = []
    if start[1:] != "0" * num_rest:
        parts.append(str(first) + _digits(start[1:], "9" * num_rest))
        first += 1
    has_end = end[1:] != "9" * num_rest
    if has_end:
        last -= 1
    if first <= last:
        parts.append(_class(first, last) + (f"[0-9]{{{num_rest}}}" if num_rest else ""))
    if has_end:
        parts.append(end[0] + _digits("0" * num_rest, end[1:]))
    return _choice(parts)


def _magnitudes(first: int, last: int, scale: int) -> str:
    """The numbers from first / scale to last / scale."""
    num_digits = len(str(scale)) - 1
    low, low_fraction = divmod(first, scale)
    high, high_fraction = divmod(last, scale)
    start, end = (str(part).zfill(num_digits) if num_digits else "" for part in (low_fraction, high_fraction))
    if low == high:
        return str(low) + _fraction(start, end)
    zeros, nines = "0" * num_digits, "9" * num_digits
    parts = []
    if start != zeros:
        parts.append(str(low) + _fraction(start, nines))
        low += 1
    if end != nines:
        parts.append(str(high) + _fraction(zeros, end))
        high -= 1
    if low <= high:
        parts.append(natural_range(low, high) + _fraction(zeros, nines))
    return _choice(parts)


def _fraction(start: str, end: str) -> str:
    """What may follow the whole part: a point and digits, which, filled up with zeros, lie between the two."""
    if not start:
        return ""
    body = f"\\.{_some_digits(start, end)}"
    return f"(?:{body})?" if not start.strip("0") else body


def _some_digits(start: str, end: str) -> str:
    """At least one digit, at most as many as given; filled up with zeros it lies between the two."""
    num_rest = len(start) - 1
    first, last = int(start[0]), int(end[0])
    if first == last:
        return start[0] + _maybe_digits(start[1:], end[1:])
    parts = [start[0] + _maybe_digits(start[1:], "9" * num_rest), end[0] + _maybe_digits("0" * num_rest, end[1:])]
    if first + 1 < last:
        parts.append(_class(first + 1, last - 1) + _maybe_digits("0" * num_rest, "9" * num_rest))
    return _choice(parts)


def _maybe_digits(start: str, end: str) -> str:
    if not start:
        return ""
    is_from_zero = not start.strip("0")
    if is_from_zero and not end.strip("9"):
        return f"[0-9]{{0,{len(start)}}}"
    body = _some_digits(start, end)
    return f"(?:{body})?" if is_from_zero else body


def _class(first: int, last: int) -> str:
    return str(first) if first == last else f"[{first}-{last}]"


def _choice(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"
