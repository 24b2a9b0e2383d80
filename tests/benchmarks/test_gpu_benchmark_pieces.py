"""What the GPU benchmark reckons with: time, targets, spans, shares of a distribution, break-even, weights."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton runs on Linux only", allow_module_level=True)

from benchmarks.gpu.baselines import flex_calls, sdpa_calls
from benchmarks.gpu.break_even import SharingTrial, advice, break_even, shortest_that_pays
from benchmarks.gpu.checks import Check, Finding, close_to, poisoned_memory, run_checks, same_bits
from benchmarks.gpu.end_to_end import compare, fewer_requests
from benchmarks.gpu.engine_session import EngineSession, TimeIsUpError
from benchmarks.gpu.host_gap import busy_time
from benchmarks.gpu.models import SHAPES, RandomCheckpoint
from benchmarks.gpu.op_checks import chi_square_p_value, kept_shares
from benchmarks.gpu.paged import SequenceShape, make_step
from benchmarks.gpu.parts import PARTS, Column, Part
from benchmarks.gpu.report import format_cell, render
from benchmarks.gpu.results import Deadline, PartResult, Record, Target
from benchmarks.gpu.run import make_bench, run_parts
from benchmarks.gpu.settings import FULL, TINY, AttentionShape
from benchmarks.gpu.timing import L2_BYTES, Timer

CPU = torch.device("cpu")
HEADER = {"is_tiny": False, "command": "python benchmarks/gpu.py", "date": "2026-01-01", "device": "none"}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_cases_for_which_no_time_is_left_are_named() -> None:
    clock = Clock()
    record = Record(PartResult("decode"), Deadline(10, clock))
    seen = []
    for case in record.in_time(["a", "b", "c", "d"], seconds_each=2.0):
        seen.append(case)
        clock.now += 4.0
    assert seen == ["a", "b"]
    assert record.result.notes == ["Left out for lack of time: c, d."]
    assert record.deadline.earlier(1).left == 1
    assert record.deadline.earlier(5).left == 2


def test_a_failure_is_written_down_and_the_next_part_runs(tmp_path: Path) -> None:
    def fail(bench: Any, record: Record) -> None:
        record.row(what="copy", ms=1.5)
        raise RuntimeError("no such kernel")

    seen_before = []

    def look(bench: Any, record: Record) -> None:
        seen_before.append(json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))["parts"])
        record.row(op="rms_norm", share=float("nan"))

    parts = [Part("ceilings", "Ceilings", 1, fail, ()), Part("elementwise", "Ops", 1, look, ())]
    bench = make_bench(CPU, is_tiny=True)
    results: list[PartResult] = []
    run_parts(bench, [*parts, parts[1]], Deadline(3600), tmp_path, HEADER, results)
    assert [result.is_sound for result in results] == [False, True, True]
    (failed,) = seen_before[0]
    assert failed["rows"] == [{"what": "copy", "ms": 1.5}]
    assert failed["failures"][0]["error"] == "RuntimeError: no such kernel"
    assert "in fail" in failed["failures"][0]["traceback"]
    assert seen_before[1][1]["rows"][0]["share"] == "nan"
    assert "**ceilings failed:** `RuntimeError: no such kernel`" in (tmp_path / "gpu.md").read_text(encoding="utf-8")
    run_parts(bench, parts[:1], Deadline(1), tmp_path, HEADER, results)
    assert results[-1].skipped is not None
    assert not results[-1].rows


def test_the_report_has_targets_notes_and_wrong_results() -> None:
    decode = PartResult("decode", notes=["SDPA did not run."])
    decode.rows.append({"sequences": 64, "context": 4096, "ms": 0.5, "share": 0.7712, "vs_sdpa": 1.25, "sdpa_ms": None})
    decode.targets = [Target("decode attention", 0.7712, 0.75), Target("host gap", 0.06, 0.05, is_at_least=False)]
    checks = PartResult("correctness")
    checks.rows.append({"check": "norms", "error": 0.5, "limit": 0.01, "is_right": False})
    report = render(HEADER, [decode, checks])
    assert "| decode attention | at least 0.75 | 0.77 | yes |" in report
    assert "| host gap | at most 0.05 | 0.06 | no |" in report
    assert "| sequences | context | ms | of copy | vs SDPA |" in report
    assert "| 64 | 4,096 | 0.50 | 77.1% | 1.25x |" in report
    assert "- SDPA did not run." in report
    assert "**1 of 1 are wrong.**" in report
    assert not checks.is_sound


def test_every_part_has_its_place_and_cells_are_as_columns_want_them() -> None:
    assert [part.name for part in PARTS][:3] == ["device", "ceilings", "correctness"]
    assert len({part.name for part in PARTS}) == len(PARTS) == 9
    assert format_cell(Column("x", "x"), True) == "yes"
    assert format_cell(Column("x", "x", "count"), 12345) == "12,345"
    assert format_cell(Column("x", "x", "error"), 0.00123) == "0.0012"
    assert format_cell(Column("x", "x", "times"), None) == ""
    assert (64, 1, 4095) in [(case.num_seqs, case.num_new_tokens, case.prefix_len) for case in FULL.decode]
    assert set(FULL.flex) <= {*FULL.decode, *FULL.extend}


def test_busy_time_is_the_union_of_spans() -> None:
    assert busy_time([]) == 0
    assert busy_time([(5, 7), (0, 2), (1, 3), (6, 6.5), (3, 4)]) == 6


def trial(num_sharers: int, shared_len: int, gain: float, ratio: float = 1.0) -> SharingTrial:
    return SharingTrial(num_sharers, shared_len, ratio, gain)


def test_where_sharing_pays() -> None:
    trials = [trial(8, 128, 0.6, 1.0), trial(8, 256, 1.1, 2.0), trial(8, 512, 0.9, 4.0), trial(8, 1024, 3.0, 8.0)]
    assert shortest_that_pays(trials) == 1024
    assert shortest_that_pays(trials[:3]) is None
    assert break_even(trials) == 8.0
    assert break_even([*trials, trial(2, 64, 1.4, 2.5)]) == 2.0
    assert break_even(trials[2:3]) == pytest.approx(4.04)
    assert break_even([]) is None
    assert advice(trials)[0] == "8 sharers: sharing pays from 1,024 tokens on."


def test_savings_are_reckoned_as_the_planner_does() -> None:
    from ramet.kernels.attention_plan import build_attention_metadata
    from ramet.kernels.triton.shared_runs import HeadShape, SharingRules, choose_runs
    from ramet.kernels.triton.tiles import Tile

    heads, tile, num_sharers = HeadShape(32, 8, 128), Tile(64, 64, 4, 3, True), 20
    tables = [[0, 1, 2, 3, 10 + idx] for idx in range(num_sharers)]
    metadata = build_attention_metadata(tables, list(range(num_sharers + 1)), [65] * num_sharers, 16)
    ratio = SharingTrial.of(heads, 2, tile, num_sharers, 64, gain=1.0).saved_over_cost
    for break_even_ratio, is_shared in ((ratio * 0.999, True), (ratio * 1.001, False)):
        rules = SharingRules(min_len=16, break_even=break_even_ratio, kv_itemsize=2)
        runs = choose_runs(metadata, heads, rules, tile, None)
        assert any(run.is_shared for run in runs) == is_shared


def test_the_distribution_after_cuts() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64).log()[[2, 0, 3, 1]]
    assert torch.allclose(kept_shares(logits, 0, 1.0, 0.0), torch.tensor([0.2, 0.4, 0.1, 0.3]).double())
    assert torch.allclose(kept_shares(logits, 2, 1.0, 0.0), torch.tensor([0, 4 / 7, 0, 3 / 7]).double())
    assert torch.allclose(kept_shares(logits, 0, 0.6, 0.0), torch.tensor([0, 4 / 7, 0, 3 / 7]).double())
    assert torch.allclose(kept_shares(logits, 0, 1.0, 0.4), torch.tensor([2 / 9, 4 / 9, 0, 3 / 9]).double())


def test_counts_far_from_their_shares_are_unlikely() -> None:
    shares = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64)
    assert chi_square_p_value(torch.tensor([500.0, 300, 200, 0]).double(), shares) == pytest.approx(1.0)
    assert chi_square_p_value(torch.tensor([520.0, 290, 190, 0]).double(), shares) == pytest.approx(math.exp(-49 / 60))
    assert chi_square_p_value(torch.tensor([650.0, 200, 150, 0]).double(), shares) < 1e-10


def test_what_is_left_out_of_a_result_is_seen() -> None:
    exact = torch.randn(4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with poisoned_memory():
        unwritten = torch.empty(4, 8)
    assert not close_to("unwritten", unwritten, exact, 1.0).is_right
    assert close_to("rounded", exact.float(), exact, 1e-6).is_right
    assert not same_bits("changed", exact, exact + 1).is_right
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_check_that_fails_beside_others_is_run_by_itself() -> None:
    runs = []

    def fails_once() -> list[Finding]:
        runs.append(1)
        if len(runs) == 1:
            raise RuntimeError("two at a time")
        return [Finding("error", 0.0, 0.0)]

    def fails() -> list[Finding]:
        raise ValueError("always")

    record = Record(PartResult("correctness"), Deadline(3600))
    run_checks([Check("first", fails_once), Check("second", fails)], 2, record)
    assert [row["check"] for row in record.result.rows] == ["first: error"]
    assert [failure["case"] for failure in record.result.failures] == ["second"]
    late = Record(PartResult("correctness"), Deadline(-1))
    run_checks([Check("first", fails)], 1, late)
    assert late.result.notes == ["Left out for lack of time: first."]


def test_random_weights_are_the_same_for_all_and_different_for_each_tensor() -> None:
    config = SHAPES["tiny"]
    one, other = RandomCheckpoint("tiny", config), RandomCheckpoint("tiny", config)
    names = one.tensor_names()
    assert len(names) == 2 + 9
    name = "model.layers.0.mlp.gate_proj.weight"
    first, again, half = (torch.empty(one.shape(name)) for _ in range(3))
    one.read_into(name, first)
    other.read_into(name, again)
    assert torch.equal(first, again)
    one.read_into("model.layers.0.mlp.up_proj.weight", half)
    assert not torch.equal(first, half)
    assert 0.015 < float(first.std()) < 0.025
    norm = torch.empty(one.shape("model.norm.weight"), dtype=torch.bfloat16)
    one.read_into("model.norm.weight", norm)
    assert norm.eq(1).all()


def test_rows_are_put_beside_those_of_ours() -> None:
    def row(engine: str, tokens_s: float, answers: list[int]) -> dict[str, Any]:
        return {"model": "tiny", "name": "W1", "engine": engine, "tokens_s": tokens_s, "answers": answers}

    rows = [
        row("transformers generate", 10.0, [5, 6]),
        row("ramet, cache off", 80.0, [5, 7, 8]),
        row("ramet", 40.0, [5, 7, 8]),
    ]
    compare(rows, ["tiny"])
    assert [each["engine"] for each in rows] == ["ramet", "ramet, cache off", "transformers generate"]
    assert [each["ours_faster"] for each in rows] == [None, 0.5, 4.0]
    assert [each["agreement"] for each in rows] == [1.0, 1.0, 0.5]


def test_a_workload_that_takes_too_long_is_ended_and_the_next_one_runs() -> None:
    bench = make_bench(CPU, is_tiny=True)
    session = EngineSession(bench.models.load("tiny"), bench.models.config("tiny"))
    session.deadline = Deadline(-1)
    with pytest.raises(TimeIsUpError, match="0 of 2 requests were done when time was up"):
        session.generate([[5, 6], [7]], 4)
    assert not session.engine.has_work
    session.deadline = Deadline(600)
    assert [len(reply) for reply in session.generate([[5, 6]], 2)] == [2]
    session.close()


def test_slow_entrants_are_given_the_first_requests() -> None:
    from benchmarks.gpu.end_to_end import model_inputs

    inputs = model_inputs(make_bench(CPU, is_tiny=True))
    fewer = fewer_requests(inputs, 2)
    assert fewer.questions == inputs.questions[:2]
    assert fewer.sizes.shared == (2, *TINY.workloads.shared[1:])
    assert max(token for prompt in inputs.batch for token in prompt) < 300


def test_the_baselines_do_the_same_job() -> None:
    """SDPA and FlexAttention, on the same inputs, with a causal mask behind a prefix and for single rows."""
    bench = make_bench(CPU, is_tiny=True)
    for shape in (AttentionShape(2, 8, 24), AttentionShape(1, 16, 0), AttentionShape(2, 1, 31)):
        (sdpa, *_), (flex, *_) = sdpa_calls(bench, shape), flex_calls(bench, shape)
        expected, actual = sdpa(), flex()
        assert isinstance(expected, torch.Tensor)
        assert isinstance(actual, torch.Tensor)
        assert expected.shape == (shape.num_seqs, TINY.heads.num_heads, shape.num_new_tokens, TINY.heads.head_dim)
        torch.testing.assert_close(actual, expected, rtol=0.02, atol=0.02)


def test_pairs_of_rows_and_keys_are_counted() -> None:
    step = make_step([SequenceShape(5, 2), SequenceShape(3, 3), SequenceShape(40, 1, (("stem", 1),))], CPU)
    assert step.num_pairs == (4 + 5) + (1 + 2 + 3) + 40
    assert step.num_rows == 6
    assert len({block for table in step.tables for block in table}) == sum(map(len, step.tables))


class FakeCuda:
    """Streams, events and graphs as the timer uses them: launches take time, replays that of their graph's launches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 0.0
        self.launched: list[float] = []
        self.num_replays = 0
        for name in ("Stream", "current_stream", "synchronize"):
            monkeypatch.setattr(torch.cuda, name, MagicMock())
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: self)
        monkeypatch.setattr(torch.cuda, "graph", lambda graph, stream: self.capture())
        monkeypatch.setattr(torch.cuda, "Event", self.event)

    def launch(self, milliseconds: float) -> None:
        self.now_ms += milliseconds
        self.launched.append(milliseconds)

    @contextmanager
    def capture(self) -> Iterator[None]:
        self.launched.clear()
        yield

    def replay(self) -> None:
        self.num_replays += 1
        self.now_ms += sum(self.launched)

    def event(self, enable_timing: bool) -> Any:
        event = MagicMock()
        event.record = lambda: setattr(event, "at", self.now_ms)
        event.elapsed_time = lambda later: later.at - event.at
        return event


def test_on_a_gpu_a_call_takes_its_part_of_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    timer = Timer(torch.device("cuda"), rep_ms=40.0)
    assert timer.median_ms([lambda: cuda.launch(1.0), lambda: cuda.launch(3.0)]) == 2.0
    assert cuda.num_replays == 2 + 40 / 4
    assert timer.median_ms([lambda: cuda.launch(5.0)], is_captured=False) == 5.0
    assert timer.num_rotated(1 << 20) * (1 << 20) >= 4 * L2_BYTES
    assert timer.num_rotated(1 << 40) == 1


def test_a_process_that_hangs_is_ended_when_its_results_are_written(tmp_path: Path) -> None:
    script = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r})
from pathlib import Path
from benchmarks.gpu import run
run.GRACE_S = 0.0
run.end_process_after(0.1, lambda: Path({str(tmp_path / "written")!r}).touch())
time.sleep(60)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=False)
    assert ended.returncode == 3, ended.stderr
    assert (tmp_path / "written").exists()
