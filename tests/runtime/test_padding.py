"""Padding to captured batch sizes: it changes no result, and no slot but those of the step's own tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from ramet.radix.prefix_cache import BlockCopy
from ramet.runtime.batch import Batch, FlatBatch, ScheduledSequence
from ramet.runtime.padding import num_padding_rows, pad_decodes, padded_size
from ramet.runtime.runner import ModelRunner

SIZES = (1, 2, 4, 8)
NUM_BLOCKS = 64
CANARY = 0.37
BLOCK_IDS = [[3 * seq_idx + idx for idx in range(3)] for seq_idx in range(9)]


@pytest.mark.parametrize(
    ("num_rows", "size"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (7, 8), (8, 8), (9, 9), (100, 100)]
)
def test_the_next_size(num_rows: int, size: int) -> None:
    assert padded_size(num_rows, SIZES) == size
    assert padded_size(num_rows, ()) == num_rows
    assert num_padding_rows(num_rows, num_rows, SIZES) == size - num_rows


def test_only_steps_of_single_tokens_are_padded() -> None:
    assert num_padding_rows(num_tokens=3, num_seqs=3, sizes=SIZES) == 1
    assert num_padding_rows(num_tokens=4, num_seqs=3, sizes=SIZES) == 0


@pytest.fixture(scope="module")
def make_runner(
    tmp_path_factory: pytest.TempPathFactory, make_tiny_model: Callable[..., Any], load_runner: Callable[..., Any]
) -> Callable[..., ModelRunner]:
    path: Path = make_tiny_model(seed=3).save(tmp_path_factory.mktemp("tiny"))

    def make(kernels: str, captured_batch_sizes: tuple[int, ...]) -> ModelRunner:
        loaded = load_runner(path, kernels, num_blocks=NUM_BLOCKS, captured_batch_sizes=captured_batch_sizes)
        assert isinstance(loaded.runner, ModelRunner)
        return loaded.runner

    return make


@pytest.fixture
def sequences(paged_sequence: Callable[..., Any]) -> list[Any]:
    """Nine sequences of different lengths with blocks of their own, one of them just begun."""
    lens = [3, 16, 17, 40, 1, 33, 32, 20, 5]
    return [
        paged_sequence([(7 * idx * idx + 3 * seq_idx + 1) % 100 for idx in range(length)], BLOCK_IDS[seq_idx])
        for seq_idx, length in enumerate(lens)
    ]


def decode_batch(sequences: list[Any], **fields: Any) -> Batch:
    parts = [ScheduledSequence(sequence, sequence.num_tokens - 1, 1, 0) for sequence in sequences]
    return Batch(scheduled=parts, **fields)


def fill_contexts(runner: ModelRunner, sequences: list[Any]) -> None:
    for sequence in sequences:
        count = sequence.num_tokens - 1
        if count:
            runner.forward(Batch(scheduled=[ScheduledSequence(sequence, 0, count, count)]))


def contents(runner: ModelRunner) -> list[Tensor]:
    return [cache.clone() for layer in runner.kv_cache.layers for cache in layer]


@pytest.mark.parametrize("num_seqs", range(1, 10))
def test_logits_are_those_without_padding(
    make_runner: Callable[..., ModelRunner], sequences: list[Any], num_seqs: int
) -> None:
    plain, padded = make_runner("reference", ()), make_runner("reference", SIZES)
    live = sequences[:num_seqs]
    for runner in (plain, padded):
        fill_contexts(runner, live)
    expected, logits = plain.forward(decode_batch(live)), padded.forward(decode_batch(live))
    assert padded.tensors(decode_batch(live)).token_ids.shape == (padded_size(num_seqs, SIZES),)
    assert logits.shape == (num_seqs, 101)
    # A matrix product of more rows may add in another order: the last bits are the library's choice.
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize("num_seqs", range(1, 10))
def test_no_slot_changes_but_those_of_the_step(
    make_runner: Callable[..., ModelRunner], sequences: list[Any], num_seqs: int
) -> None:
    runner = make_runner("reference", SIZES)  # its KV cache is [block, slot, head, dim]
    for layer in runner.kv_cache.layers:
        for cache in layer:
            assert cache.shape[0] == NUM_BLOCKS + 1
            cache.fill_(CANARY)
    live = sequences[:num_seqs]
    runner.forward(decode_batch(live))
    written = {(seq.block_ids[(seq.num_tokens - 1) // 16], (seq.num_tokens - 1) % 16) for seq in live}
    is_padded = padded_size(num_seqs, SIZES) > num_seqs
    if is_padded:
        written.add((NUM_BLOCKS, 0))
    for cache in contents(runner):
        changed = {(int(block), int(slot)) for block, slot in (cache != CANARY).flatten(2).any(-1).nonzero()}
        assert changed == written


@pytest.mark.parametrize("kernels", ["torch", "torch_int8"])
def test_other_kernels_agree_with_and_without_padding(
    make_runner: Callable[..., ModelRunner], sequences: list[Any], kernels: str
) -> None:
    plain, padded = make_runner(kernels, ()), make_runner(kernels, SIZES)
    live = sequences[:5]
    for runner in (plain, padded):
        fill_contexts(runner, live)
    for _ in range(3):
        expected, logits = plain.forward(decode_batch(live)), padded.forward(decode_batch(live))
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
        for before, after in zip(contents(plain), contents(padded), strict=True):
            assert after.shape[0] == before.shape[0] + 1
            torch.testing.assert_close(after[:NUM_BLOCKS], before, rtol=1e-4, atol=1e-4)
        for sequence, row in zip(live, expected, strict=True):
            sequence.token_ids.append(int(row.argmax()))


def test_steps_with_longer_parts_are_left_alone(make_runner: Callable[..., ModelRunner], sequences: list[Any]) -> None:
    runner = make_runner("reference", SIZES)
    batch = decode_batch(sequences[:2])
    batch.scheduled.append(ScheduledSequence(sequences[3], 0, 10, 10))
    tensors = runner.tensors(batch)
    assert tensors.token_ids.shape == (12,)
    assert tensors.attention.query_starts == (0, 1, 2, 12)
    assert runner.forward(batch).shape == (3, 101)


def test_rows_of_padding_are_sequences_of_one_token_in_the_extra_block(
    make_runner: Callable[..., ModelRunner], sequences: list[Any]
) -> None:
    runner = make_runner("reference", SIZES)
    tensors = runner.tensors(decode_batch(sequences[:5]))
    assert tensors.token_ids[5:].tolist() == [0, 0, 0]
    assert tensors.positions[5:].tolist() == [0, 0, 0]
    assert tensors.logit_rows.tolist() == [0, 1, 2, 3, 4]
    metadata = tensors.attention
    assert list(metadata.context_lens[5:]) == [1, 1, 1]
    assert metadata.block_tables[5:] == [[NUM_BLOCKS]] * 3
    assert metadata.slots[5:].tolist() == [NUM_BLOCKS * 16] * 3
    assert [item.sequences for item in metadata.items] == [(idx,) for idx in range(8)]


def test_a_part_without_wanted_logits_has_its_last_row(
    make_runner: Callable[..., ModelRunner], sequences: list[Any]
) -> None:
    runner = make_runner("reference", SIZES)
    parts = [ScheduledSequence(sequence, 0, 1, 1) for sequence in sequences[:3]]
    assert runner.forward(Batch(scheduled=parts)).shape == (3, 101)


def test_copies_and_sizes_are_those_of_the_pool(make_runner: Callable[..., ModelRunner], sequences: list[Any]) -> None:
    plain, runner = make_runner("reference", ()), make_runner("reference", SIZES)
    assert runner.num_blocks == plain.num_blocks == NUM_BLOCKS
    assert runner.kv_cache.bytes_per_block == plain.kv_cache.bytes_per_block
    assert [cache.shape[0] for layer in plain.kv_cache.layers for cache in layer] == [NUM_BLOCKS] * 4
    for layer in runner.kv_cache.layers:
        for cache in layer:
            cache[50] = CANARY
    runner.forward(decode_batch(sequences[:3], block_copies=[BlockCopy(50, NUM_BLOCKS - 1, 16)]))
    assert all((cache[NUM_BLOCKS - 1] == CANARY).all() for cache in contents(runner))


def test_padding_touches_nothing_that_belongs_to_the_sequences(sequences: list[Any]) -> None:
    live = sequences[:3]
    before = [(list(sequence.token_ids), list(sequence.block_ids)) for sequence in live]
    flat = FlatBatch(cast(Any, decode_batch(live)))
    pad_decodes(flat, SIZES, 99)
    assert len(flat.token_ids) == len(flat.positions) == len(flat.block_tables) == len(flat.context_lens) == 4
    assert flat.query_starts == [0, 1, 2, 3, 4]
    assert flat.logit_rows == [0, 1, 2]
    assert [(sequence.token_ids, sequence.block_ids) for sequence in live] == before
