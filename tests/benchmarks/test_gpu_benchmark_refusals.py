"""What `python benchmarks/gpu.py` says, and its exit status, where it cannot run here, or as asked, or is stopped."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
has_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton runs on Linux only")

HIDDEN = """
import importlib.machinery, runpy, sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {hidden!r}:
            return None
        return importlib.machinery.PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Without()
sys.argv = ["gpu.py", *{arguments!r}]
sys.path.insert(0, "")  # the script puts the root in its place
runpy.run_path({script!r}, run_name="__main__")
"""


def run_without(hidden: tuple[str, ...], *arguments: str, python: tuple[str, ...] = ()) -> tuple[int, list[str]]:
    """Exit status and lines of the command where these packages are not installed; nothing may go to stderr."""
    script = HIDDEN.format(hidden=hidden, arguments=arguments, script=str(ROOT / "benchmarks/gpu.py"))
    command = [sys.executable, *python, "-c", script]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stderr == ""
    return ended.returncode, ended.stdout.splitlines()


@has_triton
@pytest.mark.parametrize("mode", [("--tiny",), ("--minutes", "8"), ("--device-check",)])
@pytest.mark.parametrize("hidden", [("triton",), ("torch", "transformers"), ("tqdm",)])
def test_a_package_that_is_missing_is_one_line(hidden: tuple[str, ...], mode: tuple[str, ...]) -> None:
    status, lines = run_without(hidden, *mode)
    verb = "is" if len(hidden) == 1 else "are"
    assert status == 2
    assert lines[-1] == f"error: {', '.join(hidden)} {verb} not installed: run pip install {' '.join(hidden)}"
    assert len(lines) == (2 if mode == ("--device-check",) else 1)


def test_the_device_check_needs_the_standard_library_alone() -> None:
    """-I -S: no packages at all."""
    status, lines = run_without((), "--device-check", python=("-I", "-S"))
    assert status == 2
    assert lines[0] == "torch missing, triton missing, transformers missing"
    assert lines[-1].startswith("error: torch, triton, transformers, ")


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    from benchmarks.gpu.__main__ import main

    assert main(["--tiny", *arguments]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    return line


@pytest.fixture(autouse=True)
def _keep_num_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda num_threads: None)


@has_triton
@pytest.mark.parametrize("minutes", ["0", "-3", "nan", "inf", "1e300", "0.05"])
def test_minutes_that_no_run_can_have(minutes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(capsys, f"--minutes={minutes}", "--parts", "device", "--out", str(tmp_path / "out"))
    assert line == (
        f"error: --minutes {float(minutes):g} must be a number from 0.067 to 1440, for the part is given 4 s at least"
    )
    assert "each of the 9 parts" in refusal(capsys, f"--minutes={minutes}", "--out", str(tmp_path / "out"))
    assert not list(tmp_path.iterdir())


@has_triton
def test_a_folder_that_cannot_be_written_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("here already", encoding="utf-8")
    for out in ("file", "file/below"):
        line = refusal(capsys, "--out", str(tmp_path / out))
        assert line.startswith(f"error: --out {tmp_path / out} cannot be written to: ")
    (tmp_path / "out" / "gpu.md").mkdir(parents=True)
    assert "gpu.md is a folder" in refusal(capsys, "--out", str(tmp_path / "out"))


@has_triton
def test_parts_are_named_once_or_twice_and_unknown_ones_all_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.gpu.__main__ import main

    out = tmp_path / "out"
    line = refusal(capsys, "--parts", "decoding", "device", "--parts", "speed", "--out", str(out))
    assert line.startswith("error: no part is called 'decoding' or 'speed'; there are device, ceilings")
    assert main(["--tiny", "--parts", "device", "--parts", "device", "ceilings", "--out", str(out)]) == 0
    results = json.loads((out / "gpu.json").read_text(encoding="utf-8"))
    assert [part["name"] for part in results["parts"]] == ["device", "ceilings"]
    assert results["command"] == "python benchmarks/gpu.py --tiny --parts device ceilings"


@has_triton
def test_a_run_that_measured_nothing_is_not_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.gpu import run
    from benchmarks.gpu.__main__ import main

    monkeypatch.setattr(run, "MIN_PART_S", 1e9)  # more than any part has: as if time had run out
    assert main(["--tiny", "--parts", "device", "ceilings", "--out", str(tmp_path)]) == 1
    assert "\nNothing was measured by device, ceilings.\n" in capsys.readouterr().out
    assert "**Nothing was measured by device, ceilings.**" in (tmp_path / "gpu.md").read_text(encoding="utf-8")


@has_triton
def test_ctrl_c_leaves_the_results_so_far(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks/gpu.py"), "--tiny", "--out", str(tmp_path)]
    command += ["--parts", "device", "correctness"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Correctness"):
                break
        os.kill(process.pid, signal.SIGINT)
        output, complaints = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"interrupted; {tmp_path / 'gpu.json'} and " in output
    assert "Traceback" not in complaints
    device, correctness = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))["parts"]
    assert device["rows"]
    assert [failure["error"] for failure in correctness["failures"]] == ["interrupted by Ctrl-C"]
    assert "correctness failed:** `interrupted by Ctrl-C`" in (tmp_path / "gpu.md").read_text(encoding="utf-8")
