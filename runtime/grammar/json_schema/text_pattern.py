"""TextPattern: a set of texts, as an expression for their JSON form and as a matcher that needs no backtracking."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from ..regex.char_sets import CharSet
from ..regex.spec_regex import restricted
from ..regex.syntax import NOTHING, Alternation, Concat, Literal, OneOf, Regex, Repeat, fold
from .json_chars import quoted_class


@dataclass(frozen=True)
class TextPattern:
    """A set of texts. `source` tells patterns apart."""

    source: str
    regex: Regex = field(compare=False)

    def quoted(self, chars: CharSet) -> str | None:
        """An expression, in the syntax of Rust's regex, for the texts as JSON writes them, quotes included.

        Args:
            chars: texts with others are left out.

        Returns:
            None where none is left.
        """
        regex = restricted(self.regex, chars)
        return None if regex == NOTHING else f'"{fold(regex, _quoted)[id(regex)]}"'

    @cached_property
    def lengths(self) -> tuple[int, int | None] | None:
        """The fewest and the most code points; None where no text matches."""
        return fold(self.regex, _lengths)[id(self.regex)] if self.regex != NOTHING else None

    def matches(self, text: str) -> bool:
        """Whether the whole text is in the set. Cost: polynomial in the text, whatever the pattern."""
        return len(text) in _ends(self.regex, text, frozenset({0}))


def repeat_suffix(low: int, high: int | None) -> str:
    if (low, high) == (0, None):
        return "*"
    return f"{{{low},{'' if high is None else high}}}"


def _quoted(node: Regex, below: list[str]) -> str:
    match node:
        case Literal(text):
            return "".join(quoted_class(CharSet.of_text(char)) for char in text)
        case OneOf(chars):
            return quoted_class(chars)
        case Concat():
            return "".join(below)
        case Alternation():
            return f"(?:{'|'.join(below)})"
        case Repeat(_, low, high):
            return f"(?:{below[0]}){repeat_suffix(low, high)}"


def _lengths(node: Regex, below: list[tuple[int, int | None]]) -> tuple[int, int | None]:
    lows, highs = [low for low, _ in below], [high for _, high in below if high is not None]
    has_end = len(highs) == len(below)
    match node:
        case Literal(text):
            return len(text), len(text)
        case OneOf():
            return 1, 1
        case Concat():
            return sum(lows), sum(highs) if has_end else None
        case Alternation():
            return min(lows), max(highs) if has_end else None
        case Repeat(_, low, high):
            return low * lows[0], high * highs[0] if has_end and high is not None else None


def _ends(node: Regex, text: str, starts: frozenset[int]) -> frozenset[int]:
    """Where a match may end that begins at one of `starts`."""
    match node:
        case Literal(own):
            return frozenset(idx + len(own) for idx in starts if text.startswith(own, idx))
        case OneOf(chars):
            return frozenset(idx + 1 for idx in starts if idx < len(text) and text[idx] in chars)
        case Concat(parts):
            for part in parts:
                starts = _ends(part, text, starts)
            return starts
        case Alternation(branches):
            return frozenset().union(*(_ends(branch, text, starts) for branch in branches))
        case Repeat(body, low, high):
            for _ in range(low):
                after = _ends(body, text, starts)
                if after == starts:
                    break
                starts = after
            found, frontier, count = starts, starts, low
            while frontier and (high is None or count < high):
                frontier = _ends(body, text, frontier) - found
                found |= frontier
                count += 1
            return found
