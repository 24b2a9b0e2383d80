"""What can be said of a regex by its form: how large it is, whether it has members, and its shortest one."""

from __future__ import annotations

from collections.abc import Sequence

from .char_sets import UTF8_FIRST_CODES, CharSet, CodeRange, utf8_len
from .syntax import NOTHING, Alternation, Concat, Literal, OneOf, Regex, Repeat, fold


def is_empty(regex: Regex) -> bool:
    """Whether no text at all is a member."""
    return regex == NOTHING


def is_nullable(regex: Regex) -> bool:
    """Whether the empty text is a member."""
    return shortest_num_bytes(regex) == 0


def shortest_num_bytes(regex: Regex, spellable: CharSet | None = None) -> int | None:
    """Length in UTF-8 bytes of the shortest member, None where there is none.

    Args:
        spellable: the characters a member may consist of; None allows all.
    """
    member = shortest_member(regex, spellable)
    return None if member is None else len(member.encode())


def shortest_member(regex: Regex, spellable: CharSet | None = None) -> str | None:
    """A member of the fewest UTF-8 bytes, None where there is none.

    Args:
        spellable: the characters a member may consist of; None allows all.
    """
    return shortest_members(regex, spellable)[id(regex)]


def shortest_members(regex: Regex, spellable: CharSet | None = None) -> dict[int, str | None]:
    """The shortest member of each node, by id(node).

    Cost: proportional to the size of the regex, and for each level of nesting to the texts' length.
    """

    def combine(node: Regex, below: list[str | None]) -> str | None:
        match node:
            case Literal(text):
                return text if spellable is None or all(char in spellable for char in text) else None
            case OneOf(chars):
                return cheapest_char(chars if spellable is None else chars & spellable)
            case Concat():
                return _joined(below)
            case Alternation():
                texts = [text for text in below if text is not None]
                return min(texts, key=lambda text: len(text.encode()), default=None)
            case Repeat(_, min_count):
                return _joined(below * min_count if min_count else [])

    return fold(regex, combine)


def _joined(texts: Sequence[str | None]) -> str | None:
    spelled = [text for text in texts if text is not None]
    return "".join(spelled) if len(spelled) == len(texts) else None


def cheapest_char(chars: CharSet) -> str | None:
    """A character of the fewest UTF-8 bytes, None of an empty set."""
    if not chars:
        return None
    num_bytes = utf8_len(chr(chars.ranges[0][0]))
    cheapest = [item for item in chars.ranges if utf8_len(chr(item[0])) == num_bytes]
    return CharSet(tuple(_cut(item, num_bytes) for item in cheapest)).preferred_char()


def _cut(item: CodeRange, num_bytes: int) -> CodeRange:
    """The part of a range that takes so many bytes; its first one does."""
    return item if num_bytes == 4 else (item[0], min(item[1], UTF8_FIRST_CODES[num_bytes] - 1))


def num_positions(regex: Regex) -> int:
    """Characters and character sets of the regex when its bounded repeats are written out: the size of an automaton."""

    def combine(node: Regex, below: list[int]) -> int:
        match node:
            case Literal(text):
                return len(text)
            case OneOf():
                return 1
            case Repeat():
                return below[0] * num_copies(node)
            case _:
                return sum(below)

    return fold(regex, combine)[id(regex)]


def max_repeat_product(regex: Regex) -> int:
    """How often the most repeated part is written out when bounded repeats are: `(a{3}){4}` gives 12."""

    def combine(node: Regex, below: list[int]) -> int:
        return num_copies(node) * below[0] if isinstance(node, Repeat) else max(below, default=1)

    return fold(regex, combine)[id(regex)]


def num_copies(node: Repeat) -> int:
    """How often the body is written out."""
    return max(node.min_count, 1) if node.max_count is None else node.max_count
