"""A Regex as text for the engines, in constructs that all of them understand alike.

Classes are written out, every character that is not a letter or digit of ASCII is escaped, groups do not capture.
Alternatives and parts keep their order.
"""

from __future__ import annotations

from collections.abc import Callable

from .char_sets import CharSet
from .syntax import NOTHING, Alternation, Concat, Literal, OneOf, Regex, Repeat, fold

# How tightly a piece of text binds: whether it needs a group in a sequence, or before a quantifier.
_ALTERNATIVES, _SEQUENCE, _ATOM = range(3)


def rust_text(regex: Regex) -> str:
    """For llguidance and outlines-core, which both read the syntax of Rust's regex-syntax. ASCII only.

    Args:
        regex: not empty: neither engine has a text for that.
    """
    return _text(regex, _rust_literal, _rust_class)


def interegular_text(regex: Regex) -> str:
    """For interegular, whose Python syntax has no escapes for code points.

    A class of more than half of all characters is written by those that it lacks; on surrogates, which no text has, it
    then differs. Cost: interegular walks through a class one character at a time, 0.1 s for Unicode's letters.

    Args:
        regex: not empty.
    """
    return _text(regex, _interegular_literal, _interegular_class)


def _text(regex: Regex, literal: Callable[[str], str], char_class: Callable[[CharSet], str]) -> str:
    assert regex != NOTHING, "a regex without members has no text: refuse it before"

    def combine(node: Regex, below: list[tuple[str, int]]) -> tuple[str, int]:
        match node:
            case Literal(text):
                return literal(text), _ATOM if len(text) == 1 else _SEQUENCE
            case OneOf(chars):
                return char_class(chars), _ATOM
            case Concat():
                return "".join(_grouped(text, binding, _SEQUENCE) for text, binding in below), _SEQUENCE
            case Alternation():
                return "|".join(text for text, _ in below), _ALTERNATIVES
            case Repeat():
                return _grouped(*below[0], _ATOM) + _quantifier(node), _SEQUENCE

    text, _ = fold(regex, combine)[id(regex)]
    return text or "(?:)"


def _grouped(text: str, binding: int, needed_binding: int) -> str:
    return text if binding >= needed_binding else f"(?:{text})"


def _quantifier(node: Repeat) -> str:
    match node.min_count, node.max_count:
        case 0, None:
            return "*"
        case 1, None:
            return "+"
        case 0, 1:
            return "?"
        case low, None:
            return f"{{{low},}}"
        case low, high if low == high:
            return f"{{{low}}}"
        case low, high:
            return f"{{{low},{high}}}"


def _rust_literal(text: str) -> str:
    return "".join(map(_rust_char, text))


def _rust_char(char: str) -> str:
    return char if char.isascii() and (char.isalnum() or char == "_") else f"\\x{{{ord(char):x}}}"


def _rust_class(chars: CharSet) -> str:
    return _class_of_ranges(chars, _rust_char)


def _interegular_literal(text: str) -> str:
    return "".join(map(_interegular_char, text))


def _interegular_char(char: str) -> str:
    return f"\\{char}" if char.isascii() and not char.isalnum() else char


def _interegular_class(chars: CharSet) -> str:
    missing = chars.complement()
    if not missing:
        return "(?:[^a]|a)"
    if missing.num_chars < chars.num_chars:
        return _class_of_ranges(missing, _interegular_char, "^")
    return _class_of_ranges(chars, _interegular_char)


def _class_of_ranges(chars: CharSet, spelled: Callable[[str], str], negation: str = "") -> str:
    ranges = (
        spelled(chr(first)) if first == last else f"{spelled(chr(first))}-{spelled(chr(last))}"
        for first, last in chars.ranges
    )
    return f"[{negation}{''.join(ranges)}]"
