"""Padding of decoding steps: a few batch sizes instead of all of them.

A graph of kernel launches is captured for one shape and can be replayed for no other. So a step in which every sequence
has one new token is filled up with rows of padding to the next size that was captured (CUDA graphs as in TensorRT-LLM,
vLLM and SGLang); larger steps, and steps with longer parts, run as they are. Each row of padding is a sequence of one
token 0 at position 0, whose block is outside the pool: it reads and writes no slot of anybody's, and no logits are
computed for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from .batch import FlatBatch

_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def sizes_up_to(most: int) -> tuple[int, ...]:
    """A row of sizes that ends with `most`, or with 512: small ones where a row of padding costs most; above, no more
    than a third of a step is padding."""
    most = min(most, _SIZES[-1])
    return (*(size for size in _SIZES if size < most), most)


def padded_size(num_rows: int, sizes: Sequence[int]) -> int:
    """The smallest of the ascending sizes that is at least num_rows; num_rows itself if there is none. O(log sizes)."""
    size_idx = bisect_left(sizes, num_rows)
    return sizes[size_idx] if size_idx < len(sizes) else num_rows


def num_padding_rows(num_tokens: int, num_seqs: int, sizes: Sequence[int]) -> int:
    """Rows that a step of num_tokens new tokens in num_seqs sequences is filled up with; 0 unless it only decodes."""
    return padded_size(num_seqs, sizes) - num_seqs if num_tokens == num_seqs else 0


def pad_decodes(flat: FlatBatch, sizes: Sequence[int], padding_block_id: int) -> None:
    """Fill a step that only decodes up to the next of the sizes, with sequences behind its own. Mutates `flat`.

    All rows of padding write to the same slot, and all write the same.
    """
    num_rows = len(flat.token_ids)
    count = num_padding_rows(num_rows, len(flat.block_tables), sizes)
    flat.token_ids += [0] * count
    flat.positions += [0] * count
    flat.query_starts += range(num_rows + 1, num_rows + count + 1)
    flat.block_tables += [[padding_block_id]] * count
    flat.context_lens += [1] * count
