"""Logprobs computed on the device are those of `logprobs.py`: values, ranks, order of ties; a row depends on itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.kernels.triton.launch import KernelCall
from ramet.runtime import logprobs as definition
from ramet.runtime.gpu import device_logprobs
from ramet.runtime.gpu.device_logprobs import (
    listing_lines,
    listings_of,
    logprobs_of,
    read_listings,
    token_logprobs_of,
)
from ramet.runtime.outputs import TokenLogprobs

VALUES = st.sampled_from([-torch.inf, -3.4e38, -1.5, -0.0, 0.0, 1e-45, 0.5, 0.5, 2.0, 3.4e38])
NOT_FINITE = pytest.mark.filterwarnings("ignore:invalid value encountered")
"""The interpreter is numpy, which warns where a GPU does not."""


def assert_close(listings: list[TokenLogprobs], expected: list[TokenLogprobs]) -> None:
    for listing, wanted in zip(listings, expected, strict=True):
        assert [(key, entry.rank) for key, entry in listing.items()] == [
            (key, entry.rank) for key, entry in wanted.items()
        ]
        values, wanted_values = ([entry.logprob for entry in each.values()] for each in (listing, wanted))
        assert values == pytest.approx(wanted_values, rel=1e-13, abs=1e-12, nan_ok=True)


@NOT_FINITE
@settings(max_examples=25)
@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 45), st.data())
def test_listings_equal_their_definition(num_rows: int, vocab_size: int, top_n: int, data: st.DataObject) -> None:
    """Ties, -0 beside 0, -inf, and logits at the ends of fp32."""
    rows = st.lists(VALUES, min_size=vocab_size, max_size=vocab_size)
    logits = torch.tensor(data.draw(st.lists(rows, min_size=num_rows, max_size=num_rows)))
    token_ids = data.draw(st.lists(st.integers(0, vocab_size - 1), min_size=num_rows, max_size=num_rows))
    listings = logprobs_of(logits, token_ids, top_n)
    assert_close(listings, definition.logprobs_of(logits, token_ids, top_n))
    found = token_logprobs_of(logits, range(num_rows), token_ids)
    own = [listing[token_id].logprob for listing, token_id in zip(listings, token_ids, strict=True)]
    assert np.array_equal(found, own, equal_nan=True)


@pytest.mark.parametrize("vocab_size", [501, 16384, 40_000])
def test_random_rows_of_several_blocks(vocab_size: int) -> None:
    logits = torch.randn(5, vocab_size, generator=torch.Generator().manual_seed(2)) * 10
    logits = (logits * 8).round() / 8  # with many ties
    token_ids = [int(logits[0].argmax()), 0, vocab_size - 1, int(logits[3].argmin()), 77]
    assert_close(logprobs_of(logits, token_ids, 20), definition.logprobs_of(logits, token_ids, 20))


def test_a_row_does_not_depend_on_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the batch, and however it is sliced to be ordered: the same floats to the last bit."""
    logits = torch.randn(9, 501, generator=torch.Generator().manual_seed(3)) * 10
    token_ids = [idx * 7 % 501 for idx in range(9)]
    together = logprobs_of(logits, token_ids, 4)
    assert together == [logprobs_of(logits[idx : idx + 1], token_ids[idx : idx + 1], 4)[0] for idx in range(9)]
    monkeypatch.setattr(device_logprobs, "_SORTED_PER_SLICE", 2 * 501)
    assert logprobs_of(logits, token_ids, 4) == together


def test_rows_and_their_numbers_are_chosen() -> None:
    """Rows are read where they lie, in the order they are named, and each has as many tokens as it asked for."""
    logits = torch.randn(6, 60)[:, 3:53]
    listings = listings_of(logits, [4, 1, 4], [9, 8, 7], [3, 0, 60])
    for listing, row, token_id, top_n in zip(listings, [4, 1, 4], [9, 8, 7], [3, 0, 60], strict=True):
        assert_close([listing], definition.logprobs_of(logits[row : row + 1].contiguous(), [token_id], top_n))


def test_a_token_has_the_same_logprob_by_itself_and_in_a_listing() -> None:
    logits = torch.randn(3, 501, generator=torch.Generator().manual_seed(3)) * 10
    rows, token_ids = [2, 0, 0, 1, 0], [7, 3, 500, 0, 3]
    listings = logprobs_of(logits, [0, 0, 0], 501)
    assert token_logprobs_of(logits, rows, token_ids) == [
        listings[row][token_id].logprob for row, token_id in zip(rows, token_ids, strict=True)
    ]


@NOT_FINITE
@pytest.mark.parametrize("broken", [[0.0, torch.nan, 1.0], [0.0, torch.inf, 1.0], [-torch.inf] * 3, [torch.nan] * 3])
def test_a_broken_row_gives_nan_and_leaves_the_others_alone(broken: list[float]) -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], broken])
    fine, listed = logprobs_of(logits, [0, 0], 1)
    assert_close([fine], definition.logprobs_of(logits[:1], [0], 1))
    assert all(np.isnan(entry.logprob) for entry in listed.values())


def test_few_numbers_come_to_the_host() -> None:
    """Ids and ranks are exact in fp64; a token that does not exist, of a row that has an error, reads nothing."""
    logits = torch.randn(4, 200)
    lines = listing_lines(logits, torch.tensor([0, 3]), torch.tensor([5, -1]), 2)
    assert lines.shape == (2, 3 + 2 * 2)
    first = read_listings(lines.numpy(), [2, 2])[0]
    assert_close([first], definition.logprobs_of(logits[:1], [5], 2))


def test_no_rows_give_no_logprobs() -> None:
    assert logprobs_of(torch.zeros(0, 5), [], 3) == []
    assert token_logprobs_of(torch.zeros(0, 5), [], []) == []


def test_where_the_device_has_no_memory_the_host_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that has been computed is not lost for some numbers beside it."""

    def out_of_memory(call: KernelCall) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(KernelCall, "run", out_of_memory)
    logits = torch.randn(3, 40)
    assert listings_of(logits, [2, 0], [1, 2], [3, 0]) == [
        *definition.logprobs_of(logits[2:], [1], 3),
        *definition.logprobs_of(logits[:1], [2], 0),
    ]
    assert token_logprobs_of(logits, [2, 0], [1, 2]) == definition.token_logprobs_of(logits, [2, 0], [1, 2])
