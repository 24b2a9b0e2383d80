"""Random numbers that are a function of where they are used, not of when.

The number for one token depends on (seed, sample index, position) alone. There is no state to keep, so the same tokens
come out alone or in a batch, in a fork, and when a sequence is computed again after a preemption.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


def uniform(seed: int, sample_idx: int, position: int) -> float:
    """A number in [0, 1), a multiple of 2**-53.

    Each key goes through SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
    2014) together with the hash of those before it.
    """
    state = 0
    for key in (seed, sample_idx, position):
        state = _mix((state ^ key) + _GAMMA & _MASK)
    return (_mix(state + _GAMMA & _MASK) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
