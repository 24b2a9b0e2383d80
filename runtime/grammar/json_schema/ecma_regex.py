"""Regular expressions of `pattern` and `patternProperties`: ECMA-262 with the u flag, searched for anywhere in a text.

As parsed they have anchors; `whole_text` and `as_regex` turn them into a Regex for the whole text, without any.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..regex.char_sets import ALL_CHARS, CharSet
from ..regex.syntax import Regex, alternation, concat, one_of, repeat


@dataclass(frozen=True)
class Chars:
    """One character of a set."""

    chars: CharSet


@dataclass(frozen=True)
class Sequence:
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    """One of several; of none of them, nothing matches."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """`low` to `high` times; None is without an end."""

    item: Node
    low: int
    high: int | None


@dataclass(frozen=True)
class Anchor:
    """The start or the end of the text."""

    is_start: bool


Node = Chars | Sequence | Choice | Repeat | Anchor
ANY_TEXT = Repeat(Chars(ALL_CHARS), 0, None)


class RegexRefusedError(ValueError):
    """A pattern cannot be enforced; the message says why."""


def whole_text(node: Node) -> Node:
    """The texts in which the expression is found.

    Raises:
        RegexRefusedError: an anchor stands inside it.
    """
    choices = []
    for items in _alternatives(node, 0):
        body = list(items)
        has_start = has_end = False
        while body and body[0] == Anchor(True):
            body.pop(0)
            has_start = True
        while body and body[-1] == Anchor(False):
            body.pop()
            has_end = True
        if any(_has_anchor(item) for item in body):
            raise RegexRefusedError("'^' and '$' can be enforced at the start and the end only")
        choices.append(Sequence((*(() if has_start else (ANY_TEXT,)), *body, *(() if has_end else (ANY_TEXT,)))))
    return choices[0] if len(choices) == 1 else Choice(tuple(choices))


def _alternatives(node: Node, depth: int) -> list[tuple[Node, ...]]:
    """The expression as sequences whose first and last items hold no anchor but are one, where that is possible."""
    if depth > 50:
        raise RegexRefusedError("'^' and '$' stand too deep in it")
    if isinstance(node, Choice):
        found = [sequence for item in node.items for sequence in _alternatives(item, depth + 1)]
    elif isinstance(node, Sequence) and node.items:
        flat: list[Node] = []
        for item in node.items:
            flat += item.items if isinstance(item, Sequence) else (item,)
        found = [tuple(flat)]
        for edge in (0, len(flat) - 1):
            item = flat[edge]
            if isinstance(item, Choice) and _has_anchor(item):
                options = [Sequence((*flat[:edge], option, *flat[edge + 1 :])) for option in item.items]
                found = [sequence for option in options for sequence in _alternatives(option, depth + 1)]
                break
    else:
        found = [(node,)]
    if len(found) > 200:
        raise RegexRefusedError("'^' and '$' stand in too many alternatives")
    return found


def _has_anchor(node: Node) -> bool:
    match node:
        case Anchor():
            return True
        case Sequence(items) | Choice(items):
            return any(map(_has_anchor, items))
        case Repeat(item):
            return _has_anchor(item)
        case _:
            return False


def as_regex(node: Node) -> Regex:
    """The same as data of the regex package. The node holds no anchor."""
    match node:
        case Chars(chars):
            return one_of(chars)
        case Sequence(items):
            return concat(map(as_regex, items))
        case Choice(items):
            return alternation(map(as_regex, items))
        case Repeat(item, low, high):
            return repeat(as_regex(item), low, high)
        case Anchor():
            raise AssertionError("anchors are gone by now")
