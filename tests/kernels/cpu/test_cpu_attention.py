"""Paged attention in C++ against the oracle over random layouts, against its own arithmetic in NumPy bit by bit, and
the same bits however and wherever a row is computed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ramet.kernels.attention_plan import build_attention_metadata
from ramet.kernels.cpu.isa import supported_isas
from ramet.kernels.cpu.library import Step
from ramet.kernels.dispatch import select_kernels

pytestmark = pytest.mark.compiler

BLOCK = 16
HEADS = [(2, 1), (1, 3), (2, 4), (1, 8), (3, 3), (1, 1)]
"""(key/value heads, query heads per key/value head)"""
HEAD_DIMS = [16, 32, 48, 64, 80, 96, 128]
WINDOWS = [0, 1, 5, 16, 40, 64, 100, 1000]
LARGEST = 2.0**40
"""The largest number that is stored; what is smaller than one part in it is stored as zero."""
POOL = 160
CHUNK_KEYS = 64
BF16_ISAS = [isa for isa in ("amx", "avx512", "avx2") if isa in supported_isas()]
"""Builds with fused multiply-add: they give the same bits. The portable one has two roundings in its place."""
BF16_ERROR = {"rtol": 0.02, "atol": 0.02}
Array = NDArray[Any]
F32 = np.float32


@dataclass(frozen=True)
class Layout:
    """Sequences of a step: how many blocks of which run they begin with, their context, and how much of it is new."""

    run_ids: tuple[int, ...]
    run_blocks: tuple[int, ...]
    context_lens: tuple[int, ...]
    num_new: tuple[int, ...]

    def tables(self, seed: int) -> list[list[int]]:
        """Block ids in no order. Runs are tails of nothing: run 1 branches off run 0 after three blocks."""
        free = list(np.random.default_rng(seed).permutation(POOL))
        runs = [[int(free.pop()) for _ in range(12)] for _ in range(3)]
        runs[1][:3] = runs[0][:3]
        tables = []
        for run_id, num_blocks, context_len in zip(self.run_ids, self.run_blocks, self.context_lens, strict=True):
            table = runs[run_id][:num_blocks]
            while len(table) * BLOCK < context_len:
                table.append(int(free.pop()))
            tables.append(table)
        return tables


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    run_ids, run_blocks, context_lens, num_new = [], [], [], []
    for _ in range(draw(st.integers(1, 6))):
        run_ids.append(draw(st.integers(0, 2)))
        run_blocks.append(draw(st.integers(0, 12)))
        fresh = draw(st.sampled_from([1, 1, 2, 15, 16, 17, 33, 70]))
        num_new.append(draw(st.integers(1, fresh)))
        context_lens.append(run_blocks[-1] * BLOCK + fresh)
    return Layout(tuple(run_ids), tuple(run_blocks), tuple(context_lens), tuple(num_new))


class Attention:
    """One layout with random numbers in it: what the step computes, and what the oracle says."""

    def __init__(self, layout: Layout, heads: tuple[int, int], head_dim: int, window: int, seed: int) -> None:
        self.num_kv_heads, self.group = heads
        self.head_dim, self.window = head_dim, window
        self.tables, self.context_lens, self.num_new = layout.tables(seed), layout.context_lens, layout.num_new
        rng = np.random.default_rng(seed)
        # What no row may see is as large as can be.
        self.keys = rng.choice([-LARGEST, LARGEST], size=(POOL, BLOCK, self.num_kv_heads, head_dim))
        self.values = rng.choice([-LARGEST, LARGEST], size=self.keys.shape)
        for table, context_len in zip(self.tables, self.context_lens, strict=True):
            for position in range(context_len):
                slot = table[position // BLOCK], position % BLOCK
                if abs(self.keys[slot][0, 0]) == LARGEST:
                    self.keys[slot], self.values[slot] = rng.normal(size=(2, self.num_kv_heads, head_dim))
        self.keys, self.values = (round_bf16(x) for x in (self.keys, self.values))
        total = sum(layout.num_new)
        self.queries = rng.normal(size=(total, self.num_kv_heads * self.group, head_dim)).astype(np.float32) * 2

    def stored(self) -> Array:
        """The cache without the step's own tokens: those slots hold what no row may see, as they do in life."""
        cache = np.empty((POOL, 2, self.num_kv_heads, self.head_dim * BLOCK), dtype=np.uint16)
        keys, values = self.keys.copy(), self.values.copy()
        for seq_idx, position in self.rows():
            slot = self.tables[seq_idx][position // BLOCK], position % BLOCK
            keys[slot], values[slot] = LARGEST, -LARGEST
        cache[:, 0] = in_pairs(keys.transpose(0, 2, 3, 1)).reshape(cache[:, 0].shape)
        cache[:, 1] = in_pairs(values.transpose(0, 2, 1, 3)).reshape(cache[:, 1].shape)
        return cache

    def rows(self) -> list[tuple[int, int]]:
        """(sequence, position) of each row of the step."""
        return [
            (seq_idx, position)
            for seq_idx, (length, count) in enumerate(zip(self.context_lens, self.num_new, strict=True))
            for position in range(length - count, length)
        ]

    def run(
        self,
        library: ctypes.CDLL,
        cache: Array | None = None,
        seq_ids: list[int] | None = None,
        parts: dict[int, tuple[int, int]] | None = None,
        is_sharing: bool = True,
    ) -> Array:
        """Attention of some sequences' new tokens, or of the positions in `parts` alone. Mutates `cache`."""
        seq_ids = list(range(len(self.tables))) if seq_ids is None else seq_ids
        cache = self.stored() if cache is None else cache
        rows = [
            (row, seq_idx, position)
            for wanted in seq_ids
            for row, (seq_idx, position) in enumerate(self.rows())
            if seq_idx == wanted and (parts is None or parts[wanted][0] <= position < parts[wanted][1])
        ]
        slots = [(self.tables[seq_idx][position // BLOCK], position % BLOCK) for _, seq_idx, position in rows]
        key, value = (
            np.array([x[slot] for slot in slots], dtype=np.float32).reshape(len(rows), -1)
            for x in (self.keys, self.values)
        )
        query = np.ascontiguousarray(self.queries[[row for row, _, _ in rows]])
        counts = [sum(seq_idx == wanted for _, seq_idx, _ in rows) for wanted in seq_ids]
        lengths = [len(self.tables[seq_idx]) for seq_idx in seq_ids]
        arrays = {
            "positions": [position for _, _, position in rows],
            "query_starts": np.cumsum([0, *counts]),
            "block_tables": [block for seq_idx in seq_ids for block in self.tables[seq_idx]],
            "block_table_starts": np.cumsum([0, *lengths]),
        }
        kept = {name: np.array(numbers, dtype=np.int32) for name, numbers in arrays.items()}
        step = Step(num_tokens=len(rows), num_sequences=len(seq_ids), num_threads=1, is_sharing=is_sharing)
        for name, array in kept.items():
            setattr(step, name, array.ctypes.data)
        out = np.full((len(rows), self.num_kv_heads * self.group, self.head_dim), np.nan, dtype=np.float32)
        assert not library.ramet_attention(
            ctypes.byref(step),
            *(x.ctypes.data for x in (query, key, value)),
            self.num_kv_heads * self.group,
            self.num_kv_heads,
            self.head_dim,
            self.window,
            cache.ctypes.data,
            2 * self.num_kv_heads * self.head_dim * BLOCK,
            out.ctypes.data,
        )
        return out

    def expected(self) -> Array:
        starts = [0, *np.cumsum(self.num_new).tolist()]
        metadata = build_attention_metadata(self.tables, starts, self.context_lens, BLOCK)
        output = select_kernels("cpu", "reference").attention(
            torch.from_numpy(self.queries),
            torch.from_numpy(self.keys),
            torch.from_numpy(self.values),
            metadata,
            self.head_dim**-0.5,
            self.window or None,
        )
        return output.numpy()


def fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c, rounded once. (Twice in theory, as a sum in float64 is not exact; but never so here.)"""
    return (a.astype(np.float64) * b + c).astype(F32)


def round_bf16(x: Array) -> Array:
    bits = np.ascontiguousarray(x, dtype=F32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(F32)


def in_pairs(x: Array) -> Array:
    """Numbers [..., 2 n, m] as bits of bf16 [..., n, m, 2]."""
    bits = (x.view(np.uint32) >> 16).astype(np.uint16)
    return bits.reshape(*x.shape[:-2], -1, 2, x.shape[-1]).swapaxes(-1, -2)


def chains(a: Array, b: Array) -> Array:
    """Sums of a[..., 2, n] * b[..., 2, n] over n: two chains from the first term to the last, whose sums are added."""
    sums = np.zeros(np.broadcast_shapes(a.shape, b.shape)[:-1], dtype=F32)
    for n in range(a.shape[-1]):
        sums = fma(a[..., n], b[..., n], sums)
    return sums[..., 0] + sums[..., 1]


def exp2_weight(x: Array) -> Array:
    n = np.rint(x)
    r = x - n
    p = np.full_like(x, 9.582853221e-3)
    for coefficient in (5.590642621e-2, 2.402409862e-1, 6.931241932e-1, 1.0):
        p = fma(p, r, np.full_like(x, coefficient))
    return np.where(x < -66, F32(0), np.ldexp(p, np.maximum(n, -100).astype(int))).astype(F32)


def add_lanes(x: Array) -> Array:
    while len(x) > 1:
        x = x[: len(x) // 2] + x[len(x) // 2 :]
    return x[0]


def attend_row(query: Array, keys: Array, values: Array, first_key: int) -> Array:
    """One row's output as attention.h describes it. keys, values: [positions the row sees or skips][dim]."""
    head_dim = len(query)
    query = query * (F32(1.44269504) / np.sqrt(F32(head_dim)))
    query = round_bf16(np.where(abs(query) < F32(2**-66), F32(0), query))
    padding = (-len(keys) % CHUNK_KEYS, -head_dim % 32)
    keys, values = (np.pad(round_bf16(x), ((0, padding[0]), (0, padding[1]))) for x in (keys, values))
    query = np.pad(query, (0, padding[1]))
    maximum, total, output = F32(-1e29), np.zeros(BLOCK, F32), np.zeros(head_dim + padding[1], F32)
    for start in range(first_key // CHUNK_KEYS * CHUNK_KEYS, len(keys), CHUNK_KEYS):
        chunk = slice(start, start + CHUNK_KEYS)
        scores = np.zeros(CHUNK_KEYS, F32)
        for d in range(0, len(query), 32):
            pairs = query[d : d + 32].reshape(16, 2).T
            scores = scores + chains(pairs, keys[chunk, d : d + 32].reshape(-1, 16, 2).swapaxes(1, 2))
        positions = np.arange(start, start + CHUNK_KEYS)
        scores[(positions < first_key) | (positions >= len(keys) - padding[0])] = -1e30
        before, maximum = maximum, max(maximum, scores.max())
        factor = exp2_weight(np.array([before - maximum], F32))[0]
        weights = exp2_weight(scores - maximum)
        first, second, third, fourth = weights.reshape(4, BLOCK)
        total = fma(total, np.array(factor), (first + second) + (third + fourth))
        weights = round_bf16(weights)
        sums = np.zeros_like(output)
        for keys_of in (slice(0, 32), slice(32, 64)):
            pairs = weights[keys_of].reshape(16, 2).T
            sums = sums + chains(pairs, values[chunk][keys_of].T.reshape(-1, 16, 2).swapaxes(1, 2))
        output = fma(output, np.array(factor), sums)
    return (output * (F32(1) / add_lanes(total)))[:head_dim]


def emulate(attention: Attention) -> Array:
    """What every build should give, bit by bit."""
    output = np.empty_like(attention.queries)
    for row, (seq_idx, position) in enumerate(attention.rows()):
        table = np.array(attention.tables[seq_idx])
        keys, values = (x[table].reshape(-1, *x.shape[2:])[: position + 1] for x in (attention.keys, attention.values))
        first_key = max(0, position + 1 - attention.window) if attention.window else 0
        for head in range(output.shape[1]):
            kv_head = head // attention.group
            output[row, head] = attend_row(
                attention.queries[row, head], keys[:, kv_head], values[:, kv_head], first_key
            )
    return output


attentions = st.builds(
    Attention,
    layouts(),
    st.sampled_from(HEADS),
    st.sampled_from(HEAD_DIMS),
    st.sampled_from(WINDOWS),
    st.integers(0, 1000),
)
DECODES = Layout((0, 0, 1, 1, 2, 0), (12, 12, 9, 3, 12, 8), (193, 200, 145, 49, 193, 129), (1, 1, 1, 1, 1, 1))
CHUNK = Layout((0, 0), (12, 0), (262, 70), (70, 70))
random_layouts = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@random_layouts
@given(attention=attentions)
@example(attention=Attention(DECODES, (1, 3), 64, 0, 1))
@example(attention=Attention(DECODES, (2, 4), 128, 40, 2))
@example(attention=Attention(CHUNK, (1, 8), 80, 0, 3))
@example(attention=Attention(CHUNK, (3, 3), 16, 64, 4))
def test_attention_equals_the_oracle_whatever_lies_in_other_slots(library, attention):
    np.testing.assert_allclose(attention.run(library), attention.expected(), **BF16_ERROR)


@random_layouts
@given(attention=attentions, data=st.data())
@example(attention=Attention(DECODES, (1, 3), 64, 0, 5), data=None)
@example(attention=Attention(CHUNK, (2, 1), 96, 0, 6), data=None)
def test_a_row_has_the_same_bits_alone_batched_shared_and_chunked(library, attention, data):
    expected = attention.run(library)
    assert np.array_equal(attention.run(library, is_sharing=False), expected)
    starts = np.cumsum([0, *attention.num_new])
    order = list(reversed(range(len(attention.tables))))
    rows = np.concatenate([np.arange(starts[seq_idx], starts[seq_idx + 1]) for seq_idx in order])
    assert np.array_equal(attention.run(library, seq_ids=order), expected[rows])
    chunk = 1 if data is None else data.draw(st.sampled_from([1, 3, 16, 30]), label="chunk")
    for seq_idx, (length, count) in enumerate(zip(attention.context_lens, attention.num_new, strict=True)):
        cache, outputs = attention.stored(), []
        for start in range(length - count, length, chunk):
            part = {seq_idx: (start, min(length, start + chunk))}
            outputs.append(attention.run(library, cache, [seq_idx], part))
        assert np.array_equal(np.concatenate(outputs), expected[starts[seq_idx] : starts[seq_idx + 1]])


def test_large_scores_do_not_overflow(library):
    attention = Attention(DECODES, (2, 4), 64, 0, 7)
    attention.queries *= 300
    np.testing.assert_allclose(attention.run(library), attention.expected(), **BF16_ERROR)


GIVEN = [1e13, -1e30, np.inf, -np.inf, np.nan, 2**40, -(2**40), 7.0, 2**-40, -(2**-40), 2**-40 - 2**-62, 1e-40]
GIVEN += [1 + 2**-8, 1 + 3 * 2**-8]
STORED = [2**40, -(2**40), 2**40, -(2**40), 2**40, 2**40, -(2**40), 7.0, 2**-40, -(2**-40), 0, 0, 1, 1 + 2**-6]
"""NaN is stored as the largest number; ties are rounded to even."""


def test_numbers_are_stored_in_bf16_and_within_limits(library):
    attention = Attention(replace(CHUNK, num_new=(7, 7)), (1, 1), 16, 1, 8)
    slots = [(attention.tables[seq_idx][position // BLOCK], position % BLOCK) for seq_idx, position in attention.rows()]
    for idx, slot in enumerate(slots):
        attention.values[slot] = GIVEN[idx]
        attention.keys[slot] = GIVEN[-1 - idx]
    cache = attention.stored()
    outputs = attention.run(library, cache)[:, 0]
    keys = cache[:, 0].reshape(POOL, 8, BLOCK, 2)
    values = cache[:, 1].reshape(POOL, BLOCK // 2, 16, 2)
    expected = np.array(STORED, dtype=F32)
    for idx, (block, offset) in enumerate(slots):
        assert_stored(keys[block, :, offset], expected[-1 - idx])
        assert_stored(values[block, offset // 2, :, offset % 2], expected[idx])
        assert np.array_equal(outputs[idx], np.full(16, expected[idx]))


def assert_stored(bits: Array, expected: float) -> None:
    assert np.all((bits.astype(np.uint32) << 16).view(F32) == expected)


@pytest.mark.parametrize("num_heads", [40, 64])
def test_many_query_heads_of_one_kv_head(library, num_heads):
    """More rows a token than half a tile has room for."""
    attention = Attention(DECODES, (1, num_heads), 16, 0, 9)
    np.testing.assert_allclose(attention.run(library), attention.expected(), **BF16_ERROR)
    assert np.array_equal(attention.run(library, is_sharing=False), attention.run(library))


EXACT_CASES = [
    (DECODES, (1, 3), 64, 0),
    (DECODES, (1, 3), 64, 40),
    (DECODES, (2, 4), 128, 100),
    (CHUNK, (1, 3), 64, 0),
    *((replace(CHUNK, num_new=(20, 5)), (1, 3), head_dim, 70) for head_dim in HEAD_DIMS),
    *((Layout((0,), (4,), (65 + num_new,), (num_new,)), (1, 1), 48, 0) for num_new in (1, 2, 4, 5, 15, 16, 17, 33, 48)),
]


@pytest.mark.skipif(not BF16_ISAS, reason="no build with fused multiply-add runs here")
@pytest.mark.parametrize(("layout", "heads", "head_dim", "window"), EXACT_CASES)
def test_every_build_follows_the_described_arithmetic_bit_by_bit(
    cpu_library_of: Callable[[str], ctypes.CDLL], layout: Layout, heads: tuple[int, int], head_dim: int, window: int
) -> None:
    attention = Attention(layout, heads, head_dim, window, 10)
    expected = emulate(attention)
    for isa in BF16_ISAS:
        np.testing.assert_array_equal(attention.run(cpu_library_of(isa)), expected, err_msg=isa)


@pytest.mark.parametrize("scale", [0.0, 1e-19, 1e-6, 300.0])
def test_tiny_and_huge_queries_have_the_same_bits_everywhere(
    cpu_library_of: Callable[[str], ctypes.CDLL], scale: float
) -> None:
    """Tiny ones come near the numbers that the matrix unit would take for zeros, huge ones make weights vanish."""
    attention = Attention(CHUNK, (1, 3), 64, 0, 11)
    attention.queries *= F32(scale)
    attention.keys *= F32(2**-36)  # some of them are stored as zeros
    attention.keys[abs(attention.keys) < 2**-40] = 0
    expected = emulate(attention)
    for isa in BF16_ISAS:
        np.testing.assert_array_equal(attention.run(cpu_library_of(isa)), expected, err_msg=isa)


@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF])
def test_nan_stays_in_its_row(library, bits):
    attention = Attention(CHUNK, (1, 3), 64, 0, 12)
    expected = attention.run(library)
    attention.queries[5, 1, 7] = np.array(bits, dtype=np.uint32).view(F32)
    expected[5, 1] = np.nan
    np.testing.assert_array_equal(attention.run(library), expected)
