"""Logprobs of rows of logits that lie on the device: `logprobs.py` defines them, here they are computed there.

    logits [rows, vocab]  --token_ranks, topk-->  fp64 [rows, 3 + 2 top_n]  --one copy-->  TokenLogprobs

A line of the second has the row's own token (id, logprob, rank), then the ids and the logprobs of the most likely
tokens. So a few numbers a row come to the host, and nothing waits before they are read. Values differ from the
definition's by the rounding of fp64, ranks and orders not at all; a row's values depend on that row alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...kernels.triton.logprobs import token_ranks
from ..logprobs import Logprob, row_logprobs, to_numpy
from ..logprobs import token_logprobs_of as token_logprobs_on_host
from ..outputs import TokenLogprobs
from .upload import upload

_SORTED_PER_SLICE = 1 << 22
"""Logits that are ordered at a time; it takes some 40 bytes for each."""

_LOW_WORD = 0xFFFFFFFF


def listing_lines(logits: Tensor, row_indices: Tensor, token_ids: Tensor, top_n: int) -> Tensor:
    """The numbers of R listings, on the device and without waiting for it.

    Args:
        logits: fp32 [rows, vocab].
        row_indices, token_ids: int64 [R] on the device of the logits: which row, and its own token. A token that there
            is not, as where nothing could be sampled, has some other's logprob: such lines are to be thrown away.
        top_n: at least 0; more than the vocabulary counts as all of it.

    Returns:
        fp64 [R, 3 + 2 * min(top_n, vocab)]: see above.
    """
    token_ids = token_ids.clamp(0, logits.shape[1] - 1)
    totals, ranks = token_ranks(logits, row_indices, token_ids)
    own = logits[row_indices, token_ids].double() - totals
    lines = [token_ids.double()[:, None], own[:, None], ranks.double()[:, None]]
    if top_n:
        top_ids = _most_likely(logits, row_indices, min(top_n, logits.shape[1]))
        top_logprobs = logits[row_indices[:, None], top_ids].double() - totals[:, None]
        lines += [top_ids.double(), top_logprobs]
    return torch.cat(lines, dim=1)


def read_listings(lines: NDArray[np.float64], top_ns: Sequence[int]) -> list[TokenLogprobs]:
    """The listings of lines that came to the host, each with as many of the most likely tokens as it is to have; no
    more than the lines hold."""
    width = (lines.shape[1] - 3) // 2
    listings = []
    for line, top_n in zip(lines.tolist(), top_ns, strict=True):
        own_id = int(line[0])
        listing = {own_id: Logprob(line[1], int(line[2]))}
        for idx in range(min(top_n, width)):
            listing.setdefault(int(line[3 + idx]), Logprob(line[3 + width + idx], idx + 1))
        listings.append(listing)
    return listings


def listings_of(
    logits: Tensor, row_indices: Sequence[int], token_ids: Sequence[int], top_ns: Sequence[int]
) -> list[TokenLogprobs]:
    """For each named row, the logprobs of its own token and of as many of the most likely ones as it is to have.
    Waits for the device; where that has no memory left, they are computed on the host."""
    if not token_ids:
        return []
    indices = [np.array(row_indices, dtype=np.int64), np.array(token_ids, dtype=np.int64)]
    try:
        rows, ids = upload(indices, logits.device)
        lines = listing_lines(logits, rows, ids, max(top_ns)).cpu().numpy()
    except torch.OutOfMemoryError:
        lines = None  # and not here, where the error still holds what was allocated
    if lines is not None:
        return read_listings(lines, top_ns)
    wanted = zip(row_indices, token_ids, top_ns, strict=True)
    return [row_logprobs(to_numpy(logits[row_idx]), token_id, top_n) for row_idx, token_id, top_n in wanted]


def logprobs_of(logits: Tensor, token_ids: Sequence[int], top_n: int) -> list[TokenLogprobs]:
    """See `logprobs.logprobs_of`, and `listings_of`."""
    assert logits.shape[0] == len(token_ids)
    return listings_of(logits, range(len(token_ids)), token_ids, [top_n] * len(token_ids))


def token_logprobs_of(logits: Tensor, row_indices: Sequence[int], token_ids: Sequence[int]) -> list[float]:
    """See `logprobs.token_logprobs_of`: the floats that `logprobs_of` here lists. Waits for the device; where that has
    no memory left, they are computed on the host."""
    if not token_ids:
        return []
    wanted, places = np.unique(np.array(row_indices, dtype=np.int64), return_inverse=True)
    arrays = (wanted, np.zeros_like(wanted), places.astype(np.int64), np.array(token_ids, dtype=np.int64))
    values: list[float] | None
    try:
        rows, first_ids, line_indices, ids = upload(arrays, logits.device)
        totals, _ = token_ranks(logits, rows, first_ids)
        values = (logits[rows[line_indices], ids].double() - totals[line_indices]).tolist()
    except torch.OutOfMemoryError:
        values = None
    return token_logprobs_on_host(logits, row_indices, token_ids) if values is None else values


def _most_likely(logits: Tensor, row_indices: Tensor, count: int) -> Tensor:
    """Ids int64 [R, count] of the largest logits, in order; of equal ones the lower id comes first."""
    num_rows = max(1, _SORTED_PER_SLICE // logits.shape[1])
    return torch.cat([_top_ids(logits.index_select(0, rows), count) for rows in torch.split(row_indices, num_rows)])


def _top_ids(logits: Tensor, count: int) -> Tensor:
    """Tokens are ordered by one integer each, the order of the logit above the reversed id, so that there are no ties
    for topk to break as it likes. -0 is 0."""
    bits = (logits + 0.0).view(torch.int32)
    order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    reversed_ids = torch.arange(_LOW_WORD, _LOW_WORD - logits.shape[1], -1, device=logits.device)
    keys = torch.topk((order << 32) | reversed_ids, count, dim=1).values
    return _LOW_WORD - (keys & _LOW_WORD)
