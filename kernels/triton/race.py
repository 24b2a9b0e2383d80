"""The race that draws a token: each arrives after an exponential time over its weight, and the first one is drawn.

    arrival = -log(1 - u) / weight          u: 53 random bits of the token (random_stream.py); logarithm in fp64

When a token arrives does not depend on who else takes part, so a row may be raced in pieces and the first of the firsts
taken. -log(1 - u) >= u, so a block whose smallest u / weight is behind the first arrival so far is passed over, without
a logarithm.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .random_stream import stream_state, uniform_bits

NO_TOKEN = tl.constexpr(0x7FFFFFFF)
_NEGLIGIBLE = tl.constexpr(1e-13)


@triton.jit
def weights_of(logit, peak, temperature):
    """Of the softmax, without its divisor: the most likely token has 1."""
    return tl.exp((logit - peak) / temperature)


@triton.jit
def row_state(seeds, sample_indices, positions, row):
    """The state of a row's random numbers."""
    seed = tl.load(seeds + row).to(tl.int64).to(tl.uint64, bitcast=True)
    sample_idx = tl.load(sample_indices + row).to(tl.int64).to(tl.uint64, bitcast=True)
    position = tl.load(positions + row).to(tl.int64).to(tl.uint64, bitcast=True)
    return stream_state(seed, sample_idx, position)


@triton.jit
def race_block(token, weight, is_kept, min_p, state, winner, first_arrival):
    """The first of a block's tokens and the first one so far: its id, int32, and its arrival, fp64."""
    is_kept &= (weight >= min_p) & (weight > _NEGLIGIBLE)
    bits = uniform_bits(state, token.to(tl.uint64)).to(tl.int64)
    # A little below u / weight, whatever the rounding of fp32.
    soonest = bits.to(tl.float32) * (2.0**-53 * 0.999999) / tl.where(is_kept, weight, 1.0)
    soonest = tl.min(tl.where(is_kept, soonest, float("inf")), axis=0)
    if soonest.to(tl.float64) < first_arrival:
        wait = -tl.log(1.0 - bits.to(tl.float64) * 2.0**-53)
        arrival = tl.where(is_kept, wait / tl.where(is_kept, weight, 1.0).to(tl.float64), float("inf"))
        earliest = tl.min(arrival, axis=0)
        if earliest < first_arrival:
            winner = tl.min(tl.where(arrival == earliest, token, NO_TOKEN), axis=0)
            first_arrival = earliest
    return winner, first_arrival
