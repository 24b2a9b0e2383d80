"""Random numbers that are a function of where they are used, not of when.

The number for one token depends on (seed, sample index, position, token id) alone. There is no state to keep, so the
same tokens come out alone or in a batch, in a fork, and when a sequence is computed again after a preemption.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


def waiting_times(seed: int, sample_idx: int, position: int, token_ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Exponentially distributed numbers of mean 1, at least 0, one per token id.

    Each key goes through SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
    2014) together with the hash of those before it. Cost: a dozen passes over the ids.
    """
    state = 0
    for key in (seed, sample_idx, position):
        state = _mix((state ^ key) + _GAMMA & _MASK)
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64
        hashed = _mix_all((token_ids.astype(np.uint64) ^ np.uint64(state)) + np.uint64(_GAMMA))
        hashed = _mix_all(hashed + np.uint64(_GAMMA))
    uniform = (hashed >> np.uint64(11)).astype(np.float64) * 2.0**-53
    waits: NDArray[np.float64] = -np.log1p(-uniform)
    return waits


def _mix(value: int) -> int:
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


def _mix_all(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
