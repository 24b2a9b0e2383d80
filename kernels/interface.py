"""What every kernel backend implements: shapes, dtypes and what an op may touch.

Letters used in shapes, here and in every kernel:

    T   tokens of the step, of all sequences, flattened (no padding)
    S   sequences of the step
    Hq  query heads          Hk  key/value heads          D  head dimension
    B   block size: token slots in a block (16)            N  blocks in the pool

A *slot* is `block_id * B + offset`. A sequence's tokens are contiguous rows in the flattened tensors; row r of
sequence s sits at `query_starts[s] <= r < query_starts[s + 1]` and at position
`context_lens[s] - (query_starts[s + 1] - r)` of that sequence.

The life of a step:

    metadata = build_attention_metadata(...)          # attention_plan.py: pure Python, the same for every backend
    metadata = kernels.prepare_attention(metadata)    # once a step: index tensors and masks on the device
    for each layer:
        kernels.store_kv(key, value, key_cache, value_cache, metadata.slots)
        kernels.attention(query, key_cache, value_cache, metadata, scale, sliding_window)

The layout of a KV cache is the backend's own business: only `new_kv_cache`, `copy_blocks`, `store_kv` and `attention`
of the same backend read it. Ops trust their arguments (the engine checks at its border) and assert what is cheap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionItem:
    """One piece of attention work: a set of query rows over a run of blocks.

    A *shared* item is a run of full blocks that every sequence in `sequences` has in its table and has already
    computed: no mask is needed, and the run is read once for all of them. A *private* item has one sequence and the
    rest of its blocks, with the causal mask.

    Attributes:
        sequences: indices of the sequences whose rows take part.
        block_ids: the blocks of the run, in token order.
        start: position of the run's first token.
        num_tokens: tokens of the run (block multiple when shared).
    """

    sequences: tuple[int, ...]
    block_ids: tuple[int, ...]
    start: int
    num_tokens: int

    @property
    def is_shared(self) -> bool:
        return len(self.sequences) > 1


@dataclass(frozen=True)
class AttentionMetadata:
    """All that attention needs to know of a step. Built once per step, used by every layer.

    A backend's `prepare_attention` may return a subclass that also holds what it derived from these fields.

    Attributes:
        block_size: token slots in a block, B.
        query_starts: S + 1 row offsets; sequence s owns rows query_starts[s] .. query_starts[s + 1].
        context_lens: S lengths of the context, the step's own tokens included.
        block_tables: S lists of block ids covering context_lens tokens.
        slots: int64 [T], the slot each token's key and value go to; all different, but for rows of
            padding, which write the same to one slot.
        items: the work items; together they cover each sequence's context exactly once.
    """

    block_size: int
    query_starts: Sequence[int]
    context_lens: Sequence[int]
    block_tables: Sequence[Sequence[int]]
    slots: Tensor
    items: Sequence[AttentionItem]


class LinearWeight(Protocol):
    """A matrix [N, K] in the form that `linear` and `embedding` of one backend read; made by its `prepare_weight`.

    A plain Tensor is one; so is a `quantized.matrix.QuantizedMatrix`, for `linear` of those backends that take it
    (`dispatch.KernelsEntry`). Only the backend looks inside."""

    @property
    def shape(self) -> torch.Size: ...


class Kernels(Protocol):
    """The ops of a transformer step. One object a device; `dispatch.py` chooses it.

    All tensors are on the backend's device. Nothing is modified in place except the KV cache, by `store_kv` and
    `copy_blocks`. Results are new tensors of any strides: callers use `reshape`, not `view`, where it matters.

    Attributes:
        name: the backend's key in `dispatch.py`.
        device: where its tensors live.
    """

    @property
    def name(self) -> str: ...

    @property
    def device(self) -> torch.device: ...

    def new_kv_cache(self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
        """Key and value storage of one layer, in the layout this backend's attention reads. On a CPU it is zeroed
        lazily by the operating system: a page costs no memory before it is written."""
        ...

    def prepare_attention(self, metadata: AttentionMetadata) -> AttentionMetadata:
        """Derive what `attention` needs of a step beyond the plan itself (index tensors, masks), once for all layers.

        The result is passed to `attention`; it may be used by one thread at a time. `attention` also takes plain
        metadata, and then prepares it in every call."""
        ...

    def copy_blocks(self, cache: Tensor, src_block_ids: Sequence[int], dst_block_ids: Sequence[int]) -> None:
        """Copy whole blocks of a layer's key or value storage; every read happens before any write. Mutates `cache`."""
        ...

    def store_kv(self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
        """Write keys and values [T, Hk, D] to `slots` int64 [T]. Mutates both caches."""
        ...

    def attention(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        metadata: AttentionMetadata,
        scale: float,
        sliding_window: int | None = None,
    ) -> Tensor:
        """Causal attention of query rows [T, Hq, D] over the paged context; returns [T, Hq, D].

        Row at position p sees positions max(0, p - sliding_window + 1) .. p (all up to p when None). Query head h
        reads key/value head h // (Hq // Hk). The step's own keys and values must have been stored. Slots that no row
        sees are not read, whatever they hold. Same dtype as `query`."""
        ...

    def prepare_weight(self, weight: Tensor) -> LinearWeight:
        """Bring a matrix [N, K] into this backend's form, once, when it is loaded: the tensor itself, or a quantised
        copy after which the caller lets go of the tensor."""
        ...

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None = None) -> Tensor:
        """x [T, K] times weight [N, K] transposed, plus bias [N]: [T, N], in the dtype of x."""
        ...

    def embedding(self, token_ids: Tensor, weight: LinearWeight) -> Tensor:
        """Rows [T, K] of a weight [N, K], in the dtype it was loaded in; token_ids int64 [T]. The same weight may also
        be used by `linear`."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x * rsqrt(mean(x^2) + eps) * weight over the last dimension; computed in fp32 (Zhang & Sennrich 2019)."""
        ...

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """(x - mean) * rsqrt(variance + eps) * weight + bias over the last dimension; computed in fp32 (Ba et al.
        2016)."""
        ...

    def rotary(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate x [T, H, D] in half-split pairs (i, i + R/2) of its first R = 2 * cos.shape[1] dimensions; the rest
        passes through. cos, sin [T, R/2], fp32 (Su et al. 2021, section 3.4)."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(rms_norm(x + residual), x + residual) of [T, W]; a fused kernel norms the sum before it is rounded."""
        ...

    def rotary_store(
        self,
        qkv: Tensor,
        num_kv_heads: int,
        cos: Tensor,
        sin: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        slots: Tensor,
    ) -> Tensor:
        """Rotate the query and key heads of qkv [T, Hq + 2 Hk, D], write keys and values to `slots`, and return the
        rotated queries [T, Hq, D]: `rotary` and `store_kv` at once. Mutates both caches."""
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """gate_up [T, 2I] -> silu(first half) * second half: [T, I]."""
        ...
