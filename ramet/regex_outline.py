"""RegexOutline: what a regular expression is made of, without matching anything.

A pattern of a few characters can keep `re` busy for hours, and nothing can interrupt it. So patterns of users are only
parsed here: Python's own parser takes a time in proportion to their length, whatever their repeats say. It is internal
to `re` and has one form in Python 3.11 to 3.13; `runtime.grammar.regex` knows it too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as sre_parser  # type: ignore[attr-defined]
from typing import Any

MAX_REGEX_CHARS = 1 << 16

_NEVER_DECIDABLE = {
    sre.ASSERT: "look-around",
    sre.ASSERT_NOT: "look-around",
    sre.FAILURE: "look-around",
    sre.GROUPREF: "a back-reference",
    sre.GROUPREF_EXISTS: "a conditional group",
    sre.ATOMIC_GROUP: "an atomic group",
    sre.POSSESSIVE_REPEAT: "a possessive quantifier",
}
_REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT)
_EMPTY_TEXTS = (sre.AT, sre.ASSERT, sre.ASSERT_NOT, sre.GROUPREF)
_WORD_BOUNDARIES = (sre.AT_BOUNDARY, sre.AT_NON_BOUNDARY)


class RegexSyntaxError(ValueError):
    """A text is no regular expression; the message says why."""


@dataclass(frozen=True, slots=True)
class RegexOutline:
    """
    Attributes:
        is_nullable: whether it may match the empty text. An anchor, look-around or back-reference counts as one that
            does.
        has_anchors: whether it has anchors or word boundaries.
        undecidable: the first construct that cannot be decided character by character, in words; None without one.
        max_repeats: the largest product of the counts of repeats within each other.
    """

    is_nullable: bool = True
    has_anchors: bool = False
    undecidable: str | None = None
    max_repeats: int = 1

    def then(self, other: RegexOutline) -> RegexOutline:
        """Of this and another one behind it."""
        return RegexOutline(
            self.is_nullable and other.is_nullable,
            self.has_anchors or other.has_anchors,
            self.undecidable or other.undecidable,
            max(self.max_repeats, other.max_repeats),
        )


@lru_cache(maxsize=256)
def outline(pattern: str) -> RegexOutline:
    """
    Raises:
        RegexSyntaxError: it is no regular expression, or nests too deeply; or Python warns of it and warnings are
            errors.

    Cost: in proportion to the length of the pattern.
    """
    try:
        return _of_sequence(sre_parser.parse(pattern).data)
    except RecursionError:
        raise RegexSyntaxError("it is nested too deeply") from None
    except (re.error, OverflowError, ValueError, Warning) as error:
        raise RegexSyntaxError(str(error)) from None


def _of_sequence(items: Sequence[tuple[Any, Any]]) -> RegexOutline:
    found = RegexOutline()
    for operation, argument in items:
        found = found.then(_of_item(operation, argument))
    return found


def _of_item(operation: Any, argument: Any) -> RegexOutline:
    if operation in _REPEATS:
        return _of_repeat(operation, argument)
    inner = [_of_sequence(part.data) for part in _parts(operation, argument)]
    whole = RegexOutline()
    for each in inner:
        whole = whole.then(each)
    is_boundary = operation is sre.AT and argument in _WORD_BOUNDARIES
    undecidable = "a word boundary" if is_boundary else _NEVER_DECIDABLE.get(operation)
    return RegexOutline(
        is_nullable=operation in _EMPTY_TEXTS or any(each.is_nullable for each in inner),
        has_anchors=whole.has_anchors or operation is sre.AT,
        undecidable=undecidable or whole.undecidable,
        max_repeats=whole.max_repeats,
    )


def _of_repeat(operation: Any, argument: Any) -> RegexOutline:
    min_count, max_count, body = argument
    inner = _of_sequence(body.data)
    count = int(min_count if max_count is sre.MAXREPEAT else max_count)
    return RegexOutline(
        is_nullable=min_count == 0 or inner.is_nullable,
        has_anchors=inner.has_anchors,
        undecidable=_NEVER_DECIDABLE.get(operation) or inner.undecidable,
        max_repeats=max(1, count) * inner.max_repeats,
    )


def _parts(operation: Any, argument: Any) -> list[Any]:
    """The patterns within an item, of which one is to match."""
    if operation is sre.BRANCH:
        return list(argument[1])
    if operation is sre.SUBPATTERN:
        return [argument[3]]
    if operation is sre.ATOMIC_GROUP:
        return [argument]
    if operation in (sre.ASSERT, sre.ASSERT_NOT):
        return [argument[1]]
    if operation is sre.GROUPREF_EXISTS:
        _, matched, unmatched = argument
        return [matched, sre_parser.SubPattern(matched.state) if unmatched is None else unmatched]
    return []
