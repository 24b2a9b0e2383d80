"""A plan on the device: one int32 buffer, copied at once, and room for the parts of rows.

    | positions | row_ranges | rows | targets | items of tile 0 | items of tile 1 | ... | kv_blocks |

The sections stand where the capacity says, not where the plan ends, so a captured graph of launches finds the next
step's plan in the same place: items beyond the plan's have no rows and return at once, rows beyond have no parts. The
block ids come last and are copied as far as the plan has any: there is room for all blocks of the pool, which may be a
megabyte. A plan that is run once gets a capacity that is just its own size.

The host's side is pinned and the copy asynchronous; before it is written again, the last copy is waited for.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from .plan import ITEM_WIDTH, AttentionPlan, PlanRules
from .shared_runs import HeadShape

_ALIGNMENT = 16
"""int32 fields; a section's address is then divisible by 16 bytes, as Triton likes it."""


class PlanTooLargeError(ValueError):
    """The plan does not fit its buffers. The message says what there is too much of; run the step without a graph, or
    make larger buffers."""


@dataclass(frozen=True, slots=True)
class PlanCapacity:
    """Sizes of the sections, in entries.

    Attributes:
        num_rows: rows of the step, T.
        num_entries: rows of all tiles.
        num_blocks: block ids of all runs.
        num_items: for each tile size.
        num_parts: parts of all rows; each takes num_heads * (head_dim + 1) * 4 bytes.
    """

    num_rows: int
    num_entries: int
    num_blocks: int
    num_items: tuple[int, ...]
    num_parts: int

    @classmethod
    def of(cls, plan: AttentionPlan) -> PlanCapacity:
        """Just enough for this plan."""
        num_items = tuple(plan.num_items(tile_idx) for tile_idx in range(len(plan.items)))
        return cls(len(plan.positions), len(plan.rows), len(plan.kv_blocks), num_items, plan.num_parts)

    @classmethod
    def for_decodes(cls, num_rows: int, num_blocks: int, shape: HeadShape, rules: PlanRules) -> PlanCapacity:
        """Enough for steps of `num_rows` decodes over a pool of `num_blocks`, in all but odd cases: every run is in a
        table once or shared, every row is in at most four runs, and cutting keys makes an item more for each slot.

        A tile size that so few rows never fill has no items: it is not even launched."""
        num_slots = max(1, rules.num_slots // shape.num_kv_heads)
        num_entries = 4 * num_rows
        num_items = []
        fewest_rows = 1
        for tile in rules.tiles:
            most = min(2 * num_rows, num_entries // fewest_rows)
            num_items.append(most + num_slots if fewest_rows <= num_rows else 0)
            fewest_rows = tile.num_rows(shape.group_size) + 1
        num_parts = num_entries + num_slots * min(num_rows, rules.tiles[-1].num_rows(shape.group_size))
        return cls(num_rows, num_entries, num_blocks + num_rows, tuple(num_items), num_parts)


@dataclass(frozen=True, slots=True)
class LoadedPlan:
    """What the kernels read: the sections of `AttentionPlan` on the device, and where parts go.

    Attributes:
        items: for each tile size, int32 [items, ITEM_WIDTH].
        partial_out: fp32 [parts, Hq, D].
        partial_log: fp32 [parts, Hq].
        has_parts: whether anything is to be merged; with a fixed capacity, always.
    """

    positions: Tensor
    row_ranges: Tensor
    rows: Tensor
    targets: Tensor
    kv_blocks: Tensor
    items: tuple[Tensor, ...]
    partial_out: Tensor
    partial_log: Tensor
    has_parts: bool


class PlanBuffers:
    """Memory for plans of at most some capacity. Not thread-safe.

    Attributes:
        plan: the tensors, always the same ones; what they hold is the plan that was loaded last.
    """

    def __init__(self, capacity: PlanCapacity, shape: HeadShape, device: torch.device) -> None:
        self.capacity = capacity
        sizes = [
            *(capacity.num_rows, capacity.num_rows + 1, capacity.num_entries, capacity.num_entries),
            *(*(count * ITEM_WIDTH for count in capacity.num_items), capacity.num_blocks),
        ]
        aligned = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
        self._starts = list(accumulate(aligned, initial=0))
        self._sizes = sizes
        is_cuda = device.type == "cuda"
        self._host = torch.zeros(self._starts[-1], dtype=torch.int32, pin_memory=is_cuda)
        self._device = torch.empty(self._starts[-1], dtype=torch.int32, device=device) if is_cuda else self._host
        self._copied = torch.cuda.Event() if is_cuda else None
        positions, row_ranges, rows, targets, *items, kv_blocks = (
            self._device[start : start + size] for start, size in zip(self._starts, sizes, strict=False)
        )
        num_parts = max(1, capacity.num_parts)
        self.plan = LoadedPlan(
            positions=positions,
            row_ranges=row_ranges,
            rows=rows,
            targets=targets,
            kv_blocks=kv_blocks,
            items=tuple(section.view(-1, ITEM_WIDTH) for section in items),
            partial_out=torch.empty((num_parts, shape.num_heads, shape.head_dim), device=device),
            partial_log=torch.empty((num_parts, shape.num_heads), device=device),
            has_parts=capacity.num_parts > 0,
        )

    def load(self, plan: AttentionPlan) -> None:
        """Copy a plan into the buffers, on the current stream. Mutates what `self.plan` holds.

        Raises:
            PlanTooLargeError: it does not fit; nothing was changed.
        """
        self._check(plan)
        if self._copied is not None:
            self._copied.synchronize()
        num_missing_rows = self.capacity.num_rows - len(plan.positions)
        self._write(0, plan.positions)
        self._write(1, plan.row_ranges + plan.row_ranges[-1:] * num_missing_rows)
        self._write(2, plan.rows)
        self._write(3, plan.targets)
        for tile_idx, items in enumerate(plan.items):
            section_idx = 4 + tile_idx
            self._write(section_idx, items)
            start = self._starts[section_idx]
            self._host[start + len(items) : start + self._sizes[section_idx]] = 0
        last_section_idx = 4 + len(plan.items)
        self._write(last_section_idx, plan.kv_blocks)
        if self._copied is not None:
            end = self._starts[last_section_idx] + len(plan.kv_blocks)
            self._device[:end].copy_(self._host[:end], non_blocking=True)
            self._copied.record()

    def _write(self, section_idx: int, values: array[int]) -> None:
        if values:
            start = self._starts[section_idx]
            self._host[start : start + len(values)] = torch.frombuffer(values, dtype=torch.int32)

    def _check(self, plan: AttentionPlan) -> None:
        needed, room = PlanCapacity.of(plan), self.capacity
        pairs = [
            ("rows", needed.num_rows, room.num_rows),
            ("rows in tiles", needed.num_entries, room.num_entries),
            ("blocks", needed.num_blocks, room.num_blocks),
            ("parts", needed.num_parts, room.num_parts),
            *(
                (f"items of tile size {tile_idx}", *counts)
                for tile_idx, counts in enumerate(zip(needed.num_items, room.num_items, strict=True))
            ),
        ]
        for name, count, limit in pairs:
            if count > limit:
                raise PlanTooLargeError(f"the plan has {count} {name}, its buffers hold {limit}")


def load_plan(plan: AttentionPlan, shape: HeadShape, device: torch.device) -> LoadedPlan:
    """A plan in buffers of its own size."""
    buffers = PlanBuffers(PlanCapacity.of(plan), shape, device)
    buffers.load(plan)
    return buffers.plan
