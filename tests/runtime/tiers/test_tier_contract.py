"""What every tier of the registry promises."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch

from ramet.runtime.cache_namespace import CacheNamespace
from ramet.runtime.config import EngineConfig
from ramet.runtime.errors import InvalidConfigError, PrefixesKeptError
from ramet.runtime.tiers import disk_files
from ramet.runtime.tiers.base import KVTier
from ramet.runtime.tiers.disk_format import header_bytes
from ramet.runtime.tiers.disk_store import DiskStore
from ramet.runtime.tiers.host_tier import HostTier
from ramet.runtime.tiers.prefix_tiers import TieredStorage
from ramet.runtime.tiers.registry import TIERS, TierSpec, check_directory

LONG = list(range(100, 140))
NUM_BLOCKS = len(LONG) // 4
OPTIONS: dict[str, Callable[[Any, int], dict[str, Any]]] = {
    "host": lambda tmp_path, num_slots: {"host_cache_memory": num_slots * 96},
    "disk": lambda tmp_path, num_slots: {
        "prefix_cache_dir": str(tmp_path),
        "prefix_cache_dir_size": num_slots * (4096 + header_bytes(4)),
    },
}
"""The options that ask for so many slots of 96 bytes."""


class Memory:
    bytes_per_block = 96
    device = torch.device("cpu")


class LargeMemory(Memory):
    bytes_per_block = 1 << 50


@pytest.fixture(params=sorted(TIERS))
def open_named(request, tmp_path) -> Iterator[Callable[..., KVTier]]:
    opened = []

    def build(num_slots: int = 64) -> KVTier:
        config = EngineConfig(**OPTIONS[request.param](tmp_path, num_slots))
        tier = TIERS[request.param](TierSpec(config, cast(Any, Memory()), 4, lambda: b"{}"))
        assert tier is not None
        opened.append(tier)
        return tier

    yield build
    for tier in opened:
        tier.close()


def test_every_tier_has_options_here():
    assert set(OPTIONS) == set(TIERS)


def test_what_is_not_asked_for_is_not_there():
    spec = TierSpec(EngineConfig(), cast(Any, Memory()), 4, lambda: b"{}")
    assert [open_tier(spec) for open_tier in TIERS.values()] == [None] * len(TIERS)


def test_blocks_come_back_as_they_were(open_named, blocks):
    tier = open_named()
    assert tier.name in TIERS
    assert tier.takes in {"finished", "evicted"}
    assert blocks.get(tier, LONG) == 0
    assert blocks.put(tier, LONG) == NUM_BLOCKS
    blocks.settle(tier)
    assert blocks.get(tier, LONG) == NUM_BLOCKS
    assert blocks.get(tier, LONG, start=3) == NUM_BLOCKS - 3
    stats = tier.stats
    assert (stats.num_hits, stats.num_loaded_blocks) == (2, 2 * NUM_BLOCKS - 3)
    assert stats.num_loaded_bytes == 96 * stats.num_loaded_blocks
    assert (stats.num_stored_blocks, stats.num_stored_bytes) == (NUM_BLOCKS, 96 * NUM_BLOCKS)
    assert (stats.num_held_blocks, stats.num_evicted_blocks) == (NUM_BLOCKS, 0)


def test_what_it_has_is_not_wanted_again(open_named, blocks):
    tier = open_named()
    assert blocks.put(tier, LONG[:20]) == 5
    assert blocks.put(tier, LONG) == NUM_BLOCKS - 5
    assert blocks.put(tier, LONG) == 0
    blocks.settle(tier)
    assert blocks.get(tier, LONG) == NUM_BLOCKS


def test_prefixes_share_their_beginning_and_nothing_else(open_named, blocks):
    tier = open_named()
    other = [*LONG[:18], 1, 2, 3, 4, 5, 6]
    blocks.put(tier, LONG)
    assert blocks.put(tier, other) == 2
    blocks.settle(tier)
    assert blocks.get(tier, LONG) == NUM_BLOCKS
    assert blocks.get(tier, other) == 6
    assert blocks.get(tier, [*other[:20], 7, 7, 7, 7]) == 5
    assert blocks.get(tier, [0, *LONG]) == 0
    assert blocks.get(tier, [0, 0, 0, 0, *LONG[4:]], start=1) == 0


@pytest.mark.parametrize(
    "namespaces",
    [(None, "", b"", "a", b"a"), (CacheNamespace(), CacheNamespace("a"), CacheNamespace("", "a"), "a")],
    ids=["plain", "tenants"],
)
def test_namespaces_see_nothing_of_each_other(open_named, blocks, namespaces):
    tier = open_named()
    for namespace in namespaces:
        assert blocks.get(tier, LONG[:8], namespace) == 0
        assert blocks.put(tier, LONG[:8], namespace) == 2
        blocks.settle(tier)
    for namespace in namespaces:
        assert blocks.get(tier, LONG[:8], namespace) == 2


def test_it_stays_within_its_size_and_gives_up_what_was_used_longest_ago(open_named, blocks):
    tier = open_named(8)
    assert tier.stats.max_held_blocks == 8
    prefixes = [[idx] * 16 for idx in range(3)]
    for prefix in prefixes[:2]:
        blocks.put(tier, prefix)
        blocks.settle(tier)
    assert blocks.get(tier, prefixes[0]) == 4
    blocks.put(tier, prefixes[2][:8])
    blocks.settle(tier)
    assert [blocks.get(tier, prefix) for prefix in prefixes] == [4, 2, 2]
    assert tier.stats.num_held_blocks == 8
    assert tier.stats.num_evicted_blocks == 2


def test_a_prefix_that_is_too_long_is_kept_as_far_as_there_is_room(open_named, blocks):
    tier = open_named(6)
    blocks.put(tier, LONG)
    blocks.settle(tier)
    assert blocks.get(tier, LONG) == 6


def test_clear_forgets_all(open_named, blocks):
    tier = open_named()
    blocks.put(tier, LONG)
    erasure = tier.clear()
    assert tier.stats.num_held_blocks == 0
    erasure.result(timeout=60)
    assert blocks.get(tier, LONG) == 0
    assert blocks.put(tier, LONG[:8]) == 2
    blocks.settle(tier)
    assert blocks.get(tier, LONG) == 2


def test_a_hint_changes_nothing(open_named, blocks):
    tier = open_named()
    tier.prefetch(None, LONG, NUM_BLOCKS)
    blocks.put(tier, LONG)
    tier.prefetch(None, LONG, NUM_BLOCKS)
    blocks.settle(tier)
    tier.prefetch(None, LONG, NUM_BLOCKS)
    assert blocks.get(tier, LONG) == NUM_BLOCKS


def test_close_may_be_called_twice(open_named, blocks):
    tier = open_named()
    blocks.put(tier, LONG)
    tier.close()
    tier.close()


@pytest.mark.parametrize("name", sorted(TIERS))
def test_a_size_that_holds_nothing_is_refused(name, tmp_path):
    size = {"host": "host_cache_memory", "disk": "prefix_cache_dir_size"}[name]
    config = EngineConfig(**OPTIONS[name](tmp_path, 64) | {size: 100})
    with pytest.raises(InvalidConfigError, match=f"{size}=100 is too small: a block of this model takes 96 bytes"):
        TIERS[name](TierSpec(config, cast(Any, Memory()), 4, lambda: b"{}"))


@pytest.mark.parametrize("name", ["a file", "no\0path"])
def test_a_directory_that_cannot_be_used_is_refused(tmp_path, name):
    (tmp_path / "a file").write_text("of somebody")
    config = EngineConfig(prefix_cache_dir=str(tmp_path / name))
    for use in (lambda: check_directory(config), lambda: TIERS["disk"](spec_of(config))):
        with pytest.raises(InvalidConfigError, match=r"prefix_cache_dir='.*' cannot be used: .+; choose another"):
            use()


def test_a_directory_where_another_process_begins_is_gone_on_without(open_tier, blocks, tmp_path, caplog):
    open_tier(tmp_path)
    (index,) = (tmp_path / disk_files.FOLDER).glob("*.index")
    index.unlink()  # as before it is made
    tier = TIERS["disk"](spec_of(EngineConfig(prefix_cache_dir=str(tmp_path))))
    assert tier is not None
    assert "another process begins to store prefixes there; this one keeps none" in caplog.text
    assert (blocks.put(tier, LONG), blocks.get(tier, LONG), tier.stats.max_held_blocks) == (0, 0, 0)
    with pytest.raises(PrefixesKeptError, match="flush the cache of the one that stores them"):
        tier.clear().result(timeout=60)
    tier.close()


def test_a_directory_where_nothing_is_and_nothing_can_be_stored_is_refused(tmp_path, monkeypatch):
    def no_lock(path):
        raise PermissionError(13, "Read-only file system", str(path))

    monkeypatch.setattr(disk_files, "try_lock", no_lock)
    with pytest.raises(InvalidConfigError, match="cannot be used"):
        TIERS["disk"](spec_of(EngineConfig(prefix_cache_dir=str(tmp_path))))


def test_a_store_that_cannot_be_read_is_let_go(tmp_path, monkeypatch, caplog):
    """Or whoever comes next in this process finds it locked."""
    config = EngineConfig(prefix_cache_dir=str(tmp_path))

    def broken(*args):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(DiskStore, "headers", broken)
        with pytest.raises(InvalidConfigError, match="Input/output error"):
            TIERS["disk"](spec_of(config))
    tier = TIERS["disk"](spec_of(config))
    assert tier is not None
    assert not caplog.records
    tier.close()


def test_all_tiers_are_closed_whatever_one_of_them_does():
    closed = []

    class Tier:
        def __init__(self, name):
            self.name = name

        def close(self):
            closed.append(self.name)
            raise RuntimeError(f"{self.name} is gone")

    with pytest.raises(RuntimeError, match="is gone"):
        TieredStorage(cast(Any, Memory()), (cast(Any, Tier("host")), cast(Any, Tier("disk")))).close()
    assert sorted(closed) == ["disk", "host"]


@pytest.mark.parametrize(("device", "lengths"), [("cpu", [10]), ("cuda", [4, 4, 2])])
def test_memory_is_pinned_in_pieces(blocks, monkeypatch, device, lengths):
    """Of which none is larger than what torch would round up to the next power of two."""
    monkeypatch.setattr("ramet.runtime.tiers.host_tier._PINNED_BYTES", 4 * 96)
    taken = []
    empty = torch.empty

    def unpinned(shape, *, dtype, pin_memory):
        taken.append((shape, pin_memory))
        return empty(shape, dtype=dtype)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", unpinned)
        tier = HostTier(10, 4, 96, torch.device(device))
    assert taken == [((length, 96), device == "cuda") for length in lengths]
    tier._device = torch.device("cpu")
    assert blocks.put(tier, LONG) == NUM_BLOCKS
    assert blocks.get(tier, LONG) == NUM_BLOCKS


@pytest.mark.skipif(sys.platform != "linux", reason="other systems may promise it")
def test_more_host_memory_than_there_may_be_is_refused():
    config = EngineConfig(host_cache_memory=1 << 60)
    with pytest.raises(InvalidConfigError, match="does not give that much memory"):
        TIERS["host"](TierSpec(config, cast(Any, LargeMemory()), 4, lambda: b"{}"))


def spec_of(config):
    return TierSpec(config, cast(Any, Memory()), 4, lambda: b"{}")


def test_the_disk_keeps_no_namespace_that_means_something_else_tomorrow(open_tier, blocks, tmp_path):
    tier = open_tier(tmp_path / "store")
    for namespace in (object(), 1, True, 1.0, ("a",), frozenset("a")):
        assert blocks.put(tier, LONG, namespace) == 0
        assert blocks.get(tier, LONG, namespace) == 0
    assert isinstance(tier._store, DiskStore)
