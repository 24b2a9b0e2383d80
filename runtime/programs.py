"""Programs: what the engine knows of the programs that its requests come from.

A program makes many requests, one after the other and side by side. Two things can be done for it that cannot be done
for a request alone. The queue can be ordered by what each program has had already (policies/program.py; Autellix, arXiv
2502.13965). And what the cache holds of a program can be kept as long as the program goes on, that which it needs next
the longest (radix/expectations.py; KVFlow, arXiv 2507.07400).

    run 7, ()        "You are ..."  call 1  ---- fork ---- join ----  call 6        a path names a branch of a run
    run 7, (0,)                                call 2, 4
    run 7, (1,)                                call 3, 5

All of it is advice. Nothing is locked or reserved, no output depends on it, and a program that is not known is served
like any other.
"""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Sequence as ListLike

from ..radix.eviction import NEVER, UNKNOWN
from ..radix.expectations import Expectation
from ..radix.prefix_cache import PrefixCache
from .program_record import ProgramBranch, ProgramRecord
from .request_program import Path
from .sequence import Sequence

OPEN_STEPS = 1 << 20
"""Of a state that goes on, where those are kept, but nobody knows when it is used: all that is known comes before."""

MAX_COUNTED = 256
"""Beyond so many branches with a number of calls before their next, these are not counted down."""

MAX_PROGRAMS = 1 << 16
"""Of more than that, the one that has not called for longest is forgotten: its caller has not told of its end."""


class Programs:
    """The programs of an engine, by run. Belongs to the scheduler, which tells what happens to sequences.

    Args:
        is_tracking: off, it does nothing and costs next to nothing.
        keeps_prefixes: let the cache know what the programs will use again.
        keeps_open: expect of all that goes on that it is used again.
    """

    def __init__(self, cache: PrefixCache, *, is_tracking: bool, keeps_prefixes: bool, keeps_open: bool) -> None:
        self.is_tracking = is_tracking
        self._keeps_prefixes = keeps_prefixes
        self._keeps_open = keeps_open
        self._expectations = cache.expectations
        self._records: dict[Hashable, ProgramRecord] = {}

    def __len__(self) -> int:
        """How many programs are known to go on."""
        return len(self._records)

    # -- what callers tell -------------------------------------------------------------------------------------------

    def fork(self, run_id: Hashable, path: Path, first_idx: int, num_branches: int) -> None:
        """Branches of this one, from that index on, are about to make their first calls. O(num_branches)."""
        if not self.is_tracking:
            return
        parent = self._record(run_id, "").branch(path)
        for idx in range(first_idx, first_idx + num_branches):
            child = parent.program.branch((*path, idx))
            parent.num_unstarted += not child.is_started
        self._refresh(parent)

    def join(self, run_id: Hashable, path: Path, joined: ListLike[Path], num_calls_before: int) -> None:
        """The branch goes on after so many calls of the joined ones. Nothing happens if the run is unknown."""
        record = self._records.get(run_id)
        if record is None:
            return
        for joined_path in joined:
            branch = record.branch(joined_path)
            branch.is_joined = True
            self._set_steps(branch, NEVER)
        parent = record.branch(path)
        self._set_steps(parent, num_calls_before)

    def expect(self, run_id: Hashable, path: Path, num_calls_before: int | None) -> None:
        """The branch makes its next call after about so many others, or makes none any more (None). Nothing happens if
        the run is unknown."""
        record = self._records.get(run_id)
        if record is not None:
            self._set_steps(record.branch(path), NEVER if num_calls_before is None else num_calls_before)

    def end(self, run_id: Hashable) -> None:
        """The program makes no calls any more: nothing of it is kept for its sake, and it is forgotten."""
        record = self._records.pop(run_id, None)
        if record is None:
            return
        record.is_ended = True
        for branch in record.branches.values():
            if branch.expectation is not None:
                self._expectations.retire(branch.expectation, branch.num_shared_tokens or 0)
                branch.expectation = None

    # -- what the scheduler tells ------------------------------------------------------------------------------------

    def on_arrival(self, sequence: Sequence) -> None:
        """It waits now, so what is cached of it is used next. Sets the sequence's branch, if it has a program."""
        program = sequence.request.program
        if program is None or not self.is_tracking:
            return
        branch = self._record(program.run_id, program.name).branch(program.branch)
        sequence.program_branch = branch
        if branch.expectation is not None and _prompt_len(sequence) >= branch.num_prompt_tokens:
            self._expectations.change(branch.expectation, 0)

    def on_admission(self, sequence: Sequence) -> None:
        """It runs now, and holds its blocks itself."""
        if sequence.expectation is not None:
            self._expectations.drop(sequence.expectation)
            sequence.expectation = None
        branch = sequence.program_branch
        if branch is None:
            return
        if not branch.is_started:
            parent = branch.program.branches.get(branch.path[:-1])
            if branch.path and parent is not None and parent.num_unstarted:
                parent.num_unstarted -= 1
                self._refresh(parent)
        if _prompt_len(sequence) >= branch.num_prompt_tokens:
            branch.num_prompt_tokens = _prompt_len(sequence)
            branch.begin_call()
            branch.program.counted.pop(branch, None)
            self._drop(branch)
            self._count_down(branch.program)

    def on_preemption(self, sequence: Sequence) -> Expectation | None:
        """What to release it with: it comes back as soon as there is room."""
        if self._keeps_prefixes:
            sequence.expectation = Expectation(0)
        return sequence.expectation

    def on_end(self, sequence: Sequence) -> Expectation | None:
        """It finished, failed or was aborted while it ran: count what it took.

        Returns:
            What to release it with; None if nobody knows of a use of what it leaves.
        """
        branch = sequence.program_branch
        if branch is None or branch.program.is_ended:
            return None
        _count(sequence, branch)
        if branch.num_shared_tokens is None:
            branch.num_shared_tokens = sequence.num_cached_tokens or 0
        is_first = sequence.sample_idx == 0 and not sequence.is_beam
        if not self._keeps_prefixes or not is_first:
            return None
        if _prompt_len(sequence) < branch.num_prompt_tokens:
            return None
        self._drop(branch)
        branch.expectation = Expectation(self._placed_steps(branch))
        return branch.expectation

    def on_withdrawal(self, sequence: Sequence) -> None:
        """It was given up while it waited."""
        if sequence.expectation is not None:
            self._expectations.drop(sequence.expectation)
            sequence.expectation = None
        if sequence.program_branch is not None:
            self._refresh(sequence.program_branch)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _record(self, run_id: Hashable, name: str) -> ProgramRecord:
        record = self._records.pop(run_id, None) or ProgramRecord(name)
        record.name = record.name or name
        self._records[run_id] = record  # at the end: what has not called for longest stands first
        if len(self._records) > MAX_PROGRAMS:
            self.end(next(iter(self._records)))
        return record

    def _placed_steps(self, branch: ProgramBranch) -> int:
        """What the cache is told: to keep open programs is to expect what may be used at any time."""
        steps = branch.steps_to_use
        return OPEN_STEPS if steps == UNKNOWN and self._keeps_open else steps

    def _set_steps(self, branch: ProgramBranch, steps: int) -> None:
        branch.steps = steps
        branch.program.counted.pop(branch, None)
        if 1 < steps < UNKNOWN:
            branch.program.counted[branch] = None
        self._refresh(branch)

    def _count_down(self, program: ProgramRecord) -> None:
        """The program makes a call: those that wait for a number of them are one nearer. O(MAX_COUNTED)."""
        if len(program.counted) <= MAX_COUNTED:
            for branch in list(program.counted):
                self._set_steps(branch, branch.steps - 1)

    def _refresh(self, branch: ProgramBranch) -> None:
        if branch.expectation is not None:
            self._expectations.change(branch.expectation, self._placed_steps(branch))

    def _drop(self, branch: ProgramBranch) -> None:
        if branch.expectation is not None:
            self._expectations.drop(branch.expectation)
            branch.expectation = None


def _prompt_len(sequence: Sequence) -> int:
    return sequence.num_prompt_tokens + sequence.request.num_healed_tokens


def _count(sequence: Sequence, branch: ProgramBranch) -> None:
    """Add what was computed for the sequence to its branch; what comes after a join has waited for that too."""
    num_tokens = max(0, sequence.num_tokens - sequence.num_prompt_tokens)
    if sequence.sample_idx == 0:
        computed = min(sequence.num_prompt_tokens, sequence.num_computed_tokens)
        num_tokens += max(0, computed - (sequence.num_cached_tokens or 0))
    branch.num_served_tokens += num_tokens
    for ancestor in branch.program.ancestors(branch.path):
        ancestor.num_served_tokens = max(ancestor.num_served_tokens, branch.num_served_tokens)
