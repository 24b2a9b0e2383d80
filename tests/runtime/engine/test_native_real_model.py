"""The bundled model on the C++ step, through LLM: outputs equal to the last bit, however they came about."""

from __future__ import annotations

from typing import Any

import pytest

from ramet import LLM, SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.compiler]

STORY = (
    "The lighthouse keeper had not spoken to anyone for eleven days when the boat came. It carried flour, paraffin, "
    "three letters and a boy of about nine, who stepped onto the rock as if he had been there before. "
)
PROMPTS = ["Hello", STORY + "The boy", STORY + "The keeper", "def fibonacci(n):\n    "]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=2, prompt_logprobs=1)
DRAWN = SamplingParams(temperature=0.9, top_p=0.95, seed=11, n=4, max_tokens=9, ignore_eos=True, logprobs=1)


def contents(output: Any) -> tuple[Any, ...]:
    samples = [(sample.token_ids, sample.text, sample.logprobs, sample.cumulative_logprob) for sample in output.outputs]
    return samples, output.prompt_logprobs


@pytest.fixture(scope="module")
def alone():
    """What each prompt gives by itself, in one piece, without a cache, on one thread."""
    options = {"enable_prefix_caching": False, "max_num_batched_tokens": 2048, "max_num_logit_rows": 2048}
    with LLM("smollm2", kernels="cpu", num_threads=1, **options) as llm:
        return [[contents(llm.generate(prompt, params)[0]) for prompt in PROMPTS] for params in (GREEDY, DRAWN)]


@pytest.mark.parametrize(
    ("options", "num_threads"),
    [
        ({"max_num_batched_tokens": 1, "max_num_seqs": 1}, 1),
        ({"max_num_batched_tokens": 7, "max_num_seqs": 7}, 2),
        ({"max_num_batched_tokens": 64, "max_num_seqs": 64}, 2),
        ({"max_num_batched_tokens": 2048, "max_num_logit_rows": 2048}, 2),
        ({"enable_prefix_caching": False}, 2),
        ({"num_blocks": 13, "schedule_conservativeness": 0.0}, 1),
    ],
    ids=["chunks of 1", "chunks of 7", "chunks of 64", "whole prompts", "no cache", "tiny pool"],
)
def test_outputs_have_the_same_bits_however_they_came_about(alone, options, num_threads):
    with LLM("smollm2", kernels="cpu", num_threads=num_threads, check_invariants=True, **options) as llm:
        for _ in range(2):  # cold, then from the cache
            outputs = llm.generate(PROMPTS * 2, [GREEDY] * len(PROMPTS) + [DRAWN] * len(PROMPTS))
            assert [contents(output) for output in outputs] == [*alone[0], *alone[1]]
        metrics = llm.metrics()
        assert (metrics.num_cached_tokens > 0) == options.get("enable_prefix_caching", True)
        if "num_blocks" in options:
            assert metrics.num_preemptions > 0


def test_questions_behind_one_prefix_have_the_bits_of_each_alone(alone):
    """A batch that shares most of its blocks, whose tiles hold many sequences."""
    with LLM("smollm2", kernels="cpu", num_threads=2) as llm:
        prefix = llm.tokenizer.encode(STORY * 4)
        prompts = [{"prompt_token_ids": prefix + llm.tokenizer.encode(f" On day {idx} he")} for idx in range(20)]
        params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=1)
        together = [contents(output) for output in llm.generate(prompts, params)]
        for idx in (0, 7, 19):
            llm.reset_prefix_cache()
            (output,) = llm.generate(prompts[idx], params)
            assert output.num_cached_tokens == 0
            assert contents(output) == together[idx]
