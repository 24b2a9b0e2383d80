"""No rank outlives the process that started it, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import sys, time
from ramet.runtime.config import EngineConfig
from ramet.runtime.runner_factory import build_runner
from ramet.runtime.runner_spec import RunnerSpec
from ramet.runtime.weights.resolve import resolve_model

config = EngineConfig(num_blocks=8, tensor_parallel_size=2)
spec = RunnerSpec(checkpoint=resolve_model(sys.argv[1]), config=config, device="cpu", num_threads=2)
loaded = build_runner(("torch",), spec)
print(*[worker.process.pid for worker in loaded.runner.pool._workers], flush=True)
"""
ENDS = {
    "killed": "time.sleep(60)",
    "interrupted": "time.sleep(60)",
    "by itself": "",
    "by an error": "raise SystemExit(3)",
    "killed within a step": """
from ramet.runtime.batch import Batch, FlatBatch
from ramet.runtime.parallel.channel import Kind
from ramet.runtime.parallel.messages import pack_id, pack_step

flat = FlatBatch(Batch())
flat.token_ids, flat.positions, flat.logit_rows = [1], [0], [0]
flat.query_starts, flat.block_tables, flat.context_lens = [0, 1], [[0]], [1]
loaded.runner.pool.send(Kind.STEP, pack_step(0, flat, []))
loaded.runner.pool.send(Kind.RUN, pack_id(0))  # and rank 1 waits for this one
time.sleep(60)
""",
}


def is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    "end", ["killed", *(pytest.param(end, marks=pytest.mark.slow) for end in ENDS if end != "killed")]
)
def test_ranks_end_with_their_parent(end: str, make_tiny_model: Callable[..., Any], tmp_path: Path) -> None:
    make_tiny_model(seed=3).save(tmp_path)
    command = [sys.executable, "-c", PROGRAM + ENDS[end], str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, text=True) as parent:
        assert parent.stdout is not None
        (worker_id,) = map(int, parent.stdout.readline().split())
        assert is_running(worker_id) or not end.startswith(("killed", "interrupted"))
        if end == "killed within a step":
            time.sleep(0.5)
        if end not in {"by itself", "by an error"}:
            # To the whole group, as a terminal does.
            os.killpg(parent.pid, signal.SIGINT if end == "interrupted" else signal.SIGKILL)
        parent.wait(30)
    deadline = time.monotonic() + 20
    while is_running(worker_id):
        assert time.monotonic() < deadline
        time.sleep(0.05)
