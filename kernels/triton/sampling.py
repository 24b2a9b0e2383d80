"""Draw a token from every row: temperature, top-k, top-p, min-p, and a race; nothing is sorted.

A row is cut by what its tokens are worth, not by their rank. Logits are ordered as integers of 32 bits, and

    f(t) = sum over tokens of at least t            of 1 (top-k)  or of the token's weight (top-p)

falls as t rises. The cut is the largest t with f(t) >= k, or >= top_p * (all). It is found four bits at a time: a pass
over the row has the sums above all 15 borders between 16 ranges, and the next goes into the range where f crosses:

    t:   0x0....... | 0x1....... | ... | 0xC....... | ... 0xF.......        8 passes, whatever the vocabulary;
                                         0xC0...... | 0xC1...... ...        counted from the lowest integer

Of tokens just at the cut the lowest ids are kept, as many as it takes. min-p keeps weights of at least min_p, the
largest weight being 1. What is left runs a race (`race.py`). So the tokens are those of the CPU's samplers, but where
two arrivals, or a share and top-p, are as close as the rounding of an exponential.

The passes are over the row's candidates (`candidates.py`), by one program. Four launches in all; two if no row of a
step is cut. Source of the order: `runtime/sampler.py`; of the bisection: RadiK (Li et al. 2024), with sums.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import candidates
from .candidates import Candidates, is_cut, num_pieces_of
from .launch import IS_INTERPRETED, KernelCall, block_of, next_power_of_2
from .race import NO_TOKEN, race_block, row_state, weights_of

_BLOCK = 8192 if IS_INTERPRETED else 1024
_LOWEST_KEY = tl.constexpr(-0x80000000)


@triton.jit
def _load_entries(start, ids, num_gathered, first, num_entries, BLOCK: tl.constexpr):
    """A block of a row's entries: logits, token ids, int32 keys in the order of the logits, and which of them exist.
    Entries are candidates, or all tokens of a row of which none were gathered. -0 is 0."""
    entry = first + tl.arange(0, BLOCK)
    is_entry = entry < num_entries
    logit = tl.load(start + entry, mask=is_entry, other=float("-inf")).to(tl.float32) + 0.0
    token_id = tl.load(ids + entry, mask=entry < num_gathered, other=0).to(tl.int32)
    bits = logit.to(tl.int32, bitcast=True)
    return logit, tl.where(num_gathered > 0, token_id, entry), tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits), is_entry


@triton.jit
def _load_kept(start, ids, num_gathered, first, num_entries, cut, last, BLOCK: tl.constexpr):
    """As `_load_entries`, and at the end which of them a cut keeps."""
    logit, token, key, is_entry = _load_entries(start, ids, num_gathered, first, num_entries, BLOCK)
    return logit, token, key, is_entry & ((key > cut) | ((key == cut) & (token <= last)))


@triton.jit
def _find_cut(
    start,
    ids,
    num_gathered,
    num_entries,
    peak,
    temperature,
    target,
    above_key,
    above_id,
    BLOCK: tl.constexpr,
    IS_COUNT: tl.constexpr,
):
    """The cut among the tokens above another cut: its key, and the last id kept of those that equal it."""
    border = tl.arange(0, 16).to(tl.int64)
    key_low = tl.full((), _LOWEST_KEY, tl.int64)
    for digit_idx in tl.range(0, 8):
        step = tl.full((), 1, tl.int64) << ((7 - digit_idx) * 4)
        floors = (key_low + border * step).to(tl.int32)
        sums = tl.zeros((16,), tl.float64)
        for first in tl.range(0, num_entries, BLOCK):
            logit, _, key, is_kept = _load_kept(
                start, ids, num_gathered, first, num_entries, above_key, above_id, BLOCK
            )
            value = tl.where(is_kept, 1.0, 0.0)
            if not IS_COUNT:
                value = tl.where(is_kept, weights_of(logit, peak, temperature), 0.0)
            reached = tl.where(key[:, None] >= floors[None, :], value[:, None], 0.0)
            sums += tl.sum(reached, axis=0).to(tl.float64)
        num_reaching = tl.sum(((sums >= target) & (border > 0)).to(tl.int32), axis=0)
        key_low += num_reaching * step
    cut = key_low.to(tl.int32)
    last = _last_of_equals(
        start, ids, num_gathered, num_entries, peak, temperature, target, above_key, above_id, cut, BLOCK, IS_COUNT
    )
    return cut, last


@triton.jit
def _last_of_equals(
    start,
    ids,
    num_gathered,
    num_entries,
    peak,
    temperature,
    target,
    above_key,
    above_id,
    cut,
    BLOCK: tl.constexpr,
    IS_COUNT: tl.constexpr,
):
    """The id up to which tokens of key `cut` are kept: so many that the sum reaches the target, at least one."""
    above = tl.zeros((), tl.float64)
    value_of_equals = tl.full((), 1.0, tl.float32)
    for first in tl.range(0, num_entries, BLOCK):
        logit, token, key, is_kept = _load_kept(
            start, ids, num_gathered, first, num_entries, above_key, above_id, BLOCK
        )
        value = tl.where(is_kept, 1.0, 0.0)
        if not IS_COUNT:
            value = tl.where(is_kept, weights_of(logit, peak, temperature), 0.0)
            equal = tl.max(tl.where(is_kept & (key == cut), value, 0.0), axis=0)
            value_of_equals = tl.where(equal > 0.0, equal, value_of_equals)
        above += tl.sum(tl.where(key > cut, value, 0.0), axis=0).to(tl.float64)
    missing = tl.ceil(((target - above) / value_of_equals.to(tl.float64)).to(tl.float32))
    missing = tl.maximum(missing, 1.0).to(tl.int64)
    last = tl.full((), NO_TOKEN, tl.int32)
    num_before = tl.zeros((), tl.int64)
    for first in tl.range(0, num_entries, BLOCK):
        logit, token, key, is_entry = _load_entries(start, ids, num_gathered, first, num_entries, BLOCK)
        is_equal = is_entry & (key == cut)
        rank = num_before + tl.cumsum(is_equal.to(tl.int32), axis=0)
        found = tl.min(tl.where(is_equal & (rank == missing), token, NO_TOKEN), axis=0)
        last = tl.minimum(last, found)
        num_before += tl.sum(is_equal.to(tl.int32), axis=0)
    return last


@triton.jit
def _draw_entries(
    start, ids, num_gathered, num_entries, peak, temperature, top_k, top_p, min_p, total, state, BLOCK: tl.constexpr
):
    """The token drawn of a row that is cut; `total` is the weight of all its tokens, fp64."""
    cut = tl.full((), _LOWEST_KEY, tl.int32)
    last = tl.full((), NO_TOKEN, tl.int32)
    if (top_k > 0) & (top_k <= num_entries):  # as many: top-p is still a share of them alone
        cut, last = _find_cut(
            start, ids, num_gathered, num_entries, peak, temperature, top_k.to(tl.float64), cut, last, BLOCK, True
        )
        total = tl.zeros((), tl.float64)
        for first in tl.range(0, num_entries, BLOCK):
            logit, token, _, is_kept = _load_kept(start, ids, num_gathered, first, num_entries, cut, last, BLOCK)
            total += tl.sum(tl.where(is_kept, weights_of(logit, peak, temperature), 0.0), axis=0).to(tl.float64)
    if top_p < 1.0:
        cut, last = _find_cut(
            start, ids, num_gathered, num_entries, peak, temperature, top_p * total, cut, last, BLOCK, False
        )
    winner = tl.full((), NO_TOKEN, tl.int32)
    first_arrival = tl.full((), float("inf"), tl.float64)
    for first in tl.range(0, num_entries, BLOCK):
        logit, token, _, is_kept = _load_kept(start, ids, num_gathered, first, num_entries, cut, last, BLOCK)
        weight = weights_of(logit, peak, temperature)
        winner, first_arrival = race_block(token, weight, is_kept, min_p, state, winner, first_arrival)
    return winner


@triton.jit
def draw_kernel(
    logits, token_ids, peaks, temperatures, top_ks, top_ps, min_ps, seeds, sample_indices, positions,
    num_candidates, row_totals, candidate_logits, candidate_ids, arrivals, winners,
    logits_stride, vocab_size, num_pieces,
    MAX_CANDIDATES: tl.constexpr, PADDED_PIECES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program a row. A row that cannot be drawn from keeps its token."""
    row = tl.program_id(0).to(tl.int64)
    peak = tl.load(peaks + row).to(tl.float32)
    temperature = tl.load(temperatures + row).to(tl.float32)
    is_finite = tl.abs(peak) < float("inf")  # false for NaN too
    if (temperature == 0.0) | (is_finite == 0):
        return
    top_k = tl.load(top_ks + row).to(tl.int32)
    top_p = tl.load(top_ps + row).to(tl.float64)
    winner = tl.full((), NO_TOKEN, tl.int32)
    if is_cut(top_k, top_p, vocab_size):
        min_p = tl.load(min_ps + row).to(tl.float32)
        state = row_state(seeds, sample_indices, positions, row)
        num_gathered = tl.load(num_candidates + row).to(tl.int32)
        num_gathered = tl.where(num_gathered <= MAX_CANDIDATES, num_gathered, 0)
        is_gathered = num_gathered > 0
        start = tl.where(is_gathered, candidate_logits + row * MAX_CANDIDATES, logits + row * logits_stride)
        num_entries = tl.where(is_gathered, num_gathered, vocab_size)
        total = tl.load(row_totals + row).to(tl.float64)
        winner = _draw_entries(
            start, candidate_ids + row * MAX_CANDIDATES, num_gathered, num_entries,
            peak, temperature, top_k, top_p, min_p, total, state, BLOCK,
        )  # fmt: skip
    else:
        piece = tl.arange(0, PADDED_PIECES)
        place = row * num_pieces + piece
        arrival = tl.load(arrivals + place, mask=piece < num_pieces, other=float("inf")).to(tl.float64)
        first_of_piece = tl.load(winners + place, mask=piece < num_pieces, other=NO_TOKEN).to(tl.int32)
        earliest = tl.min(arrival, axis=0)
        winner = tl.min(tl.where(arrival == earliest, first_of_piece, NO_TOKEN), axis=0)
    tl.store(token_ids + row, winner.to(tl.int64), mask=winner != NO_TOKEN)


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
        has_cuts: whether any row has a top_k or a top_p that cuts; False spares launches.
    """

    temperatures: Tensor
    top_ks: Tensor
    top_ps: Tensor
    min_ps: Tensor
    seeds: Tensor
    sample_indices: Tensor
    positions: Tensor
    has_cuts: bool = field(default=True, kw_only=True)


def sample(logits: Tensor, token_ids: Tensor, peaks: Tensor, wanted: SamplingTensors) -> None:
    """Replace the most likely tokens by drawn ones, where the temperature is above 0 and the peak finite.

    Args:
        logits: fp32 [S, vocab], with bans, biases, penalties and masks applied.
        token_ids, peaks: what `argmax` has for these logits. Mutates `token_ids`.
    """
    for call in sample_calls(logits, token_ids, peaks, wanted):
        call.run()


def sample_calls(logits: Tensor, token_ids: Tensor, peaks: Tensor, wanted: SamplingTensors) -> list[KernelCall]:
    """What `sample` launches, one after another; the last writes `token_ids`."""
    assert logits.dtype == torch.float32
    assert logits.stride(1) == 1
    (num_rows, vocab_size), num_pieces = logits.shape, num_pieces_of(logits)
    found = Candidates.empty(logits)
    sizes = (logits.stride(0), vocab_size, num_pieces)
    cuts = (wanted.temperatures, wanted.top_ks, wanted.top_ps)
    drawn = (peaks, *cuts, wanted.min_ps, wanted.seeds, wanted.sample_indices, wanted.positions)
    piece = candidates.piece_constants(vocab_size)
    padded = {"PADDED_PIECES": next_power_of_2(num_pieces)}
    most = {"MAX_CANDIDATES": candidates.MAX_CANDIDATES}
    sums = (found.counts, found.weights, found.totals)
    weigh = KernelCall(
        candidates.weigh_kernel, (num_rows, num_pieces), (logits, peaks, *cuts, found.borders, *sums, *sizes), piece
    )
    choose = KernelCall(
        candidates.choose_kernel,
        (num_rows,),
        (*cuts, *sums, found.chosen, found.starts, found.num_candidates, found.row_totals, *sizes[1:]),
        padded,
    )
    gather = KernelCall(
        candidates.gather_kernel,
        (num_rows, num_pieces),
        (
            *(logits, *drawn, found.borders, found.chosen, found.starts, found.num_candidates),
            *(found.logits, found.ids, found.arrivals, found.winners, *sizes),
        ),
        {**most, **piece},
    )
    draw = KernelCall(
        draw_kernel,
        (num_rows,),
        (
            *(logits, token_ids, *drawn, found.num_candidates, found.row_totals),
            *(found.logits, found.ids, found.arrivals, found.winners, *sizes),
        ),
        {**most, **padded, "BLOCK": block_of(_BLOCK, vocab_size)},
        num_warps=16,
    )
    return [weigh, choose, gather, draw] if wanted.has_cuts else [gather, draw]
