"""From the items of a plan to calls: the index tensors and masks of a step, made once and used by every layer.

A *unit* is one call of `partial_attention.partial_attention`: some query rows over some key slots. What a row sees is
spread over one or more units, whose results are merged by log-sum-exp. There are four kinds:

    shared run                 all rows of all sharers over the run, no mask; the run is fetched once
    long consecutive run       the same for one sequence: its blocks are a plain slice of the cache, no copy
    private rest, few rows     padded and batched with others of about the same shape, one mask
    prefill chunk              the rows over what lies before them without a mask, and over themselves causally

Softmax does not care about the order of unmasked keys, so block ids are sorted first: a run becomes consecutive, and
therefore a slice, whichever way the allocator handed it out. With a sliding window the mask depends on positions;
runs that a window cuts are masked, runs wholly inside it are not, and what no row can see is not fetched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..interface import AttentionItem, AttentionMetadata

MASKED = -1e30
"""Added to scores that must not count. Finite, so that a row with nothing to see gives weight 0 and never NaN."""

MIN_SLICE_TOKENS = 256
"""A consecutive run of at least this many tokens gets a unit of its own; a shorter one is cheaper to fetch by index."""

MANY_ROWS = 32
"""A sequence with at least this many rows is a prefill chunk with units of its own; others are batched."""

MAX_MASKED_ROWS = 512
"""Rows of one masked unit: bounds the mask of a windowed prefill to this many rows x (window + this) tokens."""

MAX_FETCHED_TOKENS = 4096
"""Key slots that one batch of private rests fetches: more would leave the cache between fetching and attending."""

PADDING_SLACK = 256
"""Padded key slots that are always cheaper than one more call."""


@dataclass(frozen=True, slots=True)
class AttentionUnit:
    """One call. `num_parts` sequences lie side by side, each with its own equal share of `rows` and of `keys`.

    Attributes:
        rows: rows of the flattened query.
        keys: slots of the cache.
        mask: fp32, added to the scores: [num_parts, 1, rows * group, keys] (packed) or [1, 1, rows, keys] (per head).
        is_causal: row i sees keys 0..i (the unit's keys are the rows' own tokens).
        is_per_head: query heads of a group are separate heads over the same keys; otherwise they are packed as rows.
        is_first: no earlier unit has any of these rows.
    """

    rows: slice | Tensor
    keys: slice | Tensor
    num_parts: int = 1
    mask: Tensor | None = None
    is_causal: bool = False
    is_per_head: bool = False
    is_first: bool = False


@dataclass(frozen=True, slots=True)
class _Draft:
    """A unit before its tensors are made."""

    rows: list[int]
    slots: list[int] | range | Tensor
    num_parts: int = 1
    mask: Tensor | None = None
    is_causal: bool = False
    is_per_head: bool = False


@dataclass(frozen=True, slots=True)
class _Rest:
    """A private rest with few rows, to be batched: the last `num_keys` tokens of what a sequence sees, in `block_ids`
    after `num_skipped` slots. They end with the rows' own tokens; without a window the order of others is free."""

    rows: range
    end_position: int
    block_ids: list[int]
    num_skipped: int
    num_keys: int


def build_units(
    metadata: AttentionMetadata, group_size: int, sliding_window: int | None, device: torch.device
) -> list[AttentionUnit]:
    """The units of a step, shared runs first. group_size: query heads a key/value head."""
    builder = _UnitBuilder(metadata, group_size, sliding_window, device)
    for item in metadata.items:
        if item.is_shared:
            builder.add_shared(item)
        else:
            builder.add_private(item)
    return builder.finish()


class _UnitBuilder:
    def __init__(
        self, metadata: AttentionMetadata, group_size: int, sliding_window: int | None, device: torch.device
    ) -> None:
        self.metadata = metadata
        self.block_size = metadata.block_size
        self.group_size = group_size
        self.window = sliding_window if sliding_window is not None else max(metadata.context_lens, default=0)
        self.device = device
        self.drafts: list[_Draft] = []
        self.rests: list[_Rest] = []

    def rows_of(self, seq_idx: int) -> range:
        return range(self.metadata.query_starts[seq_idx], self.metadata.query_starts[seq_idx + 1])

    def positions_of(self, seq_idx: int) -> range:
        context_len = self.metadata.context_lens[seq_idx]
        return range(context_len - len(self.rows_of(seq_idx)), context_len)

    def add_shared(self, item: AttentionItem) -> None:
        """One set of unmasked units for the sharers that see the whole run; a window may cut it for the others."""
        joint_rows: list[int] = []
        end = item.start + item.num_tokens
        for seq_idx in item.sequences:
            rows, positions = self.rows_of(seq_idx), self.positions_of(seq_idx)
            if positions[-1] - self.window < item.start:
                joint_rows.extend(rows)
            elif positions[0] - self.window + 1 < end:
                self._add_windowed(item, rows, positions)
        if joint_rows:
            self._add_unmasked(joint_rows, item.block_ids, [])

    def add_private(self, item: AttentionItem) -> None:
        (seq_idx,) = item.sequences
        rows, positions = self.rows_of(seq_idx), self.positions_of(seq_idx)
        is_windowed = positions[-1] - self.window >= item.start
        if len(rows) >= MANY_ROWS:
            if is_windowed:
                self._add_windowed(item, rows, positions)
            else:
                self._add_prefill(item, rows, positions)
            return
        self._add_few_rows(item, rows, positions, is_windowed)

    def _add_few_rows(self, item: AttentionItem, rows: range, positions: range, is_windowed: bool) -> None:
        start, block_ids = item.start, list(item.block_ids)
        if is_windowed:
            start = max(start, positions[0] - self.window + 1)
            block_ids = block_ids[(start - item.start) // self.block_size :]
        num_skipped = (start - item.start) % self.block_size
        if len(rows) == 1 and positions.stop - start >= MIN_SLICE_TOKENS and _is_consecutive(block_ids):
            # One row sees all of its keys: no mask, so even the last block can be part of the slice.
            first_slot = block_ids[0] * self.block_size + num_skipped
            self.drafts.append(_Draft(list(rows), range(first_slot, first_slot + positions.stop - start)))
            return
        if not is_windowed and positions[0] - start >= MIN_SLICE_TOKENS:
            num_past_blocks = (positions[0] - start) // self.block_size
            fragments = self._take_slices(list(rows), block_ids[:num_past_blocks])
            start += (num_past_blocks - len(fragments)) * self.block_size
            block_ids = fragments + block_ids[num_past_blocks:]
        self.rests.append(_Rest(rows, positions.stop, block_ids, num_skipped, positions.stop - start))

    def finish(self) -> list[AttentionUnit]:
        for bucket in _bucket(self.rests):
            self.drafts.append(self._draft_of_bucket(bucket))
        units: list[AttentionUnit] = []
        touched: set[int] = set()
        for draft in self.drafts:
            unit = AttentionUnit(
                rows=_index(draft.rows, self.device),
                keys=_index(draft.slots, self.device),
                num_parts=draft.num_parts,
                mask=draft.mask,
                is_causal=draft.is_causal,
                is_per_head=draft.is_per_head,
                is_first=touched.isdisjoint(draft.rows),
            )
            touched.update(draft.rows)
            units.append(unit)
        return units

    def _add_prefill(self, item: AttentionItem, rows: range, positions: range) -> None:
        """A chunk of many rows: what lies before it, unmasked, and itself, causally."""
        first = positions[0]
        num_past_blocks = (first - item.start) // self.block_size
        tail = self._slots(item, item.start + num_past_blocks * self.block_size, first)
        if first > item.start:
            self._add_unmasked(list(rows), item.block_ids[:num_past_blocks], tail)
        own_slots = self._slots(item, first, positions.stop)
        self.drafts.append(_Draft(list(rows), own_slots, is_causal=True, is_per_head=True))

    def _add_unmasked(self, rows: list[int], block_ids: Sequence[int], tail: list[int]) -> None:
        """Rows that see every token of the blocks and of `tail`."""
        slots = self._slots_of_blocks(self._take_slices(rows, block_ids)) + tail
        if slots:
            self.drafts.append(_Draft(rows, slots))

    def _take_slices(self, rows: list[int], block_ids: Sequence[int]) -> list[int]:
        """Add a unit for each long consecutive run of the blocks; return the blocks of the others."""
        fragments: list[int] = []
        # A unit more means one merge more of all its rows, so the more rows the longer a run must be.
        min_blocks = -(-max(MIN_SLICE_TOKENS, len(rows)) // self.block_size)
        for run in _consecutive_runs(block_ids):
            if len(run) >= min_blocks:
                self.drafts.append(_Draft(rows, range(run.start * self.block_size, run.stop * self.block_size)))
            else:
                fragments.extend(run)
        return fragments

    def _add_windowed(self, item: AttentionItem, rows: range, positions: range) -> None:
        """Rows over a run that the window cuts: chunks of rows, each with the mask of its positions."""
        for offset in range(0, len(rows), MAX_MASKED_ROWS):
            chunk = positions[offset : offset + MAX_MASKED_ROWS]
            start = max(item.start, chunk[0] - self.window + 1)
            end = min(item.start + item.num_tokens, chunk.stop)
            if start >= end:
                continue
            mask = self._mask(
                torch.arange(chunk.start, chunk.stop, device=self.device),
                torch.arange(start, end, device=self.device),
            )
            chunk_rows = list(rows[offset : offset + MAX_MASKED_ROWS])
            self.drafts.append(
                _Draft(chunk_rows, self._slots(item, start, end), mask=mask[None, None], is_per_head=True)
            )

    def _draft_of_bucket(self, bucket: list[_Rest]) -> _Draft:
        """Pad the rests of a bucket: rows with their last row again, keys with their last slot, masked."""
        max_rows = max(len(rest.rows) for rest in bucket)
        max_keys = max(rest.num_keys for rest in bucket)
        rows = [row for rest in bucket for row in (*rest.rows, *([rest.rows[-1]] * (max_rows - len(rest.rows))))]
        first_slots, num_blocks = [], 0
        for rest in bucket:
            first_slots.append([num_blocks * self.block_size + rest.num_skipped])
            num_blocks += len(rest.block_ids)
        all_slots = self._tensor([block_id for rest in bucket for block_id in rest.block_ids])[:, None]
        all_slots = (all_slots * self.block_size + torch.arange(self.block_size, device=self.device)).flatten()
        num_keys = self._tensor([[rest.num_keys] for rest in bucket])
        key_idx = torch.arange(max_keys, device=self.device).expand(len(bucket), max_keys)
        slots = all_slots[self._tensor(first_slots) + torch.minimum(key_idx, num_keys - 1)].flatten()
        return _Draft(rows, slots, num_parts=len(bucket), mask=self._mask_of_bucket(bucket, num_keys, key_idx))

    def _mask_of_bucket(self, bucket: list[_Rest], num_keys: Tensor, key_idx: Tensor) -> Tensor | None:
        """[parts, 1, rows * group, keys], or None where every row sees every key. Padding lies after every row."""
        max_rows = max(len(rest.rows) for rest in bucket)
        ends = self._tensor([[rest.end_position] for rest in bucket])
        num_rows = self._tensor([[len(rest.rows)] for rest in bucket])
        row_idx = torch.arange(max_rows, device=self.device).expand(len(bucket), max_rows)
        row_positions = ends - num_rows + torch.minimum(row_idx, num_rows - 1)
        mask = self._mask(row_positions, ends - num_keys + key_idx)
        return mask[:, None].repeat_interleave(self.group_size, dim=2) if bool(mask.any()) else None

    def _tensor(self, values: list[int] | list[list[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    def _mask(self, row_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[..., rows, keys]: 0 where the row sees the key, MASKED where not."""
        distance = row_positions[..., :, None] - key_positions[..., None, :]
        is_hidden = (distance < 0) | (distance >= self.window)
        return torch.zeros(is_hidden.shape, device=self.device).masked_fill_(is_hidden, MASKED)

    def _slots(self, item: AttentionItem, start: int, end: int) -> list[int]:
        """Slots of positions [start, end), which lie in the item."""
        first, last = (start - item.start) // self.block_size, -(-(end - item.start) // self.block_size)
        skipped = item.start + first * self.block_size
        return self._slots_of_blocks(item.block_ids[first:last])[start - skipped : end - skipped]

    def _slots_of_blocks(self, block_ids: Sequence[int]) -> list[int]:
        slots: list[int] = []
        for block_id in block_ids:
            slots.extend(range(block_id * self.block_size, (block_id + 1) * self.block_size))
        return slots


def _is_consecutive(values: Sequence[int]) -> bool:
    return values[-1] - values[0] == len(values) - 1 and list(values) == list(range(values[0], values[-1] + 1))


def _consecutive_runs(block_ids: Sequence[int]) -> list[range]:
    """The maximal runs of consecutive ids among the blocks, in order of the ids."""
    runs: list[range] = []
    ordered = sorted(block_ids)
    run_start = 0
    for idx in range(1, len(ordered) + 1):
        if idx == len(ordered) or ordered[idx] != ordered[idx - 1] + 1:
            runs.append(range(ordered[run_start], ordered[idx - 1] + 1))
            run_start = idx
    return runs


def _bucket(rests: list[_Rest]) -> list[list[_Rest]]:
    """Group rests of similar shape, so that little is padded and few calls are made. O(S log S)."""
    buckets: list[list[_Rest]] = []
    payload = max_keys = 0
    for rest in sorted(rests, key=lambda rest: (len(rest.rows), rest.num_keys)):
        size = len(rest.rows) * rest.num_keys
        max_keys = max(max_keys, rest.num_keys)
        if buckets:
            padded = (len(buckets[-1]) + 1) * len(rest.rows) * max_keys
            num_fetched = (len(buckets[-1]) + 1) * max_keys
            if padded - payload - size <= PADDING_SLACK + payload // 4 and num_fetched <= MAX_FETCHED_TOKENS:
                buckets[-1].append(rest)
                payload += size
                continue
        buckets.append([rest])
        payload, max_keys = size, rest.num_keys
    return [sorted(bucket, key=lambda rest: rest.rows.start) for bucket in buckets]


def _index(values: list[int] | range | Tensor, device: torch.device) -> slice | Tensor:
    """A slice where the values are consecutive, else an index tensor."""
    if isinstance(values, Tensor):
        first, last = int(values[0]), int(values[-1])
        if last - first == len(values) - 1 and torch.equal(values, torch.arange(first, last + 1, device=device)):
            return slice(first, last + 1)
        return values
    if isinstance(values, range) or _is_consecutive(values):
        return slice(values[0], values[-1] + 1)
    return torch.tensor(values, dtype=torch.int64, device=device)
