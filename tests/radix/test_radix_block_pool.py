"""The states of a block, and who may move it."""

from __future__ import annotations

import pytest

from ramet.radix import BlockPool, BlockState


def test_the_pool_moves_blocks_between_states() -> None:
    pool = BlockPool(4)
    assert pool.allocate(5) is None
    assert pool.allocate(3) == [0, 1, 2]
    assert (pool.num_free, pool.num_private, pool.num_tree) == (1, 3, 0)
    pool.adopt([1])
    assert pool.state(1) is BlockState.TREE
    pool.free([1, 0])
    assert (pool.num_free, pool.num_private, pool.num_tree, pool.num_frees) == (3, 1, 0, 2)
    assert pool.allocate(0) == []
    assert pool.allocate(3) == [0, 1, 3]
    with pytest.raises(AssertionError, match="free already"):
        pool.free([2, 2])
    with pytest.raises(AssertionError, match="not private"):
        pool.adopt([2])
