"""The report says what was measured: ratios, targets, and who could not run and why."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.cpu.catalogue import ENGINES, OURS, REFERENCE
from benchmarks.cpu.markdown import format_number, table
from benchmarks.cpu.metrics import METRICS, Figure, figure_of, gain
from benchmarks.cpu.process import JobError, run_job
from benchmarks.cpu.quality import ALL, compare
from benchmarks.cpu.report import render
from benchmarks.cpu.workloads import WORKLOADS

SIZES = {"prompt": 512, "generated": 129}
BY_TITLE = {metric.title: metric for metric in METRICS}


def outcome(seconds: float, prefill_seconds: float | None = None, answers: list[int] | None = None) -> dict[str, Any]:
    return {"seconds": seconds, "prefill_seconds": prefill_seconds, "num_tokens": 1, "answers": answers or []}


def engine_run(**workloads: dict[str, Any]) -> dict[str, Any]:
    return {
        "workloads": workloads,
        "load_seconds": 2.0,
        "peak_rss_bytes": 123_400_000,
        "versions": {"thing": "1.2"},
        "details": "as usual",
    }


def results(engines: dict[str, Any]) -> dict[str, Any]:
    return {
        "run": {
            "command": "python -m benchmarks.cpu",
            "date": "2030-01-02",
            "machine": "a machine",
            "threads": 2,
            "python": "3.11",
            "repeat": 2,
            "sizes": SIZES,
        },
        "model": {
            "name": "tiny.gguf",
            "weight_bytes": 10**8,
            "weight_bytes_by_type": {"Q4_1": 10**8},
            "num_body_weights": 10**8,
            "num_head_weights": 10**7,
        },
        "descriptions": {name: f"about {name}" for name in WORKLOADS},
        "engines": engines,
        "limits": [],
        "steps": [],
    }


def row(report: str, title: str) -> list[str]:
    (line,) = [line for line in report.splitlines() if line.startswith(f"| {title}")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_rates_come_from_the_two_runs_of_a_prompt() -> None:
    runs = [engine_run(W1=outcome(1.5, 0.5)), engine_run(W1=outcome(3.0, 1.0))]
    assert figure_of(BY_TITLE["W1 prefill"], runs, SIZES) == Figure(best=1024, median=768)
    assert figure_of(BY_TITLE["W1 decode"], runs, SIZES) == Figure(best=128, median=96)


def test_a_run_no_longer_than_its_prefill_gives_no_rate() -> None:
    assert figure_of(BY_TITLE["W1 decode"], [engine_run(W1=outcome(0.5, 0.5))], SIZES) is None


def test_a_failed_round_leaves_the_others() -> None:
    failed = engine_run(W2={"error": "31 instead of 32 tokens"})
    assert figure_of(BY_TITLE["W2"], [failed, engine_run(W2=outcome(4.0))], SIZES) == Figure(4.0, 4.0)
    assert figure_of(BY_TITLE["W2"], [failed], SIZES) == "31 instead of 32 tokens"
    assert figure_of(BY_TITLE["W4"], [failed], SIZES) is None


def test_an_engine_that_needs_no_priming_is_measured_once() -> None:
    runs = [engine_run(**{"W3": outcome(2.0), "W3-together": {"same_as": "W3"}})]
    assert figure_of(BY_TITLE["W3 unprimed"], runs, SIZES) == Figure(2.0, 2.0)


def test_gain_is_above_one_when_ours_is_faster() -> None:
    assert gain(BY_TITLE["W1 decode"], 200.0, 100.0) == 2.0
    assert gain(BY_TITLE["W2"], 1.0, 3.0) == 3.0


def test_the_ratio_is_to_the_best_peer_of_the_row() -> None:
    report = render(
        results(
            {
                OURS: {"runs": [engine_run(W2=outcome(2.0)), engine_run(W2=outcome(4.0))], "reason": None},
                "llama.cpp": {"runs": [engine_run(W2=outcome(6.0))], "reason": None},
                "openvino": {"runs": [engine_run(W2=outcome(5.0))], "reason": None},
            }
        )
    )
    assert row(report, "W2") == [
        "W2, s",
        "2.00 (3.00)",
        "6.00 (6.00)",
        "5.00 (5.00)",
        "OpenVINO int8",
        "**2.50x** (1.67x)",
        "2.5x, met",
    ]
    assert "- W2: about W2" in report


def test_a_missed_target_and_a_workload_that_failed_are_named() -> None:
    report = render(
        results(
            {
                OURS: {"runs": [engine_run(W4=outcome(2.0))], "reason": None},
                "llama.cpp": {"runs": [engine_run(W4=outcome(3.0))], "reason": None},
                "vllm": {"runs": [engine_run(W4={"error": "ValueError: no"})], "reason": None},
            }
        )
    )
    assert row(report, "W4")[-1] == "2.5x, missed"
    assert "- W4, vLLM fp32: ValueError: no." in report


def test_an_engine_that_is_not_there_is_a_line_with_the_reason() -> None:
    engines = {
        OURS: {"runs": [engine_run(W2=outcome(1.0))], "reason": None},
        "vllm": {"runs": [], "reason": "ModuleNotFoundError: No module named 'vllm'"},
    }
    report = render(results(engines))
    assert row(report, "vLLM fp32")[1] == "not run: ModuleNotFoundError: No module named 'vllm'"
    assert row(report, "ramet |")[1:4] == ["thing 1.2; as usual", "123 MB", "2.0 s"]


def test_answers_are_compared_with_those_in_fp32() -> None:
    engines = {
        OURS: {"runs": [engine_run(W2=outcome(1.0, answers=[1, 2, 3]))], "reason": None},
        REFERENCE: {"runs": [engine_run(W2=outcome(9.0, answers=[1, 2, 4]))], "reason": None},
    }
    assert row(render(results(engines)), "ramet |")[-1] == "2 of 3"


def test_quality_is_judged_over_all_text() -> None:
    reference = {"a": {"nll": [1.0, 2.0], "top": [1, 2]}, "b": {"nll": [3.0], "top": [3]}}
    scores = {"a": {"nll": [1.5, 2.0], "top": [1, 2]}, "b": {"nll": [3.0], "top": [4]}}
    agreements = compare(scores, reference)
    assert agreements["a"].top_1 == 1.0
    assert agreements["b"].nll_difference == 0.0
    assert agreements[ALL].num_tokens == 3
    assert agreements[ALL].nll_difference == pytest.approx(0.5 / 3)
    assert agreements[ALL].top_1 == pytest.approx(2 / 3)
    report = render({**results({}), "quality": {OURS: scores, REFERENCE: reference, "llama.cpp": {"reason": "no"}}})
    assert row(report, "ramet | all")[4:] == ["+0.1667, missed", "66.7%, missed"]
    assert row(report, "llama.cpp, the file")[1] == "not measured: no"


def test_a_table_keeps_its_columns() -> None:
    assert table(["a", "b"], [["1", "x|y"]]) == ["| a | b |", "|---|---|", "| 1 | x\\|y |"]
    assert [format_number(value) for value in (1.234, 12.34, 1234.5)] == ["1.23", "12.3", "1234"]


def test_a_job_that_cannot_run_says_why() -> None:
    with pytest.raises(JobError, match="cannot start /no/such/python"):
        run_job("/no/such/python", "engine_job", {}, timeout=10)


def test_engines_are_described_consistently() -> None:
    assert len({spec.label for spec in ENGINES.values()}) == len(ENGINES)
    assert ENGINES[REFERENCE].has_scores
    assert ENGINES[OURS].has_scores
