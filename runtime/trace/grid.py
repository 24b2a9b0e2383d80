"""A trace as a grid, to be drawn: one row a sequence, one column a step or, in a long trace, a few steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .record import MAX_NAMED_WAITING, SequenceName, StepRecord, TracedPart

MAX_COLUMNS = 600
MAX_ROWS = 200

Wait = tuple[str | None, SequenceName | None]
"""Why a sequence waited, and for whom; as in WaitingSequence."""


@dataclass(slots=True)
class Cell:
    """What one sequence did in the steps of one column.

    Attributes:
        num_prompt_steps, num_decode_steps, num_recompute_steps, num_wasted_steps: steps that computed something of it.
        waits: in how many steps it stood in the queue, by why and for whom.
        num_paused_steps: steps it held blocks and nothing was computed.
        num_cached_tokens: found in the cache by being admitted here; None if it was not.
        start, end: range of positions computed, if any.
        finish_reason: set if it ended here.
    """

    num_prompt_steps: int = 0
    num_decode_steps: int = 0
    num_recompute_steps: int = 0
    num_wasted_steps: int = 0
    num_paused_steps: int = 0
    num_prompt_tokens: int = 0
    num_decode_tokens: int = 0
    num_recomputed_tokens: int = 0
    waits: Counter[Wait] = field(default_factory=Counter)
    num_cached_tokens: int | None = None
    start: int | None = None
    end: int = 0
    is_preempted: bool = False
    finish_reason: str | None = None

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_decode_tokens + self.num_recomputed_tokens

    @property
    def num_waiting_steps(self) -> int:
        return self.waits.total()

    @property
    def sources(self) -> list[SequenceName]:
        """Who computed the prefix that it waited for."""
        return [waits_for for reason, waits_for in self.waits if reason == "prefix" and waits_for is not None]

    @property
    def kind(self) -> str:
        """What the cell is drawn as: the rarest of what happened."""
        for kind, count in (
            ("recompute", self.num_recompute_steps),
            ("prompt", self.num_prompt_steps),
            ("decode", self.num_decode_steps),
            ("wasted", self.num_wasted_steps),
            ("prefix", sum(count for (reason, _), count in self.waits.items() if reason == "prefix")),
            ("wait", self.num_waiting_steps),
            ("paused", self.num_paused_steps),
        ):
            if count:
                return kind
        return "none"

    def add_part(self, part: TracedPart) -> None:
        if part.num_cached_tokens is not None:
            self.num_cached_tokens = (self.num_cached_tokens or 0) + part.num_cached_tokens
        if part.is_wasted:
            self.num_wasted_steps += 1
            return
        self.start = part.start if self.start is None else min(self.start, part.start)
        self.end = max(self.end, part.start + part.num_new_tokens)
        if part.is_recomputed:
            self.num_recompute_steps += 1
            self.num_recomputed_tokens += part.num_new_tokens
        elif part.is_prompt:
            self.num_prompt_steps += 1
            self.num_prompt_tokens += part.num_new_tokens
        else:
            self.num_decode_steps += 1
            self.num_decode_tokens += part.num_new_tokens


@dataclass(slots=True)
class Row:
    """A sequence, with its cells by column; columns in which it was not there have none."""

    name: SequenceName
    label: str | None = None
    cells: dict[int, Cell] = field(default_factory=dict)

    def __str__(self) -> str:
        """Its name and what it is called."""
        return str(self.name) if self.label is None else f"{self.name} ({self.label})"

    def cell(self, column_idx: int) -> Cell:
        return self.cells.setdefault(column_idx, Cell())


@dataclass(slots=True)
class Grid:
    """Rows in the order in which the sequences came up, columns of `steps_per_column` steps.

    Attributes:
        columns: the steps of each column.
        forked_request_ids: requests with more than one sequence.
        notes: sentences that say what was left out or put together.
    """

    rows: list[Row]
    columns: list[Sequence[StepRecord]]
    steps_per_column: int
    forked_request_ids: set[str]
    notes: list[str]


def build_grid(
    steps: Sequence[StepRecord],
    labels: Mapping[str, str] | None = None,
    max_columns: int = MAX_COLUMNS,
    max_rows: int = MAX_ROWS,
) -> Grid:
    """Lay out a trace, whose requests are called `labels`. O(parts + named waiting + running, over all steps)."""
    steps_per_column = max(1, -(-len(steps) // max_columns))
    columns = [steps[idx : idx + steps_per_column] for idx in range(0, len(steps), steps_per_column)]
    rows: dict[SequenceName, Row] = {}
    running: dict[SequenceName, None] = {}  # ordered, unlike a set
    for column_idx, column in enumerate(columns):
        for step in column:
            _add_step(step, column_idx, rows, running)
    for name, row in rows.items():
        row.label = (labels or {}).get(name.request_id)
    notes = []
    if steps_per_column > 1:
        notes.append(f"Each column stands for {steps_per_column} steps; bars show their mean.")
    if len(rows) > max_rows:
        notes.append(f"Of {len(rows):,} sequences the first {max_rows:,} are drawn; the bars count all.")
    if any(step.num_waiting > len(step.waiting) for step in steps):
        notes.append(f"Of each step's queue the first {MAX_NAMED_WAITING} are drawn as waiting.")
    num_sequences = Counter(name.request_id for name in rows)
    forked = {request_id for request_id, count in num_sequences.items() if count > 1}
    return Grid(list(rows.values())[:max_rows], columns, steps_per_column, forked, notes)


def _add_step(
    step: StepRecord, column_idx: int, rows: dict[SequenceName, Row], running: dict[SequenceName, None]
) -> None:
    def cell(name: SequenceName) -> Cell:
        row = rows.get(name)
        if row is None:
            row = rows[name] = Row(name)
        return row.cell(column_idx)

    for name in step.preempted:
        running.pop(name, None)
        cell(name).is_preempted = True
    scheduled = set()
    for part in step.parts:
        name = part.name
        scheduled.add(name)
        if not part.is_wasted:
            running[name] = None
        cell(name).add_part(part)
    for waiting in step.waiting:
        cell(waiting.name).waits[waiting.reason, waiting.waits_for] += 1
    for name in running:
        if name not in scheduled:
            cell(name).num_paused_steps += 1
    for finished in step.finished:
        running.pop(finished.name, None)
        cell(finished.name).finish_reason = finished.reason or "ended"
