"""History: the expression with which a program goes on from a conversation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .primitives import Expression


@dataclass(frozen=True, slots=True)
class History(Expression):
    """A conversation that a program goes on from: tokens, then text that has none yet. Stands before all else.

    Attributes:
        tail: texts, and whether each is the template's.
        text: what all of it spells.
    """

    token_ids: tuple[int, ...]
    tail: tuple[tuple[str, bool], ...]
    messages: tuple[Mapping[str, Any], ...]
    text: str
