"""The products of a model that take more than one rank. With one rank they are the plain ones."""

from __future__ import annotations

from torch import Tensor

from ...kernels.interface import Kernels, LinearWeight
from .group import Group
from .shards import part


def row_parallel(kernels: Kernels, group: Group, x: Tensor, weight: LinearWeight, bias: Tensor | None = None) -> Tensor:
    """x [T, K] times weight [N, K] transposed, plus bias [N], where each rank has some of the K columns of both; the
    bias is everybody's, and is added once. [T, N] on every rank."""
    if group.size == 1:
        return kernels.linear(x, weight, bias)
    total = group.all_reduce(kernels.linear(x, weight))
    return total if bias is None else total + bias


def vocab_embedding(kernels: Kernels, group: Group, token_ids: Tensor, weight: LinearWeight, vocab: range) -> Tensor:
    """Rows [T, K] of an embedding of which this rank has those of `vocab`. The sum over ranks is exact: all but one
    bring zeros."""
    if group.size == 1:
        return kernels.embedding(token_ids, weight)
    rows = token_ids - vocab.start
    is_elsewhere = (rows < 0) | (rows >= len(vocab))
    found = kernels.embedding(rows.masked_fill(is_elsewhere, 0), weight)
    return group.all_reduce(found.masked_fill(is_elsewhere[:, None], 0))


def vocab_logits(kernels: Kernels, group: Group, hidden: Tensor, weight: LinearWeight, vocab_size: int) -> Tensor:
    """fp32 logits [R, vocab_size] on rank 0; elsewhere [R, V] of the rank's own tokens, which nobody reads."""
    logits = kernels.linear(hidden, weight).float()
    if group.size == 1:
        return logits
    return group.gather_columns(logits, [len(part(vocab_size, rank, group.size)) for rank in range(group.size)])
