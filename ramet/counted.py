"""How many of something, in words."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """`1 request`, `0 requests`, `2,000 requests`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
