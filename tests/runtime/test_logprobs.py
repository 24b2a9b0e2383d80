"""Logprobs against plain definitions: value, rank, order of ties, and independence of the other rows."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.logprobs import ROWS_PER_SLICE, largest, logprobs_of, token_logprobs_of

FEW_VALUES = st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=40)


@given(FEW_VALUES, st.integers(1, 50))
def test_largest_orders_by_value_and_then_by_index(values, count):
    expected = sorted(range(len(values)), key=lambda idx: (-values[idx], idx))[:count]
    assert largest(np.array(values, dtype=np.float32), count).tolist() == expected


@given(FEW_VALUES, st.integers(0, 50), st.data())
def test_logprobs_equal_their_definition(values, top_n, data):
    token_id = data.draw(st.integers(0, len(values) - 1))
    listed = logprobs_of(torch.tensor([values]), [token_id], top_n)[0]
    expected = torch.tensor(values, dtype=torch.float64).log_softmax(0).tolist()
    order = sorted(range(len(values)), key=lambda idx: (-values[idx], idx))
    assert list(listed) == [token_id, *(other for other in order[:top_n] if other != token_id)]
    for other, entry in listed.items():
        assert abs(entry.logprob - expected[other]) < 1e-12
        assert entry.rank == order.index(other) + 1


def test_a_row_does_not_depend_on_the_others():
    rows = ROWS_PER_SLICE + 5
    logits = torch.randn(rows, 501, generator=torch.Generator().manual_seed(2)) * 10
    token_ids = [idx * 7 % 501 for idx in range(rows)]
    together = logprobs_of(logits, token_ids, 4)
    assert together == [logprobs_of(logits[idx : idx + 1], token_ids[idx : idx + 1], 4)[0] for idx in range(rows)]


def test_a_token_has_the_same_logprob_by_itself_and_in_a_listing():
    logits = torch.randn(3, 501, generator=torch.Generator().manual_seed(3)) * 10
    rows, token_ids = [2, 0, 0, 1, 0], [7, 3, 500, 0, 3]
    expected = [
        logprobs_of(logits[row : row + 1], [token], 0)[0][token].logprob
        for row, token in zip(rows, token_ids, strict=True)
    ]
    assert token_logprobs_of(logits, rows, token_ids) == expected


def test_impossible_tokens_have_minus_infinity():
    listed = logprobs_of(torch.tensor([[0.0, -torch.inf, -torch.inf]]), [2], 3)[0]
    assert listed[0].logprob == 0.0
    assert listed[2].logprob == listed[1].logprob == -np.inf
    assert [listed[idx].rank for idx in (0, 1, 2)] == [1, 2, 3]


def test_a_broken_row_gives_nan_and_leaves_the_others_alone():
    logits = torch.zeros(3, 4)
    logits[1, 2] = torch.nan
    logits[2] = -torch.inf
    fine, *broken = logprobs_of(logits, [0, 0, 0], 1)
    assert fine[0].logprob == np.log(0.25)
    assert all(np.isnan(listed[0].logprob) for listed in broken)


def test_no_rows_give_no_logprobs():
    assert logprobs_of(torch.zeros(0, 5), [], 3) == []
