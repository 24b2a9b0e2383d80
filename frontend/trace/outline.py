"""Outline: the calls of a run as they were nested, each fork with its branches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from .program_trace import CallTrace, ProgramTrace


@dataclass(frozen=True, slots=True)
class Item:
    """A call, and the branches that begin at it if it is a fork."""

    call: CallTrace
    branches: tuple[Branch, ...] = ()


@dataclass(frozen=True, slots=True)
class Branch:
    """The calls of one branch in order; `path` is () for the program itself."""

    path: tuple[int, ...]
    items: tuple[Item, ...] = ()

    @property
    def label(self) -> str:
        return "program" if not self.path else f"branch {'.'.join(map(str, self.path))}"

    def walk(self) -> Iterator[Branch]:
        """This branch and all that begin in it, each before its own."""
        yield self
        for item in self.items:
            for branch in item.branches:
                yield from branch.walk()


def outline(trace: ProgramTrace) -> Branch:
    """O(calls)."""
    calls_of: dict[tuple[int, ...], list[CallTrace]] = defaultdict(list)
    for call in trace.calls:
        calls_of[call.branch].append(call)
    return _branch(calls_of, ())


def _branch(calls_of: dict[tuple[int, ...], list[CallTrace]], path: tuple[int, ...]) -> Branch:
    items: list[Item] = []
    num_before = 0  # branches that earlier forks of this one took: they are numbered on
    for call in calls_of.get(path, ()):
        branches: tuple[Branch, ...] = ()
        if call.kind == "fork":
            numbers = range(num_before, num_before + call.num_branches)
            branches = tuple(_branch(calls_of, (*path, number)) for number in numbers)
            num_before += call.num_branches
        items.append(Item(call, branches))
    return Branch(path, tuple(items))
