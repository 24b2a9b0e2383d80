"""Traces made by hand: two sequences that share a slot, as in the figures on iteration-level scheduling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ramet.runtime.trace import (
    FinishedSequence,
    MemoryRecord,
    SequenceName,
    StepRecord,
    Trace,
    TracedPart,
    TraceMetadata,
    WaitingSequence,
)

MEMORY = MemoryRecord(64, 50, 10, 4, 6, 15, 130)
PHASES = ("intake", "schedule", "forward", "sample", "commit")


def step_record(step_idx: int, *parts: TracedPart, **fields: Any) -> StepRecord:
    values: dict[str, Any] = {
        "step_idx": step_idx,
        "start_time": 100.0 + step_idx,
        "phase_seconds": dict.fromkeys(PHASES, 0.25),
        "parts": parts,
        "admitted": tuple(part.name for part in parts if part.num_cached_tokens is not None),
        "preempted": (),
        "finished": (),
        "waiting": (),
        "num_waiting": len(fields.get("waiting", ())),
        "num_running": len(parts),
        "num_padding_rows": 0,
        "memory": MEMORY,
    }
    return StepRecord(**values | fields)


@pytest.fixture(scope="session")
def make_step() -> Callable[..., StepRecord]:
    """make_step(step_idx, *parts, **fields): a record with everything else filled in."""
    return step_record


@pytest.fixture
def trace() -> Trace:
    """`first` runs and is preempted; `second` waits, first for its prefix, fills in, and is once computed in vain."""
    first, second = SequenceName("first", 0), SequenceName("second", 1)
    return Trace(
        TraceMetadata(
            "tiny", {"max_num_batched_tokens": 32, "block_size": 16}, {"ramet": "0.1.0"}, {"second": "a long label"}
        ),
        [
            step_record(
                0,
                TracedPart("first", 0, 0, 32, num_cached_tokens=0, is_prompt=True),
                waiting=(WaitingSequence(second, "prefix", first),),
            ),
            step_record(
                1,
                TracedPart("first", 0, 32, 7, is_sampled=True, is_prompt=True),
                waiting=(WaitingSequence(second, "room"),),
            ),
            step_record(
                2,
                TracedPart("second", 1, 16, 5, num_cached_tokens=16, is_sampled=True, is_prompt=True),
                preempted=(first,),
                waiting=(WaitingSequence(first, "room"),),
            ),
            step_record(
                3,
                TracedPart("second", 1, 21, 1, is_sampled=True),
                waiting=(WaitingSequence(first, "room"),),
                finished=(FinishedSequence(second, "stop"),),
                num_padding_rows=3,
            ),
            step_record(
                4,
                TracedPart(
                    "first", 0, 32, 8, num_cached_tokens=32, is_sampled=True, is_prompt=True, is_recomputed=True
                ),
                TracedPart("second", 1, 22, 1, is_sampled=True, is_wasted=True),
            ),
            step_record(
                5, TracedPart("first", 0, 40, 1, is_sampled=True), finished=(FinishedSequence(first, "abort"),)
            ),
        ],
    )
