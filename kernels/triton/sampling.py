"""Draw a token from every row: temperature, top-k, top-p, min-p, and a race; nothing is sorted.

A row is cut by what its tokens are worth, not by their rank. Logits are ordered as integers of 32 bits, and

    f(t) = sum over tokens of at least t            of 1 (top-k)  or of the token's weight (top-p)

falls as t rises. The cut is the largest t with f(t) >= k, or >= top_p * (all). It is found four bits at a time: a pass
over the row has the sums above all 15 borders between 16 ranges, and the next goes into the range where f crosses:

    t:   0x0....... | 0x1....... | ... | 0xC....... | ... 0xF.......        8 passes, whatever the vocabulary;
                                         0xC0...... | 0xC1...... ...        counted from the lowest integer

Of tokens just at the cut the lowest ids are kept, as many as it takes. min-p keeps weights of at least min_p, the
largest weight being 1. What is left runs a race: each token arrives after an exponential time over its weight, the
first one is drawn (`random_stream.py`). So the tokens are those of the CPU's samplers, but where two arrivals, or a
share and top-p, are as close as the rounding of an exponential.

The race needs a logarithm in fp64 a token. -log(1 - u) >= u, so a block whose smallest u / weight is behind the first
arrival so far is passed over; after the first blocks nearly all are.

One program a row. Source of the order: `runtime/sampler.py`; of the bisection: RadiK (Li et al. 2024), with sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import IS_INTERPRETED, KernelCall
from .random_stream import stream_state, uniform_bits

_BLOCK = 8192 if IS_INTERPRETED else 1024
_NEGLIGIBLE = tl.constexpr(1e-13)
_NO_TOKEN = tl.constexpr(0x7FFFFFFF)
_LOWEST_KEY = tl.constexpr(-0x80000000)


@triton.jit
def _load_row(start, first, vocab_size, BLOCK: tl.constexpr):
    """A block of logits, their token ids, and int32 keys in the order of the logits; -0 is 0."""
    token = first + tl.arange(0, BLOCK)
    logit = tl.load(start + token, mask=token < vocab_size, other=float("-inf")).to(tl.float32) + 0.0
    bits = logit.to(tl.int32, bitcast=True)
    return logit, token, tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _weights(logit, peak, temperature):
    """Of the softmax, without its divisor: the most likely token has 1."""
    return tl.exp((logit - peak) / temperature)


@triton.jit
def _find_cut(
    start, vocab_size, peak, temperature, target, above_key, above_id, BLOCK: tl.constexpr, IS_COUNT: tl.constexpr
):
    """The cut among the tokens above another cut: its key, and the last id kept of those that equal it."""
    border = tl.arange(0, 16).to(tl.int64)
    key_low = tl.full((), _LOWEST_KEY, tl.int64)
    for digit_idx in tl.range(0, 8):
        step = tl.full((), 1, tl.int64) << ((7 - digit_idx) * 4)
        floors = (key_low + border * step).to(tl.int32)
        sums = tl.zeros((16,), tl.float64)
        for first in tl.range(0, vocab_size, BLOCK):
            logit, token, key = _load_row(start, first, vocab_size, BLOCK)
            is_kept = (token < vocab_size) & ((key > above_key) | ((key == above_key) & (token <= above_id)))
            value = tl.where(is_kept, 1.0, 0.0)
            if not IS_COUNT:
                value = tl.where(is_kept, _weights(logit, peak, temperature), 0.0)
            reached = tl.where(key[:, None] >= floors[None, :], value[:, None], 0.0)
            sums += tl.sum(reached, axis=0).to(tl.float64)
        num_reaching = tl.sum(((sums >= target) & (border > 0)).to(tl.int32), axis=0)
        key_low += num_reaching * step
    cut = key_low.to(tl.int32)
    last = _last_of_equals(start, vocab_size, peak, temperature, target, above_key, above_id, cut, BLOCK, IS_COUNT)
    return cut, last


@triton.jit
def _last_of_equals(
    start, vocab_size, peak, temperature, target, above_key, above_id, cut, BLOCK: tl.constexpr, IS_COUNT: tl.constexpr
):
    """The id up to which tokens of key `cut` are kept: so many that the sum reaches the target, at least one."""
    above = tl.zeros((), tl.float64)
    value_of_equals = tl.full((), 1.0, tl.float32)
    for first in tl.range(0, vocab_size, BLOCK):
        logit, token, key = _load_row(start, first, vocab_size, BLOCK)
        is_kept = (token < vocab_size) & ((key > above_key) | ((key == above_key) & (token <= above_id)))
        value = tl.where(is_kept, 1.0, 0.0)
        if not IS_COUNT:
            value = tl.where(is_kept, _weights(logit, peak, temperature), 0.0)
            equal = tl.max(tl.where(is_kept & (key == cut), value, 0.0), axis=0)
            value_of_equals = tl.where(equal > 0.0, equal, value_of_equals)
        above += tl.sum(tl.where(key > cut, value, 0.0), axis=0).to(tl.float64)
    missing = tl.ceil(((target - above) / value_of_equals.to(tl.float64)).to(tl.float32))
    missing = tl.maximum(missing, 1.0).to(tl.int64)
    last = tl.full((), _NO_TOKEN, tl.int32)
    num_before = tl.zeros((), tl.int64)
    for first in tl.range(0, vocab_size, BLOCK):
        logit, token, key = _load_row(start, first, vocab_size, BLOCK)
        is_equal = (token < vocab_size) & (key == cut)
        rank = num_before + tl.cumsum(is_equal.to(tl.int32), axis=0)
        found = tl.min(tl.where(is_equal & (rank == missing), token, _NO_TOKEN), axis=0)
        last = tl.minimum(last, found)
        num_before += tl.sum(is_equal.to(tl.int32), axis=0)
    return last


@triton.jit
def _race(start, vocab_size, peak, temperature, min_p, cut, last, state, BLOCK: tl.constexpr):
    """The token that arrives first of those that are kept."""
    winner = tl.full((), _NO_TOKEN, tl.int32)
    first_arrival = tl.full((), float("inf"), tl.float64)
    for first in tl.range(0, vocab_size, BLOCK):
        logit, token, key = _load_row(start, first, vocab_size, BLOCK)
        weight = _weights(logit, peak, temperature)
        is_kept = (token < vocab_size) & ((key > cut) | ((key == cut) & (token <= last)))
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
                winner = tl.min(tl.where(arrival == earliest, token, _NO_TOKEN), axis=0)
                first_arrival = earliest
    return winner


@triton.jit
def sample_kernel(
    logits, token_ids, peaks, temperatures, top_ks, top_ps, min_ps, seeds, sample_indices, positions,
    logits_stride, vocab_size, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * logits_stride
    peak = tl.load(peaks + row).to(tl.float32)
    temperature = tl.load(temperatures + row).to(tl.float32)
    is_finite = tl.abs(peak) < float("inf")  # false for NaN too
    if (temperature == 0.0) | (is_finite == 0):
        return
    top_k = tl.load(top_ks + row).to(tl.int32)
    top_p = tl.load(top_ps + row).to(tl.float64)
    min_p = tl.load(min_ps + row).to(tl.float32)
    cut = tl.full((), _LOWEST_KEY, tl.int32)
    last = tl.full((), _NO_TOKEN, tl.int32)
    if (top_k > 0) & (top_k < vocab_size):
        cut, last = _find_cut(start, vocab_size, peak, temperature, top_k.to(tl.float64), cut, last, BLOCK, True)
    if top_p < 1.0:
        total = tl.zeros((), tl.float64)
        for first in tl.range(0, vocab_size, BLOCK):
            logit, token, key = _load_row(start, first, vocab_size, BLOCK)
            is_kept = (token < vocab_size) & ((key > cut) | ((key == cut) & (token <= last)))
            total += tl.sum(tl.where(is_kept, _weights(logit, peak, temperature), 0.0), axis=0).to(tl.float64)
        cut, last = _find_cut(start, vocab_size, peak, temperature, top_p * total, cut, last, BLOCK, False)
    seed = tl.load(seeds + row).to(tl.int64).to(tl.uint64, bitcast=True)
    sample_idx = tl.load(sample_indices + row).to(tl.int64).to(tl.uint64, bitcast=True)
    position = tl.load(positions + row).to(tl.int64).to(tl.uint64, bitcast=True)
    state = stream_state(seed, sample_idx, position)
    winner = _race(start, vocab_size, peak, temperature, min_p, cut, last, state, BLOCK)
    tl.store(token_ids + row, winner.to(tl.int64))


@dataclass(frozen=True, slots=True)
class SamplingTensors:
    """What the rows want, S entries each.

    Attributes:
        temperatures: fp32; 0 takes the most likely token. At least the smallest normal number otherwise.
        top_ks: int32; below 1 or from the vocabulary's size up, all.
        top_ps: fp64; 1 keeps all.
        min_ps: fp32; 0 keeps all.
        seeds: int64, the bits of a number in [0, 2^64).
        sample_indices, positions: int64.
    """

    temperatures: Tensor
    top_ks: Tensor
    top_ps: Tensor
    min_ps: Tensor
    seeds: Tensor
    sample_indices: Tensor
    positions: Tensor


def sample(logits: Tensor, token_ids: Tensor, peaks: Tensor, wanted: SamplingTensors) -> None:
    """Replace the most likely tokens by drawn ones, where the temperature is above 0 and the peak finite.

    Args:
        logits: fp32 [S, vocab], with bans, biases, penalties and masks applied.
        token_ids, peaks: what `argmax` has for these logits. Mutates `token_ids`.
    """
    sample_call(logits, token_ids, peaks, wanted).run()


def sample_call(logits: Tensor, token_ids: Tensor, peaks: Tensor, wanted: SamplingTensors) -> KernelCall:
    """Writes `token_ids`."""
    assert logits.dtype == torch.float32
    assert logits.stride(1) == 1
    return KernelCall(
        sample_kernel,
        (logits.shape[0],),
        (
            *(logits, token_ids, peaks, wanted.temperatures, wanted.top_ks, wanted.top_ps, wanted.min_ps),
            *(wanted.seeds, wanted.sample_indices, wanted.positions, logits.stride(0), logits.shape[1]),
        ),
        {"BLOCK": _BLOCK},
        num_warps=8,
    )
