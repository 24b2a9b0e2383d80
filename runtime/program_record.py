"""ProgramRecord: a program that goes on, branch by branch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..radix.eviction import NEVER, UNKNOWN
from ..radix.expectations import Expectation
from .request_program import Path


@dataclass(eq=False, slots=True)
class ProgramBranch:
    """One branch of a program that has made a call, or was announced.

    Attributes:
        num_served_tokens: computed for it and for what had to end before it: the longest chain of calls, counted in
            tokens that did not come from the cache, that led to where it is.
        steps: how many calls come before its next one; UNKNOWN, or NEVER.
        num_prompt_tokens: of its longest call. A state only grows: what is shorter is a question beside it.
        num_shared_tokens: what its first call found in the cache, which is not its own; None before that.
        num_unstarted: announced branches of it that have made no call yet. They begin with its tokens.
        is_started: it has made a call that ran.
        is_joined: what it was forked for is done once its calls are.
        expectation: of its prefix, while it does not run.
    """

    program: ProgramRecord
    path: Path
    num_served_tokens: int = 0
    steps: int = UNKNOWN
    num_prompt_tokens: int = 0
    num_shared_tokens: int | None = None
    num_unstarted: int = 0
    is_started: bool = False
    is_joined: bool = False
    expectation: Expectation | None = None

    def begin_call(self) -> None:
        """It runs a call now; of the one after that nothing is known yet."""
        self.is_started = True
        self.steps = NEVER if self.is_joined else UNKNOWN

    @property
    def steps_to_use(self) -> int:
        """How many calls come before one that begins with its prefix."""
        return 0 if self.num_unstarted else self.steps


@dataclass(eq=False, slots=True)
class ProgramRecord:
    """A program that goes on; `is_ended` once it does not.

    Attributes:
        counted: branches that make their next call after a known number of others.
    """

    name: str
    branches: dict[Path, ProgramBranch] = field(default_factory=dict)
    counted: dict[ProgramBranch, None] = field(default_factory=dict)
    is_ended: bool = False

    def branch(self, path: Path) -> ProgramBranch:
        """The branch of that path; a new one begins where the nearest known one before it is."""
        known = self.branches.get(path)
        if known is None:
            origin = next(self.ancestors(path), None)
            num_served_tokens = 0 if origin is None else origin.num_served_tokens
            known = self.branches[path] = ProgramBranch(self, path, num_served_tokens)
        return known

    def ancestors(self, path: Path) -> Iterator[ProgramBranch]:
        """The known branches that this one came from, the nearest first."""
        for end in range(len(path) - 1, -1, -1):
            if path[:end] in self.branches:
                yield self.branches[path[:end]]
