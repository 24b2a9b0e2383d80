"""An LLM in several ranks: the bundled model in three."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ramet import LLM, SamplingParams
from ramet.runtime.errors import EngineStoppedError

PROMPTS = ["The capital of France is", "The capital of Italy is", "Once upon a time"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, logprobs=1, prompt_logprobs=0)
DRAWN = SamplingParams(temperature=0.9, top_p=0.95, seed=7, n=2, max_tokens=10)

pytestmark = [pytest.mark.slow, pytest.mark.model]


@pytest.fixture(scope="module")
def llms() -> Iterator[list[LLM]]:
    """In one rank and in three."""
    options: dict[str, Any] = {"kernels": "torch", "num_blocks": 100, "seed": 0, "check_invariants": True}
    with LLM("smollm2", **options) as one, LLM("smollm2", tensor_parallel_size=3, **options) as three:
        yield [one, three]


def test_three_ranks_write_what_one_writes(llms: list[LLM]) -> None:
    for params in (GREEDY, DRAWN):
        found = [[outputs.outputs for outputs in llm.generate(PROMPTS, params)] for llm in llms]
        assert [[each.text for each in outputs] for outputs in found[0]] == [
            [each.text for each in outputs] for outputs in found[1]
        ]
    logprobs = [sampled_logprobs(llm) for llm in llms]
    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-4)
    for one, three in zip(*(llm.score(PROMPTS[0], [" Paris", " Rome", " a city"]) for llm in llms), strict=True):
        assert one.logprobs == pytest.approx(three.logprobs, abs=1e-4)
    assert llms[0].model_config == llms[1].model_config


def sampled_logprobs(llm: LLM) -> list[float]:
    steps = [step for output in llm.generate(PROMPTS, GREEDY) for step in output.outputs[0].logprobs or []]
    return [entry.logprob for step in steps for entry in step.values()]


def test_shutdown_ends_the_ranks_and_what_runs() -> None:
    llm = LLM("smollm2", kernels="torch", num_blocks=100, tensor_parallel_size=3)
    runner: Any = llm._engine.runner
    handle = llm.submit(PROMPTS[0], SamplingParams(max_tokens=1000, ignore_eos=True))
    next(iter(handle.stream()))
    llm.shutdown()
    assert isinstance(handle.wait(30).error, EngineStoppedError)
    assert all(worker.process.returncode is not None for worker in runner.pool._workers)
    llm.shutdown()
