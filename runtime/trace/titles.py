"""What the pointer is told about cells of a timeline, in words and exact figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from .grid import Cell, Row, Wait
from .record import StepRecord
from .strips import steps_text

WAIT_TEXTS = {
    "prefix": "for its prefix, which {} was computing",
    "room": "for blocks: the cache had no room",
    "seats": "for a place: as many ran as may",
    "budget": "for a later step: too few of this one's tokens were left",
    "behind": "behind {}, which did not fit",
    "batching": "for the running batch to end",
    "trial": "for the requests of a step that failed to be tried again",
}
"""By reason (`runtime.batch.WaitReason`), with room for whom it waited for."""


def cells_title(row: Row, cells: list[Cell], steps: Sequence[StepRecord]) -> str:
    """What happened in some neighbouring cells of a row; `steps` are those of their columns."""
    return "\n".join([f"{row}, {steps_text(steps)}", *_computed(cells), *_waited(cells), *_ended(cells)])


def _computed(cells: list[Cell]) -> Iterator[str]:
    starts = [cell.start for cell in cells if cell.start is not None]
    positions = f" (positions {min(starts)} to {max(cell.end for cell in cells) - 1})" if starts else ""
    for text, count in (
        ("tokens of the prompt or behind it computed", sum(cell.num_prompt_tokens for cell in cells)),
        ("generated tokens computed", sum(cell.num_decode_tokens for cell in cells)),
        ("tokens computed again after a preemption", sum(cell.num_recomputed_tokens for cell in cells)),
    ):
        if count:
            yield f"{count:,} {text}{positions}"
    cached = [cell.num_cached_tokens for cell in cells if cell.num_cached_tokens is not None]
    if cached:
        yield f"admitted; {sum(cached):,} tokens found in the cache"


def _waited(cells: list[Cell]) -> Iterator[str]:
    waits: Counter[Wait] = Counter()
    for cell in cells:
        waits += cell.waits
    if waits:
        yield f"waited in the queue: {_steps(waits.total())}"
    for (reason, waits_for), count in waits.items():
        if reason is not None:
            text = WAIT_TEXTS.get(reason, reason).format(waits_for or "another")
            yield text if len(waits) == 1 else f"{text}: {_steps(count)}"


def _ended(cells: list[Cell]) -> Iterator[str]:
    for text, count in (
        ("held blocks while nothing of it was computed", sum(cell.num_paused_steps for cell in cells)),
        ("was computed in vain: it had ended, or the step failed", sum(cell.num_wasted_steps for cell in cells)),
    ):
        if count:
            yield f"{text}: {_steps(count)}"
    if any(cell.is_preempted for cell in cells):
        yield "preempted: its blocks went to others"
    for cell in cells:
        if cell.finish_reason is not None:
            yield f"ended: {cell.finish_reason}"


def _steps(count: int) -> str:
    return f"{count:,} step{'s' if count > 1 else ''}"
