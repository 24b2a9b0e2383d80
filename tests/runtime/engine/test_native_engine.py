"""The engine over the C++ step: the same tokens and logprobs, to the last bit, whatever was cached, batched, cut into
chunks, preempted or forked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramet.runtime.engine import Engine
from ramet.runtime.outputs import RequestOutput
from ramet.runtime.policies.registry import SCHEDULE_POLICIES
from ramet.runtime.request import Request

pytestmark = pytest.mark.compiler

VOCAB_SIZE = 101
STORY = [(idx * 37 + idx * idx * 5) % 97 for idx in range(150)]
PROMPTS = [
    STORY[:1],
    STORY[:40],
    STORY[:57],
    [*STORY[:57], 3, 1, 4],
    [*STORY[:64], 1, 5, 9, 2, 6],
    STORY[:149],
    [*STORY[:100], *STORY[:20]],
    [7] * 33,
]
FIELDS: list[dict[str, Any]] = [
    {"logprobs": 2, "max_tokens": 20},
    {"logprobs": 0, "prompt_logprobs": 1, "max_tokens": 9},
    {"logprobs": 4, "temperature": 0.9, "seed": 5, "n": 4, "max_tokens": 14},
    {"logprobs": 1, "temperature": 1.3, "seed": 9, "top_p": 0.8, "repetition_penalty": 1.2, "max_tokens": 25},
]
BEAMS: dict[str, Any] = {"use_beam_search": True, "best_of": 4, "n": 3, "max_tokens": 21, "length_penalty": 0.5}


@dataclass(frozen=True)
class Ask:
    prompt: int
    fields: int
    arrival: int
    """The step before which it is submitted."""

    def request(self, request_of: Any, request_id: str) -> Request:
        return request_of(request_id, PROMPTS[self.prompt], ignore_eos=True, **FIELDS[self.fields])


asks = st.builds(Ask, st.integers(0, len(PROMPTS) - 1), st.integers(0, len(FIELDS) - 1), st.integers(0, 12))
engine_options = st.builds(
    lambda limit, **options: options | limit,
    st.sampled_from(
        [
            {"max_num_batched_tokens": 1, "max_num_seqs": 1},
            {"max_num_batched_tokens": 7, "max_num_seqs": 7},
            {"max_num_batched_tokens": 64},
            {"max_num_batched_tokens": 8192, "max_num_logit_rows": 8192},
            {"max_num_batched_tokens": 100, "long_prefill_token_threshold": 9},
        ]
    ),
    enable_prefix_caching=st.booleans(),
    schedule_policy=st.sampled_from(list(SCHEDULE_POLICIES)),
    schedule_conservativeness=st.sampled_from([0.0, 1.0]),
    reserve=st.sampled_from(["estimate", "max", "none"]),
    batching=st.sampled_from(["continuous", "continuous", "prefill-first", "request-level"]),
    overlap_schedule=st.booleans(),
)


def contents(output: RequestOutput) -> tuple[Any, ...]:
    """What must not depend on anything."""
    assert output.error is None
    samples = [
        (sample.index, sample.token_ids, sample.logprobs, sample.cumulative_logprob, sample.text)
        for sample in output.outputs
    ]
    return samples, output.prompt_logprobs


def run_timed(engine: Engine, requests: list[tuple[int, Request]]) -> dict[str, RequestOutput]:
    """Each request is added before the step it arrives at."""
    outputs: dict[str, RequestOutput] = {}
    for step_idx in range(10_000):
        for arrival, request in requests:
            if arrival == step_idx:
                engine.add_request(request)
        for chunk in engine.step():
            if chunk.output is not None:
                outputs[chunk.request_id] = chunk.output
        if len(outputs) == len(requests):
            return outputs
    raise AssertionError("not finished")


@pytest.fixture(scope="module")
def tiny_path(make_tiny_model, tmp_path_factory):
    tiny = make_tiny_model(num_attention_heads=6, num_key_value_heads=2, vocab_size=VOCAB_SIZE)
    return tiny.save(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def expected_of(tiny_path, load_runner, engine_over, request_of):
    """An ask's output alone, in one piece, without a cache, on one thread."""
    loaded = load_runner(tiny_path, "cpu", num_threads=1)
    known: dict[tuple[int, int], tuple[Any, ...]] = {}

    def expected(ask: Ask) -> tuple[Any, ...]:
        key = (ask.prompt, ask.fields)
        if key not in known:
            engine = engine_over(loaded, enable_prefix_caching=False, max_num_batched_tokens=1024)
            outputs = run_timed(engine, [(0, ask.request(request_of, "alone"))])
            known[key] = contents(outputs["alone"])
        return known[key]

    return expected


@pytest.fixture(scope="module")
def runners(tiny_path, load_runner):
    """By number of blocks: plenty, so few that three long sequences do not fit, and so few that two do not."""
    return {num_blocks: load_runner(tiny_path, "cpu", num_blocks=num_blocks) for num_blocks in (256, 46, 18)}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    asked=st.lists(asks, min_size=1, max_size=8),
    options=engine_options,
    num_blocks=st.sampled_from([256, 46]),
    num_threads=st.sampled_from([1, 2]),
)
def test_outputs_have_the_same_bits_however_they_came_about(
    runners, engine_over, request_of, expected_of, asked, options, num_blocks, num_threads
):
    loaded = runners[num_blocks]
    loaded.runner.num_threads = num_threads
    engine = engine_over(loaded, **options)
    requests = [(ask.arrival, ask.request(request_of, str(idx))) for idx, ask in enumerate(asked)]
    outputs = run_timed(engine, requests)
    for idx, ask in enumerate(asked):
        assert contents(outputs[str(idx)]) == expected_of(ask)


@pytest.mark.parametrize("is_caching", [True, False])
def test_preempted_and_forked_sequences_have_the_same_bits(runners, engine_over, request_of, expected_of, is_caching):
    """All that the random runs may do, at once and for certain: many preemptions, forks, and a second round from the
    cache."""
    engine = engine_over(runners[46], schedule_conservativeness=0.0, enable_prefix_caching=is_caching)
    asked = [Ask(prompt, fields, 0) for prompt in (5, 6, 4, 2) for fields in (2, 3, 0)]
    for round_idx in range(2):
        outputs = run_timed(
            engine, [(0, ask.request(request_of, f"{round_idx}/{idx}")) for idx, ask in enumerate(asked)]
        )
        for idx, ask in enumerate(asked):
            assert contents(outputs[f"{round_idx}/{idx}"]) == expected_of(ask)
    assert engine.metrics.num_preemptions > 0
    assert (engine.metrics.num_cached_tokens > 500) == is_caching


def test_a_second_ask_is_served_from_the_cache_with_the_same_bits(runners, engine_over, request_of, expected_of):
    engine = engine_over(runners[256])
    for prompt in range(len(PROMPTS)):
        for fields in range(len(FIELDS)):
            for round_idx in range(2):
                request_id = f"{prompt}/{fields}/{round_idx}"
                ask = Ask(prompt, fields, 0)
                outputs = run_timed(engine, [(0, ask.request(request_of, request_id))])
                assert contents(outputs[request_id]) == expected_of(ask)
                if round_idx == 1:  # prompt logprobs are known of full blocks only
                    is_exact = "prompt_logprobs" not in FIELDS[fields]
                    longest = len(PROMPTS[prompt]) - 1
                    assert longest - (0 if is_exact else 16) <= outputs[request_id].num_cached_tokens <= longest


@pytest.mark.parametrize("is_overlapping", [True, False])
@pytest.mark.parametrize("policy", SCHEDULE_POLICIES)
def test_every_policy_gives_the_same_bits(runners, engine_over, request_of, expected_of, policy, is_overlapping):
    """Too few blocks for all, small steps, and more requests than run at once: each policy has something to decide."""
    engine = engine_over(
        runners[18],
        schedule_policy=policy,
        overlap_schedule=is_overlapping,
        max_num_batched_tokens=48,
        max_num_seqs=8,
        reserve="none",
    )
    asked = [Ask(prompt, fields, prompt % 3) for prompt in range(len(PROMPTS)) for fields in (0, 1, 3)]
    outputs = run_timed(engine, [(ask.arrival, ask.request(request_of, str(idx))) for idx, ask in enumerate(asked)])
    for idx, ask in enumerate(asked):
        assert contents(outputs[str(idx)]) == expected_of(ask)
    assert engine.metrics.num_preemptions > 0


@pytest.mark.parametrize(
    "options",
    [
        {"enable_prefix_caching": False},
        {"max_num_batched_tokens": 5, "max_num_seqs": 5},
        {"schedule_conservativeness": 0.0, "overlap_schedule": True},
        {"schedule_policy": "priority", "reserve": "none"},
    ],
    ids=str,
)
def test_beams_have_the_same_bits(runners, engine_over, request_of, options):
    asked = {str(idx): request_of(str(idx), PROMPTS[idx], ignore_eos=True, **BEAMS) for idx in range(1, 6)}
    alone = {}
    for name, request in asked.items():
        alone |= run_timed(engine_over(runners[256]), [(0, request)])
        assert name in alone
    together = run_timed(engine_over(runners[46], **options), [(0, request) for request in asked.values()])
    for name, output in together.items():
        assert contents(output) == contents(alone[name])
