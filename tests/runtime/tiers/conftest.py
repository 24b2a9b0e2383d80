"""Blocks whose data says which prefix they belong to, and stores of them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ramet.runtime.tiers import disk_files
from ramet.runtime.tiers.base import KVTier
from ramet.runtime.tiers.disk_format import header_bytes
from ramet.runtime.tiers.disk_store import DiskStore
from ramet.runtime.tiers.disk_tier import DiskTier

BLOCK_SIZE = 4
BYTES_PER_BLOCK = 96
BYTES_PER_SLOT = 4096 + header_bytes(BLOCK_SIZE)


def data_of(namespace: Hashable, token_ids: list[int], start: int, end: int) -> Tensor:
    """What blocks [start, end) hold: a function of all tokens up to their ends."""
    rows = []
    for idx in range(start, end):
        text = repr((namespace, token_ids[: (idx + 1) * BLOCK_SIZE])).encode()
        rows.append(torch.frombuffer(bytearray(hashlib.sha256(text).digest() * 3), dtype=torch.uint8))
    return torch.stack(rows) if rows else torch.empty((0, BYTES_PER_BLOCK), dtype=torch.uint8)


def put(tier: KVTier, token_ids: list[int], namespace: Hashable = None, start: int = 0) -> int:
    """Offer a whole prefix, or what is behind its first `start` blocks; how many of them were wanted."""
    end = len(token_ids) // BLOCK_SIZE
    wanted = tier.wanted(namespace, token_ids, start, end)
    if wanted:
        tier.offer(namespace, token_ids, wanted.start, data_of(namespace, token_ids, wanted.start, wanted.stop))
    return len(wanted)


def settle(tier: KVTier) -> None:
    """Wait until all that was taken in can be loaded."""
    while isinstance(tier, DiskTier) and any(stored.data_digest is None for stored in list(tier._stored.values())):
        time.sleep(0.001)
        assert tier.stats.max_held_blocks  # takes in what was written


def get(tier: KVTier, token_ids: list[int], namespace: Hashable = None, start: int = 0) -> int:
    """Load what the tier has; how many blocks. Fails if one of them is another one's."""
    end = len(token_ids) // BLOCK_SIZE
    num_held = tier.num_held(namespace, token_ids, start, end)
    data = tier.load(namespace, token_ids, start, start + num_held)
    assert len(data) <= num_held
    assert torch.equal(data, data_of(namespace, token_ids, start, start + len(data)))
    return len(data)


class Helpers:
    block_size = BLOCK_SIZE
    bytes_per_block = BYTES_PER_BLOCK
    bytes_per_slot = BYTES_PER_SLOT
    data_of = staticmethod(data_of)
    put = staticmethod(put)
    get = staticmethod(get)
    settle = staticmethod(settle)


@pytest.fixture(scope="session")
def blocks() -> type[Helpers]:
    return Helpers


@pytest.fixture
def open_tier(tmp_path: Path) -> Iterator[Callable[..., DiskTier]]:
    """open_tier(path=..., num_slots=..., identity=...): a DiskTier; closed with the test."""
    with ExitStack() as stack:

        def build(path: Path = tmp_path, num_slots: int = 64, identity: bytes = b"{}", **options: Any) -> DiskTier:
            num_bytes = num_slots * BYTES_PER_SLOT
            folder = disk_files.open_directory(path)
            store = DiskStore(folder, identity, BLOCK_SIZE, BYTES_PER_BLOCK, num_bytes, **options)
            tier = DiskTier(store, BLOCK_SIZE)
            stack.callback(tier.close)
            return tier

        yield build
