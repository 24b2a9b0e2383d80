"""Requests that score continuations: what they give, what they compute, and that nothing disturbs them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ramet.runtime.engine import Engine
from ramet.runtime.errors import InvalidRequestError, RequestAbortedError, RequestFailedError
from ramet.runtime.outputs import RequestOutput
from ramet.runtime.policies.registry import SCHEDULE_POLICIES
from ramet.runtime.request import Request
from ramet.sampling_params import SamplingParams

Continuations = Sequence[Sequence[int]]
Run = Callable[..., dict[str, RequestOutput]]
MakeEngine = Callable[..., Engine]

PROMPT = [random.Random(5).randrange(99) for _ in range(21)]
LABELS = [[1], [2], [3], [4]]
TRIE = [[1, 2, 3], [1, 2, 4], [1, 5, 6], [7], [1, 2, 3, 8], [9, 9, 9], [1]]


def scoring_request(
    prompt: Sequence[int], continuations: Continuations, request_id: str = "s", **fields: Any
) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        sampling_params=SamplingParams(),
        continuations=tuple(map(tuple, continuations)),
        **fields,
    )


def score(engine: Engine, run: Run, prompt: Sequence[int], continuations: Continuations) -> RequestOutput:
    engine.add_request(scoring_request(prompt, continuations))
    (output,) = run(engine).values()
    assert output.error is None
    assert output.outputs == []
    return output


class Reference:
    """Scores each continuation alone, as a prompt whose log-probabilities are wanted, in an engine without a cache."""

    def __init__(self, make_engine: MakeEngine, request_of: Callable[..., Request], run: Run) -> None:
        self._engine = make_engine(num_blocks=600, enable_prefix_caching=False)
        self._request_of = request_of
        self._run = run

    def logprobs(self, prompt: Sequence[int], continuation: Sequence[int]) -> tuple[float | None, ...]:
        ids = [*prompt, *continuation]
        self._engine.add_request(self._request_of("r", ids, max_tokens=1, prompt_logprobs=0))
        (output,) = self._run(self._engine).values()
        assert output.prompt_logprobs is not None
        entries = zip(output.prompt_logprobs, ids, strict=True)
        values = [None if entry is None else entry[token].logprob for entry, token in entries]
        return tuple(values[len(prompt) :])

    def check(self, output: RequestOutput, prompt: Sequence[int], continuations: Continuations) -> None:
        """All log-probabilities are the very same floats; and what a text's end is worth fits its longer siblings."""
        assert output.continuations is not None
        found = output.continuations
        assert [each.logprobs for each in found] == [self.logprobs(prompt, each) for each in continuations]
        for ids, each in zip(continuations, found, strict=True):
            longer = {
                other[len(ids)]: result.logprobs[len(ids)]
                for other, result in zip(continuations, found, strict=True)
                if len(other) > len(ids) and list(other[: len(ids)]) == list(ids)
            }
            going_on = sum(math.exp(value) for value in longer.values() if value is not None)
            assert math.exp(each.end_logprob) == pytest.approx(1 - going_on, abs=1e-12)
            assert (each.end_logprob == 0.0) == (not longer)


@pytest.fixture(scope="module")
def reference(make_engine: MakeEngine, request_of: Callable[..., Request], run: Run) -> Reference:
    return Reference(make_engine, request_of, run)


def random_continuations(rng: random.Random, num: int, max_len: int = 6) -> list[list[int]]:
    return [[rng.randrange(rng.choice([2, 99])) for _ in range(rng.randrange(1, max_len))] for _ in range(num)]


@pytest.mark.parametrize("continuations", [LABELS, TRIE, [[5]], [[5, 6, 7, 8]], [[5, 6, 7], [5, 6], [5]], [[1], [1]]])
@pytest.mark.parametrize("is_cached", [True, False])
def test_they_are_what_each_continuation_gets_alone(make_engine, run, reference, continuations, is_cached):
    engine = make_engine(enable_prefix_caching=is_cached)
    for _ in range(2):
        reference.check(score(engine, run, PROMPT, continuations), PROMPT, continuations)
    assert engine.cache.num_private_blocks == 0


def test_labels_of_one_token_cost_no_step_and_no_token(make_engine, run):
    engine = make_engine()
    output = score(engine, run, PROMPT, LABELS)
    assert engine.runner.batches == [[("s", 0, len(PROMPT))]]
    assert engine.metrics.num_steps == 1
    assert engine.metrics.num_computed_tokens == len(PROMPT)
    assert engine.metrics.num_generated_tokens == 0
    assert (output.num_cached_tokens, output.metrics.num_computed_prompt_tokens) == (0, len(PROMPT))


def test_a_trie_costs_one_more_step_and_a_row_for_each_node_with_children(make_engine, run):
    engine = make_engine()
    score(engine, run, PROMPT, TRIE)
    # Behind the prompt run 1 2 3, 1 5 (which computes 1 again) and 9 9; 4, 6, 7, 8 and the last 9 are leaves.
    assert [[(start, count) for _, start, count in batch] for batch in engine.runner.batches] == [
        [(0, 21)],
        [(21, 3), (21, 2), (21, 2)],
    ]
    assert engine.metrics.num_prompt_tokens == len(PROMPT)


def test_a_common_beginning_and_a_single_choice_cost_no_step(make_engine, run):
    for continuations in ([[5, 6, 7], [5, 6, 8], [5, 9]], [[5, 6, 7]]):
        engine = make_engine()
        score(engine, run, PROMPT, continuations)
        assert engine.runner.batches == [[("s", 0, len(PROMPT) + 2)]]
        assert engine.metrics.num_prompt_tokens == len(PROMPT)


def test_the_next_question_about_a_prompt_computes_its_last_token_only(make_engine, run):
    engine = make_engine()
    score(engine, run, PROMPT, TRIE)
    for continuations in (TRIE, LABELS):
        engine.runner.batches.clear()
        output = score(engine, run, PROMPT, continuations)
        assert output.num_cached_tokens == len(PROMPT) - 1
        assert engine.runner.batches[0] == [("s", len(PROMPT) - 1, 1)]
    assert engine.metrics.num_cached_tokens == 2 * (len(PROMPT) - 1)


def test_long_common_parts_are_computed_once_in_a_step_of_their_own(make_engine, run, reference):
    stems = [[1] * 40, [2] * 40]
    continuations = [[*stem, first, second] for stem in stems for first in range(10, 20) for second in (50, 51)]
    engine = make_engine(num_blocks=128)
    reference.check(score(engine, run, PROMPT, continuations), PROMPT, continuations)
    assert len(engine.runner.batches) == 3
    num_tokens = sum(count for batch in engine.runner.batches for _, _, count in batch)
    assert num_tokens < len(PROMPT) + 2 * 40 + 2 * 10 + 2 * 64


def test_an_empty_prompt_gives_no_logprob_to_first_tokens(make_engine, run, reference):
    for continuations in (TRIE, [[3], [4]], [[3, 4]]):
        output = score(make_engine(), run, [], continuations)
        assert output.continuations is not None
        assert [each.logprobs[0] for each in output.continuations] == [None] * len(continuations)
        reference.check(output, [], continuations)


def test_a_thousand_choices(make_engine, run, reference):
    rng = random.Random(0)
    continuations = [[*map(int, f"{idx:03}"), 10 + rng.randrange(80)] for idx in range(1000)]
    engine = make_engine(num_blocks=400, max_num_seqs=64, max_num_logit_rows=64)
    output = score(engine, run, PROMPT, continuations)
    assert output.continuations is not None
    sample = rng.sample(range(1000), 40)
    for idx in sample:
        assert output.continuations[idx].logprobs == reference.logprobs(PROMPT, continuations[idx])
    assert all(len(each.logprobs) == 4 for each in output.continuations)


@pytest.mark.parametrize("policy", list(SCHEDULE_POLICIES))
@pytest.mark.parametrize("batching", ["continuous", "prefill-first", "request-level"])
@pytest.mark.parametrize("overlap_schedule", [True, "pipelined"])
def test_in_every_order_and_with_overlap(make_engine, run, reference, policy, batching, overlap_schedule):
    rng = random.Random(policy + batching)
    engine = make_engine(
        num_blocks=24,
        schedule_policy=policy,
        batching=batching,
        overlap_schedule=overlap_schedule,
        max_num_batched_tokens=32,
    )
    asked = {}
    for idx in range(6):
        prompt = PROMPT[: rng.randrange(1, 21)]
        asked[str(idx)] = prompt, random_continuations(rng, 5)
        engine.add_request(scoring_request(prompt, asked[str(idx)][1], str(idx), priority=rng.randrange(3)))
    for request_id, output in run(engine).items():
        reference.check(output, *asked.pop(request_id))
    assert not asked
    engine.close()


@pytest.mark.parametrize(
    "options", [{}, {"enable_prefix_caching": False}, {"overlap_schedule": True}, {"overlap_schedule": "pipelined"}]
)
@pytest.mark.parametrize("reserve", ["none", "estimate", "max"])
def test_in_a_tiny_pool_all_finish(make_engine, run, request_of, reference, options, reserve):
    rng = random.Random(1)
    engine = make_engine(num_blocks=8, block_size=4, reserve=reserve, max_num_batched_tokens=9, **options)
    asked = {}
    for idx in range(8):
        prompt = PROMPT[: rng.randrange(0, 18)]
        asked[str(idx)] = prompt, random_continuations(rng, 8, 14)
        engine.add_request(scoring_request(prompt, asked[str(idx)][1], str(idx)))
        engine.add_request(request_of(f"g{idx}", PROMPT[:9], max_tokens=12))
    outputs = run(engine)
    for request_id, arguments in asked.items():
        reference.check(outputs[request_id], *arguments)
    if reserve == "none" and not options:
        assert engine.metrics.num_preemptions > 0
    if reserve == "max":
        assert engine.metrics.num_preemptions == 0
    engine.close()


@pytest.mark.parametrize("option", [{"max_num_seqs": 1}, {"max_num_batched_tokens": 1}, {"max_num_logit_rows": 1}])
def test_with_room_for_one_at_a_time(make_engine, run, reference, option):
    reference.check(score(make_engine(**option), run, PROMPT, TRIE), PROMPT, TRIE)


def test_what_can_never_fit_is_refused(make_engine):
    engine = make_engine(num_blocks=2, block_size=16, max_model_len=100)
    with pytest.raises(InvalidRequestError, match=r"21 tokens plus a continuation of 12 can never fit"):
        engine.add_request(scoring_request(PROMPT, [[1], [1] * 12]))
    with pytest.raises(InvalidRequestError, match=r"a continuation of 80 exceeds the context limit of 100"):
        engine.add_request(scoring_request(PROMPT, [[1] * 80]))
    unchunked = make_engine(enable_chunked_prefill=False, max_num_batched_tokens=24)
    with pytest.raises(InvalidRequestError, match=r"max_num_batched_tokens=24 and enable_chunked_prefill is off"):
        unchunked.add_request(scoring_request(PROMPT, [[1] * 5]))


@pytest.mark.parametrize(
    ("continuations", "params", "message"),
    [
        (([1],), {}, "tuple of non-empty tuples"),
        (((1,), ()), {}, "tuple of non-empty tuples"),
        ([(1,)], {}, "tuple of non-empty tuples"),
        (((1, 101),), {}, r"continuations\[0\] has 101 at position 1"),
        (((1,),), {"n": 2}, "n=2 does not go with continuations"),
        (((1,),), {"prompt_logprobs": 0}, "prompt_logprobs=0 does not go with"),
        (((1,),), {"use_beam_search": True, "temperature": 0.0}, "use_beam_search=True does not go with"),
        (((1,),), {"regex": "a"}, "a constraint=.* does not go with"),
    ],
)
def test_malformed_ones_are_refused(make_engine, continuations, params, message):
    request = Request(
        request_id="s",
        prompt_token_ids=(1,),
        sampling_params=SamplingParams(**params),
        continuations=continuations,
    )
    with pytest.raises(InvalidRequestError, match=message):
        make_engine().add_request(request)


def test_a_row_that_is_not_finite_fails_its_request_alone(make_engine, run, reference):
    engine = make_engine()
    engine.runner.nan_for.add("bad")
    engine.add_request(scoring_request(PROMPT, TRIE, "bad"))
    engine.add_request(scoring_request(PROMPT, TRIE, "good"))
    outputs = run(engine)
    assert isinstance(outputs["bad"].error, RequestFailedError)
    assert outputs["bad"].continuations is None
    reference.check(outputs["good"], PROMPT, TRIE)
    assert engine.cache.num_private_blocks == 0


@pytest.mark.parametrize("overlap_schedule", [True, False, "pipelined"])
@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_a_failing_step_or_an_abort_ends_it_at_any_time(make_engine, run, reference, overlap_schedule, num_steps):
    def after_some_steps(engine: Engine) -> Engine:
        engine.add_request(scoring_request(PROMPT, TRIE))
        for _ in range(num_steps):
            engine.step()
        return engine

    options = {"overlap_schedule": overlap_schedule, "max_num_batched_tokens": 9}
    aborted = after_some_steps(make_engine(**options))
    aborted.abort_request("s")
    failed = after_some_steps(make_engine(**options))
    failed.runner.fail_next = RuntimeError("injected")
    for engine, kind in ((aborted, RequestAbortedError), (failed, RequestFailedError)):
        (output,) = run(engine).values()
        assert isinstance(output.error, kind)
        assert engine.cache.num_private_blocks == 0
        reference.check(score(engine, run, PROMPT, TRIE), PROMPT, TRIE)
        engine.close()


def test_partial_blocks_of_branches_are_not_kept(make_engine, run):
    engine = make_engine(num_blocks=64)
    score(engine, run, PROMPT, [[first, 50, 60] for first in range(30)])
    assert engine.cache.num_tree_blocks == 2


def test_the_trace_names_every_branch(make_engine, run):
    engine = make_engine()
    recorder = engine.start_trace("fake")
    score(engine, run, PROMPT, TRIE)
    steps = recorder.trace.steps
    assert [[part.sample_idx for part in step.parts] for step in steps] == [[0], [0, 3, 2]]
    assert [ended.reason for step in steps for ended in step.finished] == ["scored"] * 3
