"""The GPU benchmark without a GPU: the whole command under Triton's interpreter, in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton runs on Linux only")

ROOT = Path(__file__).resolve().parents[2]
QUICK_PARTS = ["device", "ceilings", "decode", "extend", "elementwise", "host_gap"]


def run_tiny(folder: Path, *parts: str) -> dict[str, Any]:
    """The JSON of `python benchmarks/gpu.py --tiny`, started from elsewhere."""
    command = [sys.executable, str(ROOT / "benchmarks/gpu.py"), "--tiny", "--out", str(folder)]
    command += ["--parts", *parts] if parts else []
    ended = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=280, check=False)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    results: dict[str, Any] = json.loads((folder / "gpu.json").read_text(encoding="utf-8"))
    return results


def numbers_in(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for entry in value.values() for number in numbers_in(entry)]
    if isinstance(value, list):
        return [number for entry in value for number in numbers_in(entry)]
    return [value] if isinstance(value, int | float) else []


def assert_sound(results: dict[str, Any], names: list[str]) -> None:
    """Every part ran, nothing failed or is wrong, and every number is finite (others would be text in the JSON)."""
    assert results["is_tiny"]
    assert not results["timings_mean_something"]
    assert [part["name"] for part in results["parts"]] == names
    for part in results["parts"]:
        assert (part["failures"], part["skipped"], part["num_wrong"]) == ([], None, 0)
        assert part["rows"]
        assert all(math.isfinite(number) for number in numbers_in(part["rows"]))
        texts = {str(value) for row in part["rows"] for value in row.values()}
        assert not texts & {"nan", "inf", "-inf"}


def test_the_quick_parts_run_with_their_baselines(tmp_path: Path) -> None:
    results = run_tiny(tmp_path, *QUICK_PARTS)
    assert_sound(results, QUICK_PARTS)
    rows = {part["name"]: part["rows"] for part in results["parts"]}
    assert {row["op"] for row in rows["elementwise"]} >= {"add_rms_norm", "rotary_store", "argmax"}
    assert all(row["sdpa_ms"] > 0 for row in [*rows["decode"], *rows["extend"]])
    assert rows["decode"][0]["flex_ms"] > 0
    assert rows["host_gap"][0]["busy_ms"] > 0
    report = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert "Timings mean nothing" in report
    assert "TB/s" not in report
    assert "| rms_norm |" in report


@pytest.mark.slow
def test_the_whole_runs(tmp_path: Path) -> None:
    from benchmarks.gpu.end_to_end import ENGINES

    results = run_tiny(tmp_path)
    names = ["device", "ceilings", "correctness", "decode", "shared_prefix", "extend", "elementwise", "host_gap"]
    assert_sound(results, [*names, "end_to_end"])
    rows = results["parts"][-1]["rows"]
    assert {row["engine"] for row in rows} == set(ENGINES)
    assert len(rows) == 5 * len(ENGINES)
    assert all(row["agreement"] == 1.0 for row in rows if row["engine"].startswith("ramet"))
    checks = {row["check"] for row in results["parts"][2]["rows"]}
    for word in ("stored keys", "a second time", "alone", "int8", "float8", "window", "chi-square", "captured twice"):
        assert any(word in check for check in checks), word


@pytest.mark.parametrize("option", ["--device-check", "--minutes=8"])
def test_without_a_device_the_command_says_what_to_run_where(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also on a machine with a device: it is hidden."""
    from benchmarks.gpu.__main__ import main

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([option, "--out", str(tmp_path / "out")]) == 2
    assert "PYTHONPATH=. python benchmarks/gpu.py --minutes 8 --out DIR" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_an_unknown_part_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.gpu.__main__ import main

    monkeypatch.setattr(torch, "set_num_threads", lambda num_threads: None)
    assert main(["--tiny", "--parts", "decoding", "--out", str(tmp_path / "out")]) == 2
    assert "no part is called 'decoding'; there are device, ceilings" in capsys.readouterr().out


WITHOUT_PACKAGES = """
import importlib.machinery, importlib.util, os, sys
sys.path.insert(0, {root!r})
os.environ["TRITON_INTERPRET"] = "1"
from benchmarks.gpu.packages import UNCALLED, missing_packages, stand_ins

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in UNCALLED:
            return None
        return importlib.machinery.PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Without()
assert missing_packages() == list(UNCALLED)
with stand_ins():
    assert missing_packages() == []
    from benchmarks.gpu.engine_session import EngineSession
    from benchmarks.gpu.run import make_bench
assert missing_packages() == list(UNCALLED)
import torch
bench = make_bench(torch.device("cpu"), is_tiny=True)
session = EngineSession(bench.models.load("tiny"), bench.models.config("tiny"))
(reply,) = session.generate([[5, 6, 7]], 2)
session.close()
print(len(reply))
"""


def test_packages_that_are_not_called_may_be_missing() -> None:
    script = WITHOUT_PACKAGES.format(root=str(ROOT))
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert ended.stdout == "2\n", ended.stderr
