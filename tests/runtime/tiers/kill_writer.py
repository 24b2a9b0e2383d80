"""Run by a test: starts writers of a store, and kills each with -9 after a while.

Reads lines "SEED SECONDS" and answers each with how many prefixes the writer had offered. It forks: to import anew for
each death takes seconds.
"""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import sys
import time
from pathlib import Path
from types import ModuleType

from ramet.runtime.tiers import disk_files
from ramet.runtime.tiers.disk_format import header_bytes
from ramet.runtime.tiers.disk_store import DiskStore
from ramet.runtime.tiers.disk_tier import DiskTier


def write(helpers: ModuleType, path: Path, seed: int, reports: int) -> None:
    """For ever: offer prefixes, a byte into the pipe `reports` for each, and one for having opened the store."""
    folder = disk_files.open_directory(path)
    num_bytes = 64 * (4096 + header_bytes(helpers.BLOCK_SIZE))
    store = DiskStore(folder, b"{}", helpers.BLOCK_SIZE, helpers.BYTES_PER_BLOCK, num_bytes)
    tier = DiskTier(store, helpers.BLOCK_SIZE)
    os.write(reports, b".")
    rng = random.Random(seed)
    while True:
        token_ids = [rng.randrange(3) for _ in range(rng.randrange(4, 60))]
        helpers.put(tier, token_ids)
        helpers.get(tier, token_ids)
        os.write(reports, b".")


def write_and_die(helpers: ModuleType, path: Path, seed: int, seconds: float) -> int:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            write(helpers, path, seed, writing)
        finally:
            os._exit(1)
    os.close(writing)
    num_reports = len(os.read(reading, 1))
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status), "the writer ended by itself"
    with os.fdopen(reading, "rb") as reports:
        return num_reports + len(reports.read())


def main(path: Path) -> None:
    spec = importlib.util.spec_from_file_location("helpers", Path(__file__).with_name("conftest.py"))
    assert spec is not None
    assert spec.loader is not None
    helpers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(helpers)
    for line in sys.stdin:
        seed, seconds = line.split()
        print(write_and_die(helpers, path, int(seed), float(seconds)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
