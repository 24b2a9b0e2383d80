"""Scored continuations on tiny models: what transformers computes, and on the C++ step the same bits however they came
about."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from ramet.runtime.policies.registry import SCHEDULE_POLICIES
from ramet.runtime.request import Request
from ramet.sampling_params import SamplingParams

Asked = tuple[list[int], list[list[int]]]


def asked_of(seed: int) -> Asked:
    """A prompt, of the same stem as others or empty, and continuations that share beginnings or are such."""
    rng = random.Random(seed)
    stem = [(idx * 37 + idx * idx * 5) % 97 for idx in range(70)]
    prompt = [*stem[: rng.choice([0, 1, 15, 16, 17, 40, 70])], *([seed % 97] if seed % 3 else [])]
    branching = rng.choice([2, 4, 90])
    continuations = [
        [rng.randrange(branching) for _ in range(rng.randrange(1, rng.choice([2, 6, 25])))]
        for _ in range(rng.choice([1, 4, 12]))
    ]
    continuations.append(continuations[0][: rng.randrange(1, len(continuations[0]) + 1)])
    return prompt, continuations


def request_for(asked: Asked, request_id: str) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(asked[0]),
        sampling_params=SamplingParams(),
        continuations=tuple(map(tuple, asked[1])),
    )


@pytest.fixture(scope="module")
def model_dir(make_tiny_model, tmp_path_factory):
    return make_tiny_model(seed=3).save(tmp_path_factory.mktemp("scored") / "model")


def test_they_are_those_of_transformers(model_dir, load_runner, engine_over, run):
    model = LlamaForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    engine = engine_over(load_runner(model_dir, "torch", num_blocks=200))
    everything = {str(seed): asked_of(seed) for seed in range(12)}
    for name, asked in everything.items():
        engine.add_request(request_for(asked, name))
    outputs = run(engine)
    for name, (prompt, continuations) in everything.items():
        for ids, found in zip(continuations, outputs[name].continuations, strict=True):
            with torch.inference_mode():
                logprobs = model(torch.tensor([[*prompt, *ids]])).logits[0].double().log_softmax(-1)
            expected = [
                logprobs[len(prompt) + idx - 1, token].item() if prompt or idx else None
                for idx, token in enumerate(ids)
            ]
            assert (found.logprobs[0] is None) == (expected[0] is None)
            assert [value or 0.0 for value in found.logprobs] == pytest.approx([v or 0.0 for v in expected], abs=1e-4)
            going_on = {other[len(ids)] for other in continuations if other[: len(ids)] == ids and other != ids}
            rest = 1 - sum(logprobs[-1, token].exp().item() for token in going_on)
            assert math.exp(found.end_logprob) == pytest.approx(rest, abs=1e-4)


@pytest.fixture(scope="module")
def native_runners(model_dir, load_runner):
    return {num_blocks: load_runner(model_dir, "cpu", num_blocks=num_blocks) for num_blocks in (256, 12)}


@pytest.fixture(scope="module")
def expected_of(native_runners, engine_over, request_of, run):
    """The log-probabilities of each continuation as a prompt of its own, without a cache."""
    known: dict[int, list[tuple[float | None, ...]]] = {}

    def expected(seed: int) -> list[tuple[float | None, ...]]:
        if seed not in known:
            prompt, continuations = asked_of(seed)
            engine = engine_over(native_runners[256], enable_prefix_caching=False)
            for idx, ids in enumerate(continuations):
                engine.add_request(request_of(str(idx), [*prompt, *ids], max_tokens=1, prompt_logprobs=0))
            outputs = run(engine)
            known[seed] = []
            for idx, ids in enumerate(continuations):
                entries = outputs[str(idx)].prompt_logprobs[len(prompt) :]
                known[seed].append(
                    tuple(entry and entry[token].logprob for entry, token in zip(entries, ids, strict=True))
                )
        return known[seed]

    return expected


@pytest.mark.compiler
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seeds=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    num_blocks=st.sampled_from([256, 12]),
    limits=st.sampled_from(
        [{}, {"max_num_batched_tokens": 7, "max_num_seqs": 3}, {"max_num_seqs": 1}, {"max_num_logit_rows": 2}]
    ),
    options=st.fixed_dictionaries(
        {
            "enable_prefix_caching": st.booleans(),
            "schedule_policy": st.sampled_from(list(SCHEDULE_POLICIES)),
            "reserve": st.sampled_from(["estimate", "max", "none"]),
            "overlap_schedule": st.booleans(),
        }
    ),
)
def test_they_have_the_same_bits_however_they_came_about(
    native_runners, engine_over, run, expected_of, seeds, num_blocks, limits, options
):
    engine = engine_over(native_runners[num_blocks], **limits, **options)
    for idx, seed in enumerate(seeds):
        engine.add_request(request_for(asked_of(seed), str(idx)))
    outputs: dict[str, Any] = run(engine)
    for idx, seed in enumerate(seeds):
        assert outputs[str(idx)].error is None
        assert [each.logprobs for each in outputs[str(idx)].continuations] == expected_of(seed)
    engine.close()
