"""The whole command on the bundled model, at its smallest: real processes, real engines."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.cpu.campaign import Plan, run_plan
from benchmarks.cpu.catalogue import OURS
from benchmarks.cpu.memory import peak_rss_bytes
from benchmarks.cpu.passages import read_passages
from benchmarks.cpu.process import JobError, run_job
from benchmarks.cpu.steps import STEPS, StepShape, load_runner, make_batch, measure_step


@pytest.mark.model
def test_ramet_answers_the_quick_workloads_and_an_absent_peer_gives_a_reason(tmp_path: Path) -> None:
    log = tmp_path / "log"
    plan = Plan(
        model="smollm2",
        engines=[OURS, "llama.cpp"],
        workloads=["W1", "W3", "W3-together", "W3-select"],
        parts=["engines"],
        pythons={"llama.cpp": str(tmp_path / "no-python")},
        threads=1,
        repeat=1,
        is_quick=True,
        timeout=250,
        kernels=None,
        log=log,
    )
    results = run_plan(plan)
    (run,) = results["engines"][OURS]["runs"]
    assert {name for name, outcome in run["workloads"].items() if "error" in outcome} == set(), log.read_text()
    assert run["workloads"]["W3-together"] == {"same_as": "W3"}
    assert run["workloads"]["W1"]["num_tokens"] == 8
    assert len(run["workloads"]["W3-select"]["answers"]) == 6
    assert run["peak_rss_bytes"] > 10**8
    assert results["engines"]["llama.cpp"]["reason"].startswith("cannot start")
    assert results["model"]["weight_bytes"] < 10**8
    json.dumps(results)


def test_a_failing_job_gives_its_last_line() -> None:
    with pytest.raises(JobError, match="ModuleNotFoundError"):
        run_job(sys.executable, "no_such_module", {}, timeout=60)


@pytest.mark.model
def test_a_step_computes_the_tokens_it_says() -> None:
    runner = load_runner({"gguf": "smollm2", "threads": 1})
    shape = StepShape("tiny", num_sequences=3, shared_len=32, own_len=5, num_new_tokens=2)
    batch = make_batch(runner, shape)
    tables = [part.sequence.block_table for part in batch.scheduled]
    assert batch.num_tokens == shape.num_tokens == 6
    assert [(part.start, part.end) for part in batch.scheduled] == [(37, 39)] * 3
    assert len({table.block_ids[0] for table in tables if table is not None}) == 1
    assert len({table.block_ids[2] for table in tables if table is not None}) == 3
    first = runner.forward(batch).clone()
    figures = measure_step(runner, shape, seconds=0.0)
    assert first.shape == (3, runner.vocab_size)
    assert torch.equal(first, runner.forward(batch))
    assert 0 < figures["best"] <= figures["median"]


def test_the_steps_fit_the_cache_they_are_measured_in() -> None:
    from benchmarks.cpu.steps import BLOCK_SIZE, NUM_BLOCKS

    for shape in STEPS:
        own = -(-(shape.own_len + shape.num_new_tokens) // BLOCK_SIZE) + 1
        assert shape.shared_len // BLOCK_SIZE + shape.num_sequences * own <= NUM_BLOCKS


def test_every_passage_is_long_enough_to_be_worth_reading() -> None:
    passages = read_passages()
    assert len(passages) >= 4
    assert all(len(text) > 1500 for text in passages.values())


def test_peak_memory_grows_with_what_is_touched() -> None:
    before = peak_rss_bytes()
    touched = torch.ones(64 << 20, dtype=torch.uint8)
    assert touched.numel() == 64 << 20
    assert peak_rss_bytes() >= before
