"""Regular expressions of `pattern` and `patternProperties`: ECMA-262 with the u flag, searched for anywhere in a text.

They become a small tree of code point sets that describes the whole text, so that anchors are gone. From the tree come
the expression for the text as a JSON string (`quoted`) and a matcher that needs no backtracking (`matches`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from .charset import CharSet, quoted_class

MAX_REPEAT = 100_000
MAX_WEIGHT = 200_000


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
EMPTY = Sequence(())
NOTHING = Choice(())
ANY_TEXT = Repeat(Chars(CharSet.all()), 0, None)


class RegexRefusedError(ValueError):
    """A pattern cannot be enforced; the message says why."""


@dataclass(frozen=True)
class TextPattern:
    """A set of texts. `source` tells patterns apart."""

    source: str
    node: Node = field(compare=False)

    @cached_property
    def quoted(self) -> str:
        """An expression, in the syntax of Rust's regex, for the texts as JSON writes them, quotes included."""
        return f'"{quoted(self.node)}"'

    @cached_property
    def lengths(self) -> tuple[int, int | None] | None:
        """The fewest and the most code points; None where no text matches."""
        return lengths(self.node)

    def matches(self, text: str) -> bool:
        """Whether the whole text is in the set. Cost: polynomial in the text, whatever the pattern."""
        return len(text) in _ends(self.node, text, frozenset({0}))


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


def quoted(node: Node) -> str:
    match node:
        case Chars(chars):
            return quoted_class(chars)
        case Sequence(items):
            return "".join(map(quoted, items))
        case Choice(items):
            return f"(?:{'|'.join(map(quoted, items))})"
        case Repeat(item, low, high):
            return f"(?:{quoted(item)}){repeat_suffix(low, high)}"
        case Anchor():
            raise AssertionError("anchors are gone by now")


def repeat_suffix(low: int, high: int | None) -> str:
    if (low, high) == (0, None):
        return "*"
    return f"{{{low},{'' if high is None else high}}}"


def simplified(node: Node) -> Node:
    """The same, without parts that match nothing; NOTHING where nothing at all matches."""
    match node:
        case Chars(chars):
            return node if chars.ranges else NOTHING
        case Sequence(items):
            parts = tuple(map(simplified, items))
            return NOTHING if NOTHING in parts else Sequence(parts)
        case Choice(items):
            return Choice(tuple(part for part in map(simplified, items) if part != NOTHING))
        case Repeat(item, low, high):
            part = simplified(item)
            if part != NOTHING:
                return Repeat(part, low, high)
            return EMPTY if low == 0 else NOTHING
        case _:
            return node


def lengths(node: Node) -> tuple[int, int | None] | None:
    match node:
        case Chars():
            return 1, 1
        case Sequence(items):
            parts = [lengths(item) for item in items]
            found = [part for part in parts if part is not None]
            if len(found) < len(parts):
                return None
            highs = [high for _, high in found if high is not None]
            return sum(low for low, _ in found), sum(highs) if len(highs) == len(found) else None
        case Choice(items):
            found = [part for part in map(lengths, items) if part is not None]
            if not found:
                return None
            highs = [high for _, high in found if high is not None]
            return min(low for low, _ in found), max(highs) if len(highs) == len(found) else None
        case Repeat(item, low, high):
            part = lengths(item)
            if part is None:
                return (0, 0) if low == 0 else None
            top = 0 if part[1] == 0 or high == 0 else None if part[1] is None or high is None else part[1] * high
            return part[0] * low, top
        case _:
            return 0, 0


def weight(node: Node) -> int:
    """How large the expression is with its repeats written out."""
    match node:
        case Sequence(items) | Choice(items):
            return 1 + sum(map(weight, items))
        case Repeat(item, low, high):
            return 1 + weight(item) * max(low, high or 0, 1)
        case _:
            return 1


def _ends(node: Node, text: str, starts: frozenset[int]) -> frozenset[int]:
    """Where a match may end that begins at one of `starts`."""
    match node:
        case Chars(chars):
            return frozenset(idx + 1 for idx in starts if idx < len(text) and ord(text[idx]) in chars)
        case Sequence(items):
            for item in items:
                starts = _ends(item, text, starts)
            return starts
        case Choice(items):
            return frozenset().union(*(_ends(item, text, starts) for item in items))
        case Repeat(item, low, high):
            for _ in range(low):
                after = _ends(item, text, starts)
                if after == starts:
                    break
                starts = after
            found, frontier, count = starts, starts, low
            while frontier and (high is None or count < high):
                frontier = _ends(item, text, frontier) - found
                found |= frontier
                count += 1
            return found
        case _:
            raise AssertionError("anchors are gone by now")
