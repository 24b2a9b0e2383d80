"""Partial attention: both forms agree, and partial results merge to the whole."""

from __future__ import annotations

import pytest
import torch

from ramet.kernels.torch_cpu import partial_attention as module
from ramet.kernels.torch_cpu.partial_attention import MASKED, partial_attention, partial_attention_by_matmul


@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "row mask"])
@pytest.mark.parametrize("max_scores", [1 << 24, 1 << 11])
def test_both_forms_agree(kind: str, max_scores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SCORES", max_scores)
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 70, 32).unbind()
    mask = None
    if kind.endswith("mask"):
        num_mask_rows = 1 if kind == "row mask" else 70
        mask = torch.zeros(2, 1, num_mask_rows, 70).masked_fill_(torch.rand(2, 1, num_mask_rows, 70) < 0.5, MASKED)
    arguments = (query, key, value, 0.2, mask, kind == "causal")
    output, log_sum_exp = partial_attention(*arguments)
    expected, expected_lse = partial_attention_by_matmul(*arguments)
    torch.testing.assert_close(output, expected, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(log_sum_exp, expected_lse, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("form", [partial_attention, partial_attention_by_matmul])
def test_log_sum_exp_is_that_of_the_scaled_scores(form: type) -> None:
    query, key, value = torch.randn(3, 1, 2, 5, 16).unbind()
    _, log_sum_exp = form(query, key, value, 0.3)
    scores = query @ key.transpose(-1, -2) * 0.3
    torch.testing.assert_close(log_sum_exp, torch.logsumexp(scores, dim=-1))


@pytest.mark.parametrize("form", [partial_attention, partial_attention_by_matmul])
def test_a_row_with_nothing_to_see_weighs_nothing(form: type) -> None:
    query, key, value = torch.randn(3, 1, 1, 2, 8).unbind()
    mask = torch.tensor([[0.0, 0.0], [MASKED, MASKED]])[None, None]
    output, log_sum_exp = form(query, key, value, 1.0, mask)
    assert output.isfinite().all()
    assert torch.sigmoid(log_sum_exp[0, 0, 1] - torch.tensor(-1000.0)) == 0
