"""Runs parts within a time, and writes down what came of them after each."""

from __future__ import annotations

import datetime
import gc
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from .bench import Bench
from .models import ModelStore
from .parts import Part
from .report import render
from .results import Deadline, PartResult, Record, save_json
from .settings import FULL, TINY
from .timing import Timer

JSON_NAME, TABLE_NAME = "gpu.json", "gpu.md"
MIN_PART_S = 3.0
"""A part that would have less is skipped."""

GIVEN_PART_S = 4.0
"""What each part is given at least, however small its weight."""

MAX_MINUTES = 24 * 60
GRACE_S = 30.0


def make_bench(device: torch.device, *, is_tiny: bool) -> Bench:
    settings = TINY if is_tiny else FULL
    dtype = torch.bfloat16
    timer = Timer(device, rep_ms=5.0 if is_tiny else 60.0)
    return Bench(device, dtype, settings, timer, ModelStore(device, dtype, settings))


def run_parts(
    bench: Bench,
    parts: Sequence[Part],
    deadline: Deadline,
    folder: Path,
    header: dict[str, Any],
    results: list[PartResult],
) -> None:
    """Run them in order. The JSON and the table in `folder` have, after each, all results so far.

    Mutates `results`: a part's result is appended before it runs, and then grows. Ctrl-C goes through; the part that it
    ends is written down as a failure."""
    for idx, part in enumerate(parts):
        weight = part.weight / sum(later.weight for later in parts[idx:])
        results.append(PartResult(part.name))
        try:
            _run_part(bench, part, deadline.earlier(max(deadline.left * weight, GIVEN_PART_S)), results[-1])
        except KeyboardInterrupt:
            interrupted = {"case": part.name, "error": "interrupted by Ctrl-C", "traceback": ""}
            results[-1].failures.append(interrupted)
            raise
        finally:
            write_results(folder, header, results)


def write_results(folder: Path, header: dict[str, Any], results: Sequence[PartResult]) -> None:
    save_json(folder / JSON_NAME, header, results)
    (folder / TABLE_NAME).write_text(render(header, results), encoding="utf-8")


def why_not_minutes(minutes: float, num_parts: int) -> str | None:
    """Why a run of so many parts cannot have this time, and what it can have; None if it can."""
    least = GIVEN_PART_S * num_parts / 60
    if least <= minutes <= MAX_MINUTES:  # not so for nan
        return None
    parts = "the part" if num_parts == 1 else f"each of the {num_parts} parts"
    fewer = "" if num_parts == 1 else ", or choose fewer with --parts"
    return (
        f"--minutes {minutes:g} must be a number from {least:.2g} to {MAX_MINUTES}, for {parts} is given "
        f"{GIVEN_PART_S:g} s at least{fewer}"
    )


def why_not_written(folder: Path) -> str | None:
    """Why results cannot be written to the folder; None if they can. Makes the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        for path in (folder / JSON_NAME, folder / TABLE_NAME):
            if path.is_dir():
                return f"--out {folder}: {path} is a folder; name another one"
    except OSError as error:
        return f"--out {folder} cannot be written to: {error.strerror or error}; name another folder"
    return None


def _run_part(bench: Bench, part: Part, deadline: Deadline, result: PartResult) -> None:
    if deadline.left < MIN_PART_S:
        result.skipped = "Skipped: no time was left."
        return
    record = Record(result, deadline)
    start, compiled = time.monotonic(), bench.timer.compile_seconds
    print(f"{part.title}: {deadline.left:.0f} s at most", flush=True)
    with record.guard(part.name):
        part.run(bench, record)
    gc.collect()
    bench.free_memory()
    result.seconds = time.monotonic() - start
    result.compile_seconds = bench.timer.compile_seconds - compiled
    for failure in result.failures:
        print(f"  {failure['case']} failed: {failure['error']}", flush=True)
    print(f"  {result.seconds:.1f} s, {len(result.rows)} rows, {len(result.failures)} failures", flush=True)


def make_header(bench: Bench, command: str, minutes: float) -> dict[str, Any]:
    device = torch.cuda.get_device_name(bench.device) if bench.is_cuda else "no GPU, Triton's interpreter"
    return {
        "is_tiny": bench.settings.is_tiny,
        "timings_mean_something": bench.is_cuda and not bench.settings.is_tiny,
        "command": command,
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "device": device,
        "minutes": minutes,
    }


def end_process_after(seconds: float, write: Callable[[], None]) -> None:
    """End this process when it hangs, after `write`. The timer dies with the process."""

    def end() -> None:
        print(f"ended: not done {GRACE_S:.0f} s after its time; the results so far are written", flush=True)
        try:
            write()
        finally:
            os._exit(3)

    timer = threading.Timer(seconds + GRACE_S, end)
    timer.daemon = True
    timer.start()
