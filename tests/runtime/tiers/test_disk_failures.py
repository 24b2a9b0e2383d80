"""The disk tier when the disk is full, slow or gone, and what is said when all is to be forgotten."""

from __future__ import annotations

import errno
import logging
import threading
from typing import Any

import pytest

from ramet.runtime.errors import PrefixesKeptError
from ramet.runtime.tiers.disk_store import DiskStore

from .test_disk_tier import LONG, NUM_LONG, NUM_OTHER, OTHER, files, filled


def full(*args: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_said_once_and_gone_on_without(open_tier, blocks, tmp_path, monkeypatch, caplog):
    tier = open_tier(tmp_path)
    blocks.put(tier, LONG)
    blocks.settle(tier)
    monkeypatch.setattr("ramet.runtime.tiers.disk_files.os.pwrite", full)
    blocks.put(tier, OTHER)
    blocks.settle(tier)
    assert blocks.put(tier, [2] * 16) == 0
    assert (tier.stats.num_failed_blocks, tier.stats.num_held_blocks) == (NUM_OTHER - 2, NUM_LONG)
    assert tier.stats.num_refused_blocks == 4
    assert blocks.get(tier, LONG) == NUM_LONG
    assert blocks.get(tier, OTHER) == 2
    tier.close()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    monkeypatch.undo()
    assert blocks.get(open_tier(tmp_path), LONG) == NUM_LONG


def test_when_there_is_room_again_what_was_lost_is_stored(open_tier, blocks, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("ramet.runtime.tiers.disk_writer.RETRY_SECONDS", 0.0)
    tier = open_tier(tmp_path)
    blocks.put(tier, LONG[:8])
    blocks.settle(tier)
    with monkeypatch.context() as patch:
        patch.setattr("ramet.runtime.tiers.disk_files.os.pwrite", full)
        for _ in range(3):
            assert blocks.put(tier, LONG) == NUM_LONG - 2
            blocks.settle(tier)
    assert blocks.get(tier, LONG) == 2
    assert blocks.put(tier, LONG) == NUM_LONG - 2
    blocks.settle(tier)
    assert blocks.get(tier, LONG) == NUM_LONG
    blocks.put(tier, OTHER)
    tier.close()
    assert [record.message.partition(": ")[2].partition(",")[0] for record in caplog.records] == [
        "no prefixes are stored",
        "prefixes are stored again",
    ]
    tier = open_tier(tmp_path)
    assert (blocks.get(tier, LONG), blocks.get(tier, [*OTHER])) == (NUM_LONG, 2 + NUM_OTHER - 2)


def test_what_is_to_be_forgotten_is_forgotten_even_if_nothing_can_be_stored(open_tier, blocks, tmp_path, monkeypatch):
    filled(open_tier, blocks, tmp_path)
    tier = open_tier(tmp_path)
    monkeypatch.setattr("ramet.runtime.tiers.disk_files.os.pwrite", full)
    blocks.put(tier, [1] * 16)
    blocks.settle(tier)
    blocks.put(tier, [2] * 16)
    tier.clear().result(timeout=60)
    tier.close()
    assert not files(tmp_path)[".blocks"].read_bytes().strip(b"\0")
    assert open_tier(tmp_path).stats.num_held_blocks == 0


def test_what_waits_to_be_stored_when_all_is_forgotten_is_not_stored(open_tier, blocks, tmp_path, monkeypatch):
    tier, write, may_go_on = open_tier(tmp_path), DiskStore.write, threading.Event()

    def slow(*args: Any) -> None:
        assert may_go_on.wait(60)
        write(*args)

    monkeypatch.setattr(DiskStore, "write", slow)
    blocks.put(tier, LONG)
    blocks.put(tier, OTHER)
    erasure = tier.clear()
    assert not erasure.done()
    may_go_on.set()
    erasure.result(timeout=60)
    blocks.put(tier, [1] * 16)
    blocks.settle(tier)
    tier.close()
    tier = open_tier(tmp_path)
    assert (blocks.get(tier, [1] * 16), tier.stats.num_held_blocks) == (4, 4)


def test_who_only_reads_cannot_erase_and_says_so(open_tier, blocks, tmp_path):
    filled(open_tier, blocks, tmp_path)
    writer, reader = open_tier(tmp_path), open_tier(tmp_path)
    with pytest.raises(PrefixesKeptError, match="stay, for this process only reads them: flush the cache of the one"):
        reader.clear().result(timeout=60)
    assert blocks.get(reader, LONG) == 0
    assert blocks.get(writer, LONG) == NUM_LONG


def test_a_disk_that_erases_nothing_is_said_to_keep_it(open_tier, blocks, tmp_path, monkeypatch):
    filled(open_tier, blocks, tmp_path)
    tier = open_tier(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("ramet.runtime.tiers.disk_store.os.ftruncate", full)
        with pytest.raises(PrefixesKeptError, match=r"not all erased: .*No space left on device; try again"):
            tier.clear().result(timeout=60)
    assert blocks.get(tier, LONG) == 0
    tier.clear().result(timeout=60)
    tier.close()
    assert open_tier(tmp_path).stats.num_held_blocks == 0


@pytest.mark.parametrize("suffix", [".lock", ".index"])
def test_files_that_another_process_has_made_anew_are_said_to_stay(open_tier, blocks, tmp_path, suffix):
    first = open_tier(tmp_path)
    blocks.put(first, LONG)
    blocks.settle(first)
    for kind in {".lock", suffix}:
        files(tmp_path)[kind].unlink()
    second = open_tier(tmp_path)
    blocks.put(second, OTHER)
    with pytest.raises(PrefixesKeptError, match=r"\.lock was deleted, and another process has made it anew"):
        first.clear().result(timeout=60)


def test_a_device_that_gives_no_blocks_is_gone_on_without(open_tier, blocks, tmp_path, monkeypatch, caplog):
    tier = open_tier(tmp_path)
    blocks.put(tier, LONG)
    blocks.settle(tier)

    def rows(self: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr("ramet.runtime.tiers.host_copy.HostCopy.rows", rows)
    blocks.put(tier, OTHER)
    blocks.put(tier, [1] * 16)
    blocks.settle(tier)
    assert blocks.put(tier, [2] * 16) == 0
    assert blocks.get(tier, LONG) == NUM_LONG
    tier.close()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
