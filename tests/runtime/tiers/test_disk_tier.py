"""The disk tier over restarts, other processes, damage, and a system that refuses."""

from __future__ import annotations

import fcntl
import os
import random
import stat
from pathlib import Path

import pytest

from ramet.runtime.tiers import disk_files, disk_format
from ramet.runtime.tiers.disk_format import SlotHeader, namespace_digest

LONG = list(range(100, 140))
OTHER = [*LONG[:8], *range(40)]
NUM_LONG, NUM_OTHER = 10, 12


def filled(open_tier, blocks, path: Path, **options):
    """A closed store with two prefixes, of 20 different blocks."""
    tier = open_tier(path, **options)
    blocks.put(tier, LONG)
    blocks.put(tier, OTHER, None)
    blocks.settle(tier)
    tier.close()


def files(path: Path) -> dict[str, Path]:
    return {file.suffix: file for file in (path / disk_files.FOLDER).iterdir()}


def test_a_restart_finds_what_was_there(open_tier, blocks, tmp_path):
    filled(open_tier, blocks, tmp_path)
    tier = open_tier(tmp_path)
    assert tier.stats.num_held_blocks == 20
    assert blocks.put(tier, LONG) == 0
    assert blocks.get(tier, LONG) == NUM_LONG
    assert blocks.get(tier, OTHER) == NUM_OTHER
    assert blocks.put(tier, [*OTHER, 1, 2, 3, 4]) == 1
    blocks.settle(tier)
    tier.close()
    assert blocks.get(open_tier(tmp_path), [*OTHER, 1, 2, 3, 4]) == NUM_OTHER + 1


def test_what_was_used_last_before_a_restart_stays_longest_after_it(open_tier, blocks, tmp_path, monkeypatch):
    clock = iter(range(1000, 2000))
    monkeypatch.setattr("ramet.runtime.tiers.disk_writer.time.time", lambda: next(clock))
    tier = open_tier(tmp_path, num_slots=12)
    prefixes = [[idx] * 16 for idx in range(4)]
    for prefix in prefixes[:3]:
        blocks.put(tier, prefix)
        blocks.settle(tier)
    assert blocks.get(tier, prefixes[0]) == 4
    tier.close()
    tier = open_tier(tmp_path, num_slots=12)
    blocks.put(tier, prefixes[3])
    blocks.settle(tier)
    assert [blocks.get(tier, prefix) for prefix in prefixes] == [4, 0, 4, 4]


@pytest.mark.parametrize("num_slots", [0, 5, 12])
def test_a_smaller_size_keeps_what_fits(open_tier, blocks, tmp_path, num_slots):
    filled(open_tier, blocks, tmp_path)
    tier = open_tier(tmp_path, num_slots=num_slots)
    assert tier.stats.num_held_blocks <= num_slots
    assert blocks.get(tier, LONG) == min(NUM_LONG, num_slots)
    assert blocks.get(tier, OTHER) <= num_slots
    tier.close()
    assert sum(file.stat().st_size for file in files(tmp_path).values()) <= 4096 + num_slots * blocks.bytes_per_slot


def test_stores_of_other_models_make_room_the_oldest_first(open_tier, blocks, tmp_path):
    for idx, model in enumerate((b"one", b"two", b"three")):
        tier = open_tier(tmp_path, identity=model)
        blocks.put(tier, LONG)
        tier.close()
        for file in (tmp_path / disk_files.FOLDER).glob(f"{disk_format.store_name(model)}.*"):
            os.utime(file, (1000 + idx, 1000 + idx))
    for model, num_slots, num_found in ((b"two", 64, 10), (b"four", 30, 0), (b"two", 64, 10), (b"three", 64, 0)):
        tier = open_tier(tmp_path, identity=model, num_slots=num_slots)
        assert blocks.get(tier, LONG) == num_found
        tier.close()


def test_a_store_in_use_is_not_deleted(open_tier, blocks, tmp_path, caplog):
    tier = open_tier(tmp_path, identity=b"one")
    blocks.put(tier, LONG)
    blocks.settle(tier)
    other = open_tier(tmp_path, identity=b"two", num_slots=12)
    assert other.stats.max_held_blocks < 3
    assert open_tier(tmp_path, identity=b"three", num_slots=5).stats.max_held_blocks == 0
    assert "stores that are in use leave no room" in caplog.text
    assert blocks.get(tier, LONG) == NUM_LONG


def test_whoever_is_about_to_lock_a_store_that_is_deleted_is_not_a_second_writer(open_tier, blocks, tmp_path):
    """As a process that starts while another one makes room."""
    filled(open_tier, blocks, tmp_path, identity=b"one")
    lock = os.open(files(tmp_path)[".lock"], os.O_RDWR)
    open_tier(tmp_path, identity=b"two", num_slots=12).close()
    assert not list((tmp_path / disk_files.FOLDER).glob(f"{disk_format.store_name(b'one')}.blocks"))
    writer = open_tier(tmp_path, identity=b"one")
    assert blocks.put(writer, LONG) == NUM_LONG
    with pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(lock)


def test_a_second_process_reads_and_does_not_write(open_tier, blocks, tmp_path, caplog):
    filled(open_tier, blocks, tmp_path)
    writer, reader = open_tier(tmp_path), open_tier(tmp_path)
    assert "this one only reads them" in caplog.text
    assert blocks.get(reader, LONG) == NUM_LONG
    assert blocks.put(reader, [1] * 16) == 0
    assert blocks.put(writer, [1] * 16) == 4
    blocks.settle(writer)
    assert blocks.get(reader, [1] * 16) == 0
    writer.close()
    reader.close()
    assert blocks.get(open_tier(tmp_path), [1] * 16) == 4


def test_a_reader_does_not_believe_what_the_writer_has_replaced(open_tier, blocks, tmp_path, caplog):
    filled(open_tier, blocks, tmp_path, num_slots=20)
    writer, reader = open_tier(tmp_path, num_slots=20), open_tier(tmp_path, num_slots=20)
    caplog.clear()
    for idx in range(5):
        blocks.put(writer, [idx] * 16)
    blocks.settle(writer)
    assert blocks.get(reader, LONG) + blocks.get(reader, OTHER) < NUM_LONG + NUM_OTHER
    writer.clear()
    writer.close()
    assert blocks.get(reader, OTHER) < NUM_OTHER
    assert reader.stats.num_damaged_blocks == 0
    assert not caplog.records


def test_a_lock_that_is_deleted_while_it_is_taken_is_taken_again(tmp_path, monkeypatch):
    folder = disk_files.open_directory(tmp_path)
    path, open_file = folder / "name.lock", disk_files.open_file

    def deleted_meanwhile(path: Path, *, can_write: bool) -> int:
        monkeypatch.undo()
        descriptor = open_file(path, can_write=can_write)
        path.unlink()
        return descriptor

    monkeypatch.setattr(disk_files, "open_file", deleted_meanwhile)
    lock = disk_files.try_lock(path)
    assert lock is not None
    assert disk_files.try_lock(path) is None
    os.close(lock)


def test_two_writers_of_one_store_believe_nothing_wrong(open_tier, blocks, tmp_path):
    """As when the lock's file is deleted. Their blocks lie over each other's, and `get` compares all that is loaded."""
    one = open_tier(tmp_path)
    files(tmp_path)[".lock"].unlink()
    other = open_tier(tmp_path)
    blocks.put(one, [*[1] * 16, *LONG])
    blocks.settle(one)
    blocks.put(other, [2] * 16)
    blocks.settle(other)
    one.close()
    other.close()
    tier = open_tier(tmp_path)
    assert blocks.get(tier, [*[2] * 16, *LONG]) == 4
    assert blocks.get(tier, [*[1] * 16, *LONG]) == 0


def flipped(file: Path, place: int, mask: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(place)
        byte = opened.read(1)[0]
        opened.seek(place)
        opened.write(bytes([byte ^ mask]))


@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
@pytest.mark.parametrize("suffix", [".index", ".blocks"])
def test_no_flipped_byte_is_believed(open_tier, blocks, tmp_path, suffix, is_open):
    """250 each way. `get` compares all that is loaded; the worst is a miss."""
    rng = random.Random(suffix)
    filled(open_tier, blocks, tmp_path, num_slots=24)
    file = files(tmp_path)[suffix]
    whole = file.read_bytes()
    num_misses = 0
    for _ in range(250):
        tier = open_tier(tmp_path, num_slots=24) if is_open else None
        places = [rng.randrange(len(whole))]
        if suffix == ".blocks":  # most of a page is padding
            places = [rng.randrange(24) * 4096 + rng.randrange(96)]
        for place in places:
            flipped(file, place, 1 << rng.randrange(8))
        tier = tier or open_tier(tmp_path, num_slots=24)
        found = blocks.get(tier, LONG) + blocks.get(tier, OTHER)
        assert found <= NUM_LONG + NUM_OTHER
        num_misses += found < NUM_LONG + NUM_OTHER
        if suffix == ".blocks" and found < NUM_LONG + NUM_OTHER:
            assert tier.stats.num_damaged_blocks > 0
        blocks.put(tier, LONG)
        blocks.put(tier, OTHER)
        blocks.settle(tier)
        assert blocks.get(tier, LONG) + blocks.get(tier, OTHER) == NUM_LONG + NUM_OTHER
        tier.close()
        repaired = files(tmp_path)
        assert set(repaired) == {".index", ".blocks", ".lock"}
        whole = file.read_bytes()
    assert num_misses > 50 or (suffix == ".index" and is_open)


@pytest.mark.parametrize("suffix", [".index", ".blocks"])
@pytest.mark.parametrize("length", [0, 1, 4096, 4300, 9000])
@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
def test_a_file_cut_short_is_at_worst_a_miss(open_tier, blocks, tmp_path, suffix, length, is_open):
    filled(open_tier, blocks, tmp_path)
    tier = open_tier(tmp_path) if is_open else None
    os.truncate(files(tmp_path)[suffix], length)
    tier = tier or open_tier(tmp_path)
    assert blocks.get(tier, LONG) <= NUM_LONG
    assert blocks.get(tier, OTHER) <= NUM_OTHER


def test_rubbish_for_files_is_dropped_with_a_warning(open_tier, blocks, tmp_path, caplog):
    filled(open_tier, blocks, tmp_path)
    rng = random.Random(0)
    for suffix in (".index", ".blocks"):
        files(tmp_path)[suffix].write_bytes(rng.randbytes(20_000))
    tier = open_tier(tmp_path)
    assert "is damaged, or of another version: the prefixes stored there are dropped" in caplog.text
    assert tier.stats.num_held_blocks == 0
    assert blocks.put(tier, LONG) == NUM_LONG


def test_a_store_of_another_version_is_dropped(open_tier, blocks, tmp_path, caplog):
    filled(open_tier, blocks, tmp_path)
    flipped(files(tmp_path)[".index"], disk_format.MAGIC.index(b"2"), 3)
    assert open_tier(tmp_path).stats.num_held_blocks == 0
    assert "or of another version" in caplog.text


def test_a_block_without_its_parent_is_not_found_again(open_tier, blocks, tmp_path):
    """Not even when later blocks get the slot or the place of the parent."""
    filled(open_tier, blocks, tmp_path)
    tier = open_tier(tmp_path)
    slot = tier._path(None, LONG, 10)[4].slot
    tier.close()
    index = files(tmp_path)[".index"]
    flipped(index, len(disk_format.pack_first_pages(b"{}")) + slot * disk_format.header_bytes(4) + 50, 1)
    tier = open_tier(tmp_path)
    assert blocks.get(tier, LONG) == 4
    assert tier.stats.num_held_blocks == 14
    blocks.put(tier, [5] * 40)
    blocks.settle(tier)
    tier.close()
    tier = open_tier(tmp_path)
    assert blocks.get(tier, LONG) == 4
    assert blocks.get(tier, [5] * 40) == 10


def test_what_could_not_be_copied_is_wanted_again(open_tier, blocks, tmp_path, monkeypatch):
    tier = open_tier(tmp_path)

    def copy(given: object) -> None:
        raise RuntimeError("no pinned memory")

    with monkeypatch.context() as patch:
        patch.setattr("ramet.runtime.tiers.disk_tier.HostCopy", copy)
        with pytest.raises(RuntimeError, match="no pinned memory"):
            blocks.put(tier, LONG)
    assert blocks.put(tier, LONG) == NUM_LONG
    blocks.settle(tier)
    assert blocks.get(tier, LONG) == NUM_LONG


def test_an_index_of_many_slots_is_read_to_its_end(open_tier, blocks, tmp_path, monkeypatch):
    monkeypatch.setattr("ramet.runtime.tiers.disk_store._HEADERS_AT_ONCE", 7)
    filled(open_tier, blocks, tmp_path)
    assert open_tier(tmp_path).stats.num_held_blocks == 20


def test_when_the_disk_is_behind_blocks_are_refused(open_tier, blocks, tmp_path, monkeypatch):
    monkeypatch.setattr("ramet.runtime.tiers.disk_writer.MAX_QUEUED_BYTES", 3 * 96)
    tier = open_tier(tmp_path)
    assert blocks.put(tier, LONG) == 3
    assert tier.stats.num_refused_blocks == 7
    blocks.settle(tier)
    while tier._writer.room_bytes < 96:
        pass
    assert 0 < blocks.put(tier, LONG) <= 3
    blocks.settle(tier)
    assert blocks.get(tier, LONG) > 3


def test_files_are_their_users_alone_and_say_no_namespace(open_tier, blocks, tmp_path):
    tier = open_tier(tmp_path / "some" / "where")
    blocks.put(tier, LONG, "the name of a tenant")
    blocks.settle(tier)
    tier.close()
    folder = tmp_path / "some" / "where" / disk_files.FOLDER
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for file in folder.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert b"tenant" not in file.read_bytes()


def test_a_folder_that_others_may_write_to_is_not_trusted(open_tier, tmp_path):
    (tmp_path / disk_files.FOLDER).mkdir()
    (tmp_path / disk_files.FOLDER).chmod(0o777)
    with pytest.raises(PermissionError, match="others may write"):
        open_tier(tmp_path)


def test_links_are_not_followed(open_tier, blocks, tmp_path):
    filled(open_tier, blocks, tmp_path)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    index = files(tmp_path)[".index"]
    index.unlink()
    index.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        open_tier(tmp_path)
    assert victim.read_text() == "precious"


def test_headers_are_read_back_or_not_at_all():
    namespace = namespace_digest("a")
    assert namespace is not None
    header = SlotHeader(b"p" * 32, namespace, b"d" * 32, b"tokens, 4 of 4 b", 12345)
    packed = header.pack()
    assert len(packed) == disk_format.header_bytes(4)
    assert SlotHeader.unpack(packed) == header
    assert SlotHeader.unpack(disk_format.void_header(4)) is None
    for place in range(4, len(packed)):
        damaged = bytearray(packed)
        damaged[place] ^= 1
        assert SlotHeader.unpack(bytes(damaged)) is None
