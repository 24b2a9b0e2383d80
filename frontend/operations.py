"""What an interpreter runs beside text, roles and calls: forks, spans of text, and branches that are written on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .bound_values import TextSpan
from .handle import Handle
from .token_log import Addition

if TYPE_CHECKING:
    from .interpreter import Interpreter


@dataclass(frozen=True, slots=True)
class ForkOp:
    """Hand this state to branches, which wait for it."""

    branches: tuple[Interpreter, ...]


@dataclass(frozen=True, slots=True)
class SpanBegin:
    """The text of a span begins here."""

    span: TextSpan


@dataclass(frozen=True, slots=True)
class SpanEnd:
    """The text of a span, which has begun in this state, ends here."""

    span: TextSpan


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a branch has added since it was forked, for the state that it was forked from."""

    text: str
    tokens: Addition


@dataclass(frozen=True, slots=True)
class Contribute:
    """In a branch: settle the handle with what was added up to here, or with why it is incomplete."""

    handle: Handle[Contribution]


@dataclass(frozen=True, slots=True)
class AppendBranches:
    """Wait for what branches contribute and append it, in their order.

    Attributes:
        source: file and line of the program that asked.
    """

    handles: tuple[Handle[Contribution], ...]
    source: str
