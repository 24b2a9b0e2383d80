"""What a check of `ramet doctor` finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. A "problem" keeps the product from working; a "warning" does not. `remedy` says what to do."""

    name: str
    status: Literal["ok", "warning", "problem", "skipped"]
    detail: str
    remedy: str = ""


def format_bytes(num_bytes: int) -> str:
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
