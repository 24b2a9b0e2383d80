"""A request that fails every step it is in, among others on the bundled model: those have the same bits as without."""

from __future__ import annotations

from typing import Any

import pytest

from ramet import SamplingParams
from ramet.runtime.batch import Batch

pytestmark = [pytest.mark.model, pytest.mark.compiler]

PROMPTS = ["The capital of France is", "Water boils at", "Once upon a time there was a fox who", "def fib(n):"]
PARAMS = [
    SamplingParams(max_tokens=12, logprobs=2, temperature=0.0),
    SamplingParams(max_tokens=9, logprobs=1, temperature=0.8, seed=3, n=2),
    SamplingParams(max_tokens=8, regex="[a-z ]{5,20}", temperature=0.0),
    SamplingParams(max_tokens=6, temperature=0.0, use_beam_search=True, n=2),
]
BAD_PROMPT = "This one breaks every step it is in"


def test_others_have_the_same_bits(smollm2, monkeypatch):
    expected = [smollm2.submit(prompt, params).wait(120) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
    bad_ids = tuple(smollm2.tokenizer.encode(BAD_PROMPT))
    runner = smollm2._engine.runner
    prepare, num_failures = runner.prepare, 0

    def failing(batch: Batch) -> Any:
        nonlocal num_failures
        step = prepare(batch)
        parts = [part for part in batch.scheduled if part.sequence.request.prompt_token_ids == bad_ids]
        if not any(part.end > len(bad_ids) + 2 for part in parts):
            return step

        def run() -> Any:
            nonlocal num_failures
            step()
            num_failures += 1
            raise RuntimeError("a broken kernel")

        return run

    smollm2.reset_prefix_cache()
    monkeypatch.setattr(runner, "prepare", failing)
    handles = [smollm2.submit(prompt, params) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
    bad = smollm2.submit(BAD_PROMPT, SamplingParams(max_tokens=20, ignore_eos=True))
    outputs = [handle.wait(120) for handle in handles]
    bad_output = bad.wait(120)
    assert num_failures > 1
    assert "a broken kernel" in str(bad_output.error)
    assert len(bad_output.outputs[0].token_ids) == 3
    for output, reference in zip(outputs, expected, strict=True):
        assert output.error is None
        assert output.outputs == reference.outputs
