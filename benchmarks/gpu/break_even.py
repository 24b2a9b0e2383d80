"""When reading a prefix once pays: from measured cases to the two numbers that the planner has
(`kernels/triton/shared_runs.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ramet.kernels.triton.shared_runs import HeadShape
from ramet.kernels.triton.tiles import Tile


@dataclass(frozen=True, slots=True)
class SharingTrial:
    """A measured case.

    Attributes:
        saved_over_cost: what the planner reckons, in bytes: reads saved over parts added.
        gain: how many times faster sharing was.
    """

    num_sharers: int
    shared_len: int
    saved_over_cost: float
    gain: float

    @classmethod
    def of(
        cls, heads: HeadShape, itemsize: int, tile: Tile, num_sharers: int, shared_len: int, gain: float
    ) -> SharingTrial:
        """Of decodes, one row each, reckoned as in `shared_runs.py`."""
        num_tiles = -(-num_sharers // tile.num_rows(heads.group_size))
        saved = (num_sharers - num_tiles) * shared_len * 2 * heads.head_dim * itemsize
        cost = num_sharers * heads.group_size * (heads.head_dim + 1) * 4 * 2
        return cls(num_sharers, shared_len, saved / cost, gain)


def shortest_that_pays(trials: Sequence[SharingTrial]) -> int | None:
    """The shortest run from which on sharing was never slower, among trials of one number of sharers."""
    shortest = None
    for trial in sorted(trials, key=lambda trial: trial.shared_len, reverse=True):
        if trial.gain < 1.0:
            break
        shortest = trial.shared_len
    return shortest


def break_even(trials: Sequence[SharingTrial]) -> float | None:
    """The `sharing_break_even` that would have chosen best: the one that loses least time against the better choice in
    each trial, of equal ones the smallest. Gains and losses are counted as ratios. None without trials."""
    if not trials:
        return None

    def loss(border: float) -> float:
        lost = 1.0
        for trial in trials:
            is_shared = trial.saved_over_cost >= border
            lost *= max(trial.gain, 1.0) if not is_shared else max(1.0 / trial.gain, 1.0)
        return lost

    borders = sorted({0.0, *(trial.saved_over_cost for trial in trials)})
    beyond_all = borders[-1] * 1.01 + 1e-9
    return min([*borders, beyond_all], key=loss)


def advice(trials: Sequence[SharingTrial]) -> list[str]:
    """Sentences for whoever sets the planner's numbers."""
    sentences = []
    for num_sharers in sorted({trial.num_sharers for trial in trials}):
        shortest = shortest_that_pays([trial for trial in trials if trial.num_sharers == num_sharers])
        found = "no length that was tried" if shortest is None else f"{shortest:,} tokens on"
        sentences.append(f"{num_sharers} sharers: sharing pays from {found}.")
    border = break_even(trials)
    if border is not None:
        sentences.append(f"Of all values of sharing_break_even, {border:.2f} would have chosen best in these cases.")
    return sentences
