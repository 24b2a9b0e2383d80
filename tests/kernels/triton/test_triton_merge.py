"""Merging parts against fp64, with parts of keys that a row does not see, and rows that have none."""

from __future__ import annotations

import pytest
import torch

from ramet.kernels.triton.merge import merge_parts_call
from ramet.kernels.triton.plan_buffers import LoadedPlan


@pytest.mark.parametrize(("num_heads", "head_dim"), [(1, 64), (9, 80), (32, 128), (5, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_parts_are_weighed_by_their_sums(num_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    num_parts_of_row = [0, 2, 0, 5, 1, 19, 8]
    ends = torch.tensor(num_parts_of_row).cumsum(0)
    num_parts = int(ends[-1])
    out = torch.randn(num_parts, num_heads, head_dim)
    log = torch.randn(num_parts, num_heads) * 30
    log[1] = log[4, 0] = log[8:17] = -torch.inf
    unused = torch.empty(0, dtype=torch.int32)
    plan = LoadedPlan(
        positions=unused,
        row_ranges=torch.tensor([0, *ends.tolist()], dtype=torch.int32),
        rows=unused,
        targets=unused,
        kv_blocks=unused,
        items=(),
        partial_out=out,
        partial_log=log,
        has_parts=True,
    )
    output = torch.full((len(num_parts_of_row), num_heads, head_dim), 7.0, dtype=dtype)
    merge_parts_call(plan, output).run()
    for row, (first, end) in enumerate(zip([0, *ends.tolist()], ends.tolist(), strict=False)):
        if first == end:
            assert (output[row] == 7.0).all()
            continue
        weights = torch.softmax(log[first:end].double() * torch.log(torch.tensor(2.0, dtype=torch.float64)), dim=0)
        expected = (weights[..., None] * out[first:end].double()).sum(0)
        torch.testing.assert_close(
            output[row].double(), expected, atol=2e-6 if dtype == torch.float32 else 2e-3, rtol=0
        )


def merged(logs: list[float]) -> torch.Tensor:
    out = torch.arange(16.0).repeat(len(logs), 1, 1)
    unused = torch.empty(0, dtype=torch.int32)
    plan = LoadedPlan(
        positions=unused,
        row_ranges=torch.tensor([0, len(logs)], dtype=torch.int32),
        rows=unused,
        targets=unused,
        kv_blocks=unused,
        items=(),
        partial_out=out / 3 * torch.arange(1, len(logs) + 1)[:, None, None],
        partial_log=torch.tensor(logs)[:, None],
        has_parts=True,
    )
    output = torch.full((1, 1, 16), torch.nan)
    merge_parts_call(plan, output).run()
    return output


def test_parts_that_a_row_does_not_see_change_no_bit() -> None:
    """A row in a tile with later ones has parts behind its own keys; alone it has not."""
    logs = [0.3, 1.7, -2.0, 0.1, 5.0]
    for num_unseen in (1, 3, 12):
        assert torch.equal(merged(logs + [-torch.inf] * num_unseen), merged(logs))


def test_a_row_that_sees_nothing_is_zero() -> None:
    assert not merged([-torch.inf] * 9).any()
