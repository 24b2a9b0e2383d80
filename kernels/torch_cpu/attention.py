"""Paged attention that reads a shared prefix once: partial results by unit, merged by log-sum-exp.

What makes it fast, compared with gathering each sequence's blocks and attending over them one by one:

    KV layout       [num_blocks, block_size, Hk, D], for keys and for values

        block 0             block 1             block 2
        +----+----+-...-+   +----+----+-...-+   +----+-
        |tok0|tok1|     |   |tok0|tok1|     |   |tok0|       a token is Hk x D numbers in a row,
        +----+----+-...-+   +----+----+-...-+   +----+-      a block is block_size tokens in a row

        A run of consecutive block ids is a slice [tokens, Hk, D] of the cache: no copy. Any other set of slots is
        one index_select of long rows. Storing T tokens writes T such rows.

    shared runs     fetched once for the rows of all sharers, not once per request (benchmarks/attention.py)
    grouped heads   the query heads of a group are rows over one key head, or strided views of it: keys are never
                    repeated
    decodes         batched by similar length: a handful of calls a layer, whatever the number of sequences
    once a step     index tensors and masks belong to PreparedAttention, not to a layer
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..interface import AttentionMetadata
from .attention_units import AttentionUnit, build_units
from .partial_attention import partial_attention


@dataclass(frozen=True)
class PreparedAttention(AttentionMetadata):
    """Metadata with its units, made when a layer first asks for them: a model has few distinct shapes of attention."""

    units_by_shape: dict[tuple[int, int | None], list[AttentionUnit]] = field(default_factory=dict, compare=False)

    def units(self, group_size: int, sliding_window: int | None) -> list[AttentionUnit]:
        shape = (group_size, sliding_window)
        units = self.units_by_shape.get(shape)
        if units is None:
            units = build_units(self, group_size, sliding_window, self.slots.device)
            self.units_by_shape[shape] = units
        return units


def prepare(metadata: AttentionMetadata) -> PreparedAttention:
    if isinstance(metadata, PreparedAttention):
        return metadata
    return PreparedAttention(
        block_size=metadata.block_size,
        query_starts=metadata.query_starts,
        context_lens=metadata.context_lens,
        block_tables=metadata.block_tables,
        slots=metadata.slots,
        items=metadata.items,
    )


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    scale: float,
    sliding_window: int | None,
) -> Tensor:
    """See `interface.Kernels.attention`. Computed in the dtype of the cache, fp32."""
    if query.stride(-1) != 1:  # torch's CPU kernel reads the last dimension as if it were contiguous
        query = query.contiguous()
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[2]
    group_size = num_heads // num_kv_heads
    units = prepare(metadata).units(group_size, sliding_window)
    keys, values = key_cache.flatten(0, 1), value_cache.flatten(0, 1)
    grouped = query.reshape(num_rows, num_kv_heads, group_size, head_dim).to(key_cache.dtype)
    if len(units) == 1 and units[0].rows == slice(0, num_rows):
        output, _ = _run_unit(units[0], grouped, keys, values, scale)
    else:
        output = _merge_units(units, grouped, keys, values, scale)
    return output.reshape(num_rows, num_heads, head_dim).to(query.dtype)


def _merge_units(units: list[AttentionUnit], grouped: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Run the units and merge their results, each into the rows it has; [T, Hk, G, D]."""
    output = torch.zeros(grouped.shape, dtype=grouped.dtype, device=grouped.device)
    log_sum_exp = torch.full(grouped.shape[:-1], float("-inf"), device=grouped.device)
    for unit in units:
        part, part_lse = _run_unit(unit, grouped, keys, values, scale)
        if not unit.is_first:
            old, old_lse = output[unit.rows], log_sum_exp[unit.rows]
            weight = torch.sigmoid(part_lse - old_lse).unsqueeze(-1)
            part, part_lse = torch.lerp(old, part, weight), torch.logaddexp(old_lse, part_lse)
        output[unit.rows] = part
        log_sum_exp[unit.rows] = part_lse
    return output


def _run_unit(
    unit: AttentionUnit, grouped: Tensor, keys: Tensor, values: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """(output [rows, Hk, G, D], log-sum-exp [rows, Hk, G]) of one unit."""
    query = grouped[unit.rows]
    key, value = _fetch(keys, unit.keys), _fetch(values, unit.keys)
    num_rows, num_kv_heads, group_size, head_dim = query.shape
    if unit.is_per_head:
        # batch = key/value heads, heads = the group; the group shares its keys through a stride of 0.
        shape = (num_kv_heads, group_size, key.shape[0], head_dim)
        output, lse = partial_attention(
            query.permute(1, 2, 0, 3),
            key.transpose(0, 1).unsqueeze(1).expand(shape),
            value.transpose(0, 1).unsqueeze(1).expand(shape),
            scale,
            unit.mask,
            unit.is_causal,
        )
        return output.permute(2, 0, 1, 3), lse.permute(2, 0, 1)
    # batch = sequences side by side, heads = key/value heads, rows = (row, head of the group).
    parts, rows = unit.num_parts, num_rows // unit.num_parts
    kv_shape = (parts, key.shape[0] // parts, num_kv_heads, head_dim)
    packed = query.reshape(parts, rows, num_kv_heads, group_size, head_dim).transpose(1, 2)
    output, lse = partial_attention(
        packed.reshape(parts, num_kv_heads, rows * group_size, head_dim),
        key.reshape(kv_shape).transpose(1, 2),
        value.reshape(kv_shape).transpose(1, 2),
        scale,
        unit.mask,
    )
    output = output.reshape(parts, num_kv_heads, rows, group_size, head_dim).transpose(1, 2)
    lse = lse.reshape(parts, num_kv_heads, rows, group_size).transpose(1, 2)
    return output.reshape(query.shape), lse.reshape(query.shape[:-1])


def _fetch(cache: Tensor, slots: slice | Tensor) -> Tensor:
    """[tokens, Hk, D] of the slots: a view of consecutive ones, else one copy."""
    return cache[slots] if isinstance(slots, slice) else cache.index_select(0, slots)
