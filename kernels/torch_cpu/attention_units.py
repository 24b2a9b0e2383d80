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

PADDING_SLACK = 256
"""Padded key slots that are always cheaper than one more call."""

_Span = tuple[int, int]


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
    slots: list[int] | range
    num_parts: int = 1
    mask: Tensor | None = None
    is_causal: bool = False
    is_per_head: bool = False


@dataclass(frozen=True, slots=True)
class _Rest:
    """A private rest with few rows, to be batched."""

    rows: range
    first_position: int
    slots: list[int]
    positions: list[int]


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
        start = item.start
        if is_windowed:
            start = max(start, positions[0] - self.window + 1)
        elif positions[0] - start >= MIN_SLICE_TOKENS:
            num_past_blocks = (positions[0] - start) // self.block_size
            fragments = self._take_slices(list(rows), item.block_ids[:num_past_blocks])
            tail_start = start + num_past_blocks * self.block_size
            slots = [slot for span in fragments for slot in range(*span)]
            slots += self._slots(item, tail_start, positions.stop)
            # Where the past lies does not matter without a window: it is before every row.
            past_positions = [start] * (len(slots) - (positions.stop - tail_start))
            self.rests.append(_Rest(rows, positions[0], slots, [*past_positions, *range(tail_start, positions.stop)]))
            return
        slots = self._slots(item, start, positions.stop)
        self.rests.append(_Rest(rows, positions[0], slots, list(range(start, positions.stop))))

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
        fragments = self._take_slices(rows, block_ids)
        slots = [slot for span in fragments for slot in range(*span)] + tail
        if slots:
            self.drafts.append(_Draft(rows, slots))

    def _take_slices(self, rows: list[int], block_ids: Sequence[int]) -> list[_Span]:
        """Add a unit for each long consecutive run of the blocks; return the slots [start, end) of the others."""
        fragments: list[_Span] = []
        # A unit more means one merge more of all its rows, so the more rows the longer a run must be.
        min_tokens = max(MIN_SLICE_TOKENS, len(rows))
        for start, end in _consecutive_spans(block_ids, self.block_size):
            if end - start >= min_tokens:
                self.drafts.append(_Draft(rows, range(start, end)))
            else:
                fragments.append((start, end))
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
        num_rows = max(len(rest.rows) for rest in bucket)
        num_keys = max(len(rest.slots) for rest in bucket)
        unseen = max(rest.first_position for rest in bucket) + num_rows
        rows: list[int] = []
        slots: list[int] = []
        row_positions: list[list[int]] = []
        key_positions: list[list[int]] = []
        for rest in bucket:
            rows += [*rest.rows, *([rest.rows[-1]] * (num_rows - len(rest.rows)))]
            last = rest.first_position + len(rest.rows) - 1
            row_positions.append([min(rest.first_position + row, last) for row in range(num_rows)])
            num_padding = num_keys - len(rest.slots)
            slots += rest.slots + rest.slots[-1:] * num_padding
            key_positions.append(rest.positions + [unseen] * num_padding)
        mask = self._mask(
            torch.tensor(row_positions, device=self.device), torch.tensor(key_positions, device=self.device)
        )
        packed = mask[:, None].repeat_interleave(self.group_size, dim=2) if bool(mask.any()) else None
        return _Draft(rows, slots, num_parts=len(bucket), mask=packed)

    def _mask(self, row_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[..., rows, keys]: 0 where the row sees the key, MASKED where not."""
        distance = row_positions[..., :, None] - key_positions[..., None, :]
        is_hidden = (distance < 0) | (distance >= self.window)
        return torch.zeros(is_hidden.shape, device=self.device).masked_fill_(is_hidden, MASKED)

    def _slots(self, item: AttentionItem, start: int, end: int) -> list[int]:
        """Slots of positions [start, end), which lie in the item."""
        size = self.block_size
        first, last = (start - item.start) // size, -(-(end - item.start) // size)
        slots: list[int] = []
        for block_id in item.block_ids[first:last]:
            slots.extend(range(block_id * size, (block_id + 1) * size))
        skipped = item.start + first * size
        return slots[start - skipped : end - skipped]


def _consecutive_spans(block_ids: Sequence[int], block_size: int) -> list[_Span]:
    """Slots [start, end) of the maximal runs of consecutive ids among the blocks, in order of the ids."""
    spans: list[_Span] = []
    ordered = sorted(block_ids)
    run_start = 0
    for idx in range(1, len(ordered) + 1):
        if idx == len(ordered) or ordered[idx] != ordered[idx - 1] + 1:
            spans.append((ordered[run_start] * block_size, (ordered[idx - 1] + 1) * block_size))
            run_start = idx
    return spans


def _bucket(rests: list[_Rest]) -> list[list[_Rest]]:
    """Group rests of similar shape, so that little is padded and few calls are made."""
    buckets: list[list[_Rest]] = []
    payload = 0
    for rest in sorted(rests, key=lambda rest: (len(rest.rows), len(rest.slots))):
        size = len(rest.rows) * len(rest.slots)
        if buckets:
            members = [*buckets[-1], rest]
            padded = len(members) * len(rest.rows) * max(len(member.slots) for member in members)
            if padded - payload - size <= PADDING_SLACK + payload // 4:
                buckets[-1].append(rest)
                payload += size
                continue
        buckets.append([rest])
        payload = size
    return [sorted(bucket, key=lambda rest: rest.rows.start) for bucket in buckets]


def _index(values: list[int] | range, device: torch.device) -> slice | Tensor:
    """A slice where the values are consecutive, else an index tensor."""
    start, length = values[0], len(values)
    if isinstance(values, range) or values == list(range(start, start + length)):
        return slice(start, start + length)
    return torch.tensor(values, dtype=torch.int64, device=device)
