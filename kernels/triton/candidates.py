"""The tokens of a row that top-k and top-p may leave, gathered: a few hundred of a vocabulary of 150,000.

Finding the exact cut takes some twenty passes over a row by one program (sampling.py). Over a whole vocabulary those
would take as long as a model's step, so the row is first reduced by many programs:

    weigh     a program a piece of a row: how many logits are above each of 16 borders, and what they weigh

                  peak - 30 T      ...     peak - 2 T   peak - T   peak - T / 2    peak         T: temperature
                  |                        |            |          |               |
                  count, weight            count, weight ...

    choose    a program a row: the highest border above which there are top_k tokens, or top_p of all weight; and where
              each piece's tokens go
    gather    a program a piece: its tokens above that border, with their ids, in order of their ids

What the cut keeps is among them, as they are a row's largest logits and enough. Tokens below the last border weigh less
than 1e-13 and are never drawn. A row that has more candidates than there is room for is not gathered: the cut is then
sought in the whole row. A row that neither top-k nor top-p cuts is raced by `gather` in pieces (race.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import IS_INTERPRETED, block_of
from .race import NO_TOKEN, race_block, row_state, weights_of

_PIECE = 8192 if IS_INTERPRETED else 2048
"""Tokens of a program."""
_BLOCK = 8192 if IS_INTERPRETED else 512
"""Tokens that it takes at a time."""
MAX_CANDIDATES = 16_384
NUM_BORDERS = tl.constexpr(16)


@triton.jit
def _border(border_idx, peak, temperature):
    """Logits from which on tokens are above a border: so many temperatures below the peak, up to 30."""
    distance = 0.5 + 0.5 * border_idx + tl.where(border_idx > 3, 0.146 * (border_idx - 3) * (border_idx - 3), 0.0)
    distance = tl.where(border_idx == 15, 30.0, distance)
    return peak - distance * temperature


@triton.jit
def is_cut(top_k, top_p, vocab_size):
    """Whether top-k or top-p cut a row."""
    return ((top_k > 0) & (top_k < vocab_size)) | (top_p < 1.0)


@triton.jit
def weigh_kernel(
    logits, peaks, temperatures, top_ks, top_ps, borders, counts, weights, totals,
    logits_stride, vocab_size, num_pieces, PIECE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes counts int32 and weights fp64 [S, pieces, NUM_BORDERS], the weight of all, totals fp64 [S, pieces], and
    borders fp32 [S, NUM_BORDERS]: who counts and who gathers must have the same to the bit."""
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperatures + row).to(tl.float32)
    top_k, top_p = tl.load(top_ks + row).to(tl.int32), tl.load(top_ps + row).to(tl.float64)
    if (temperature == 0.0) | (is_cut(top_k, top_p, vocab_size) == 0):
        return
    peak = tl.load(peaks + row).to(tl.float32)
    border_idx = tl.arange(0, NUM_BORDERS)
    border = _border(border_idx, peak, temperature)
    count = tl.zeros((NUM_BORDERS,), tl.int32)
    weight = tl.zeros((NUM_BORDERS,), tl.float64)
    total = tl.zeros((), tl.float64)
    for first in tl.range(piece * PIECE, tl.minimum((piece + 1) * PIECE, vocab_size), BLOCK):
        token = first + tl.arange(0, BLOCK)
        is_token = token < vocab_size
        logit = tl.load(logits + row * logits_stride + token, mask=is_token, other=float("-inf")).to(tl.float32)
        value = tl.where(is_token, weights_of(logit, peak, temperature), 0.0)
        is_above = is_token[:, None] & (logit[:, None] >= border[None, :])
        count += tl.sum(is_above.to(tl.int32), axis=0)
        weight += tl.sum(tl.where(is_above, value[:, None], 0.0), axis=0).to(tl.float64)
        total += tl.sum(value, axis=0).to(tl.float64)
    if piece == 0:
        tl.store(borders + row * NUM_BORDERS + border_idx, border)
    place = row * num_pieces + piece
    tl.store(counts + place * NUM_BORDERS + border_idx, count)
    tl.store(weights + place * NUM_BORDERS + border_idx, weight)
    tl.store(totals + place, total)


@triton.jit
def choose_kernel(
    temperatures, top_ks, top_ps, counts, weights, totals, chosen, starts, num_candidates, row_totals,
    vocab_size, num_pieces, PADDED_PIECES: tl.constexpr,
):  # fmt: skip
    """Writes which border each row has, its number of candidates, both int32, the weight of all its tokens fp64 (all
    [S]), and where its pieces' candidates go, starts int32 [S, pieces]."""
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + row).to(tl.float32)
    top_k, top_p = tl.load(top_ks + row).to(tl.int32), tl.load(top_ps + row).to(tl.float64)
    if (temperature == 0.0) | (is_cut(top_k, top_p, vocab_size) == 0):
        return
    piece = tl.arange(0, PADDED_PIECES)
    is_piece = piece < num_pieces
    border_idx = tl.arange(0, NUM_BORDERS)
    place = row * num_pieces + piece
    places = place[:, None] * NUM_BORDERS + border_idx[None, :]
    count = tl.load(counts + places, mask=is_piece[:, None], other=0).to(tl.int32)
    weight = tl.load(weights + places, mask=is_piece[:, None], other=0.0).to(tl.float64)
    total = tl.sum(tl.load(totals + place, mask=is_piece, other=0.0).to(tl.float64), axis=0)
    # Borders are descending, so sums are ascending: the first that suffice, or the last border. Sums that are equal but
    # for their rounding do not suffice.
    enough = tl.sum(weight, axis=0) >= top_p * total * (1.0 + 1e-6)
    if (top_k > 0) & (top_k < vocab_size):
        enough = tl.sum(count, axis=0) >= top_k
    choice = tl.min(tl.where(enough, border_idx, NUM_BORDERS - 1), axis=0)
    chosen_count = tl.sum(tl.where(border_idx[None, :] == choice, count, 0), axis=1)
    tl.store(starts + place, tl.cumsum(chosen_count, axis=0) - chosen_count, mask=is_piece)
    tl.store(num_candidates + row, tl.sum(chosen_count, axis=0))
    tl.store(chosen + row, choice)
    tl.store(row_totals + row, total)


@triton.jit
def gather_kernel(
    logits, peaks, temperatures, top_ks, top_ps, min_ps, seeds, sample_indices, positions,
    borders, chosen, starts, num_candidates, candidate_logits, candidate_ids, arrivals, winners,
    logits_stride, vocab_size, num_pieces,
    MAX_CANDIDATES: tl.constexpr, PIECE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes the candidates of rows that are cut, logits fp32 and ids int32 [S, MAX_CANDIDATES]; of other rows who is
    first in each piece and its arrival, winners int32 and arrivals fp64 [S, pieces]."""
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperatures + row).to(tl.float32)
    peak = tl.load(peaks + row).to(tl.float32)
    if (temperature == 0.0) | ((tl.abs(peak) < float("inf")) == 0):
        return
    top_k, top_p = tl.load(top_ks + row).to(tl.int32), tl.load(top_ps + row).to(tl.float64)
    start = logits + row * logits_stride
    lane = tl.arange(0, BLOCK)
    place = row * num_pieces + piece
    end = tl.minimum((piece + 1) * PIECE, vocab_size)
    if is_cut(top_k, top_p, vocab_size):
        if tl.load(num_candidates + row).to(tl.int32) <= MAX_CANDIDATES:
            choice = tl.load(chosen + row).to(tl.int32)
            border = tl.load(borders + row * NUM_BORDERS + choice).to(tl.float32)
            target = row * MAX_CANDIDATES + tl.load(starts + place).to(tl.int64)
            for first in tl.range(piece * PIECE, end, BLOCK):
                token = first + lane
                logit = tl.load(start + token, mask=token < end, other=float("-inf")).to(tl.float32)
                is_candidate = (token < end) & (logit >= border)
                rank = tl.cumsum(is_candidate.to(tl.int32), axis=0)
                tl.store(candidate_logits + target + rank - 1, logit, mask=is_candidate)
                tl.store(candidate_ids + target + rank - 1, token, mask=is_candidate)
                target += tl.sum(is_candidate.to(tl.int32), axis=0)
    else:
        min_p = tl.load(min_ps + row).to(tl.float32)
        state = row_state(seeds, sample_indices, positions, row)
        winner = tl.full((), NO_TOKEN, tl.int32)
        first_arrival = tl.full((), float("inf"), tl.float64)
        for first in tl.range(piece * PIECE, end, BLOCK):
            token = first + lane
            logit = tl.load(start + token, mask=token < end, other=float("-inf")).to(tl.float32)
            weight = weights_of(logit, peak, temperature)
            winner, first_arrival = race_block(token, weight, token < end, min_p, state, winner, first_arrival)
        tl.store(winners + place, winner)
        tl.store(arrivals + place, first_arrival)


@dataclass(frozen=True, slots=True)
class Candidates:
    """What the kernels above leave for `sampling.draw_kernel`, uninitialised; see there for shapes and dtypes."""

    borders: Tensor
    counts: Tensor
    weights: Tensor
    totals: Tensor
    chosen: Tensor
    starts: Tensor
    num_candidates: Tensor
    row_totals: Tensor
    logits: Tensor
    ids: Tensor
    arrivals: Tensor
    winners: Tensor

    @classmethod
    def empty(cls, logits: Tensor) -> Candidates:
        """Memory for the rows of logits [S, vocab]: 12 KiB a row for each 2,048 tokens, and 128 KiB."""
        num_rows, num_pieces = logits.shape[0], num_pieces_of(logits)
        borders = int(NUM_BORDERS.value)

        def new(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.empty((num_rows, *shape), dtype=dtype, device=logits.device)

        return cls(
            borders=new(borders, dtype=torch.float32),
            counts=new(num_pieces, borders),
            weights=new(num_pieces, borders, dtype=torch.float64),
            totals=new(num_pieces, dtype=torch.float64),
            chosen=new(),
            starts=new(num_pieces),
            num_candidates=new(),
            row_totals=new(dtype=torch.float64),
            logits=new(MAX_CANDIDATES, dtype=torch.float32),
            ids=new(MAX_CANDIDATES),
            arrivals=new(num_pieces, dtype=torch.float64),
            winners=new(num_pieces),
        )


def num_pieces_of(logits: Tensor) -> int:
    """Programs of a row."""
    return -(-logits.shape[1] // _PIECE)


def piece_constants(vocab_size: int) -> dict[str, int]:
    """What `weigh_kernel` and `gather_kernel` have to know when they are compiled."""
    return {"PIECE": _PIECE, "BLOCK": block_of(_BLOCK, vocab_size)}
