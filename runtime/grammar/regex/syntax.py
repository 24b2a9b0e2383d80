"""Regex: a regular expression as data, without anything that engines understand differently.

    Literal      a text, perhaps empty
    OneOf        one character of a set
    Concat       parts one after the other
    Alternation  any one of the branches
    Repeat       a part min_count to max_count times

Build them with the functions below: they keep to a normal form in which only NOTHING has no member, so that every node
of a regex can be part of some member, and in which EMPTY is the only node that matches just the empty text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from .char_sets import CharSet

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Literal:
    """A text."""

    text: str


@dataclass(frozen=True, slots=True)
class OneOf:
    """One character of a set of at least two."""

    chars: CharSet


@dataclass(frozen=True, slots=True)
class Concat:
    """At least two parts, one after the other."""

    parts: tuple[Regex, ...]


@dataclass(frozen=True, slots=True)
class Alternation:
    """Any one of the branches; none at all in NOTHING."""

    branches: tuple[Regex, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part, again and again.

    Attributes:
        max_count: None where there is no bound.
    """

    body: Regex
    min_count: int
    max_count: int | None


Regex = Literal | OneOf | Concat | Alternation | Repeat

EMPTY = Literal("")
NOTHING = Alternation(())


def one_of(chars: CharSet) -> Regex:
    """One character of a set."""
    only_char = chars.only_char
    if only_char is not None:
        return Literal(only_char)
    return OneOf(chars) if chars else NOTHING


def concat(parts: Iterable[Regex]) -> Regex:
    """Parts one after the other. Nested ones are flattened and neighbouring texts joined."""
    flat: list[Regex] = []
    texts: list[str] = []

    def end_text() -> None:
        if texts:
            flat.append(Literal("".join(texts)))
            texts.clear()

    for part in parts:
        if part == NOTHING:
            return NOTHING
        for inner in part.parts if isinstance(part, Concat) else (part,):
            if isinstance(inner, Literal):
                texts.extend([inner.text] if inner.text else [])
            else:
                end_text()
                flat.append(inner)
    end_text()
    if not flat:
        return EMPTY
    return flat[0] if len(flat) == 1 else Concat(tuple(flat))


def alternation(branches: Iterable[Regex]) -> Regex:
    """Any one of the branches, in their order. Nested ones are flattened, those without members left out."""
    flat: list[Regex] = []
    for branch in branches:
        flat.extend(branch.branches if isinstance(branch, Alternation) else (branch,))
    if flat and all(branch == EMPTY for branch in flat):
        return EMPTY
    return flat[0] if len(flat) == 1 else Alternation(tuple(flat))


def repeat(body: Regex, min_count: int, max_count: int | None) -> Regex:
    """A part min_count to max_count times (None: any number of times)."""
    if max_count == 0 or body == EMPTY:
        return EMPTY
    if body == NOTHING:
        return EMPTY if min_count == 0 else NOTHING
    return body if (min_count, max_count) == (1, 1) else Repeat(body, min_count, max_count)


def children(node: Regex) -> tuple[Regex, ...]:
    match node:
        case Concat(parts):
            return parts
        case Alternation(branches):
            return branches
        case Repeat(body):
            return (body,)
        case _:
            return ()


def fold(root: Regex, combine: Callable[[Regex, list[_T]], _T]) -> dict[int, _T]:
    """A value for each node, from its children's values. Does not recurse.

    Args:
        combine: the value of a node, given those of its children in order.

    Returns:
        The values by id(node), for every node of `root`; valid as long as `root` lives.
    """
    values: dict[int, _T] = {}
    stack = [root]
    while stack:
        node = stack[-1]
        missing = [child for child in children(node) if id(child) not in values]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        if id(node) not in values:
            values[id(node)] = combine(node, [values[id(child)] for child in children(node)])
    return values
