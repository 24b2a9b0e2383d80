"""A group over gloo, its ranks in threads of this process."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from ramet.runtime.gpu.step_graphs import EagerSteps
from ramet.runtime.parallel.distributed import DistributedGroup, connect, find_store, open_store

SIZE = 3
CPU = torch.device("cpu")


@pytest.fixture
def on_ranks() -> Callable[[Callable[[DistributedGroup], Any]], list[Any]]:
    """on_ranks(action): what it returns on each of three connected ranks."""

    def run(action: Callable[[DistributedGroup], Any]) -> list[Any]:
        store, port = open_store(SIZE)

        def on_rank(rank: int) -> Any:
            own = store if rank == 0 else find_store(port, SIZE)
            group = connect(own, rank, SIZE, CPU)
            group.timeout = 20.0
            return action(group)

        with ThreadPoolExecutor(SIZE) as pool:
            return list(pool.map(on_rank, range(SIZE)))

    return run


def test_sums_are_in_order_of_ranks_whatever_the_shape(on_ranks: Any) -> None:
    """Equal bits on every rank, and a row's do not depend on the others."""
    parts = (
        torch.randn((SIZE, 37, 50), generator=torch.Generator().manual_seed(0))
        * torch.tensor([1e4, 1.0, 1e-4])[:, None, None]
    )
    expected = (parts[0] + parts[1]) + parts[2]

    def reduce(group: DistributedGroup) -> tuple[torch.Tensor, list[torch.Tensor]]:
        own = parts[group.rank]
        return group.all_reduce(own.clone()), [group.all_reduce(own[row : row + 1].clone()) for row in (0, 20, 36)]

    for total, rows in on_ranks(reduce):
        assert torch.equal(total, expected)
        assert torch.equal(torch.cat(rows), expected[[0, 20, 36]])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_dtypes_and_strides(on_ranks: Any, dtype: torch.dtype) -> None:
    def reduce(group: DistributedGroup) -> torch.Tensor:
        return group.all_reduce(torch.arange(6, dtype=dtype).reshape(2, 3).t() + group.rank)

    for total in on_ranks(reduce):
        assert torch.equal(total, torch.arange(6, dtype=dtype).reshape(2, 3).t() * 3 + 3)


def test_columns_come_to_rank_0(on_ranks: Any) -> None:
    whole = torch.arange(4 * 11.0).reshape(4, 11)
    widths, starts = [4, 4, 3], [0, 4, 8]

    def gather(group: DistributedGroup) -> tuple[torch.Tensor, int, int]:
        own = whole[:, starts[group.rank] : starts[group.rank] + widths[group.rank]]
        return group.gather_columns(own, widths), group.smallest(7 - group.rank), group.num_started

    results = on_ranks(gather)
    assert torch.equal(results[0][0], whole)
    assert torch.equal(results[2][0], whole[:, 8:])
    assert [(smallest, count) for _, smallest, count in results] == [(5, 2)] * SIZE


def test_a_rank_that_does_not_come_breaks_the_group(on_ranks: Any) -> None:
    def reduce(group: DistributedGroup) -> tuple[bool, int]:
        if group.rank == 2:
            return group.is_broken, group.num_started
        group.timeout = 0.5
        with pytest.raises(RuntimeError):
            group.all_reduce(torch.ones(2))
        return group.is_broken, group.num_started

    assert on_ranks(reduce) == [(True, 1), (True, 1), (False, 0)]


def test_the_smallest_of_numbers_beyond_int64(on_ranks: Any) -> None:
    """A user may ask for as many blocks."""
    assert on_ranks(lambda group: group.smallest(10**30 + group.rank)) == [2**63 - 1] * SIZE
    assert on_ranks(lambda group: group.smallest(10**30 if group.rank else 5)) == [5] * SIZE


def test_a_closed_group_lets_go_of_its_sockets(on_ranks: Any) -> None:
    def close(group: DistributedGroup) -> None:
        backend = weakref.ref(group._backend)
        group.close()
        group.close()
        assert backend() is None
        with pytest.raises(ConnectionError, match="closed"):
            group.all_reduce(torch.ones(2))

    on_ranks(close)


def test_captured_steps_are_counted(on_ranks: Any) -> None:
    def count(group: DistributedGroup) -> list[int]:
        replay = group.counted(EagerSteps()).capture(lambda: torch.ones(1))
        counts = [group.num_started]
        for _ in range(2):
            assert torch.equal(replay(), torch.ones(1))
            counts.append(group.num_started)
        return counts

    assert on_ranks(count) == [[0, 1, 2]] * SIZE


class RecordingBackend:
    """Stands for NCCL, which gives no work to wait for when a collective runs on the current stream."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bool]] = []

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> None:
        self.calls.append(("allreduce", options.asyncOp))
        tensors[0].mul_(2)

    def abort(self) -> None:
        self.calls.append(("abort", False))


def test_nccl_sums_in_place_on_the_current_stream() -> None:
    backend = RecordingBackend()
    group = DistributedGroup(backend, 0, 2, torch.device("cuda:0"))
    assert torch.equal(group.all_reduce(torch.ones(2, 3).t()), torch.full((3, 2), 2.0))
    group.abort()
    group.close()
    group.close()
    assert backend.calls == [("allreduce", False), ("abort", False), ("abort", False)]
    assert (group.num_started, group.is_broken) == (1, True)
