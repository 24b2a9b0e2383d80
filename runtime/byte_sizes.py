"""Numbers of bytes as people write them: 2147483648, 512M, 2G or 2GiB, in powers of 1024."""

from __future__ import annotations

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_bytes(text: str) -> int:
    """The number of bytes that a text says.

    Raises:
        ValueError: it says none, or less than one byte; the message says how to write it.
    """
    number, unit = text.strip().upper().removesuffix("IB").removesuffix("B").rstrip(), ""
    if number[-1:] in _UNITS:
        number, unit = number[:-1].rstrip(), number[-1:]
    if not number.isdecimal() or int(number) < 1:
        raise ValueError(f"{text!r} must be a number of bytes such as 512M or 2G")
    return int(number) * _UNITS[unit]
