"""The engine's promises, one by one, with exact figures."""

from __future__ import annotations

import logging
import math

import pytest

from ramet.runtime.errors import InvalidRequestError, RequestAbortedError, RequestFailedError
from ramet.runtime.outputs import FinishReason, RequestOutput
from ramet.runtime.sampler import Sampler
from ramet.runtime.sampler_native import NativeSampler
from ramet.runtime.sampler_numpy import NumpySampler


def tokens(first: int, length: int) -> list[int]:
    return [(first + 7 * idx) % 99 for idx in range(length)]


def test_questions_behind_one_prefix_compute_it_once(make_engine, request_of, run):
    engine = make_engine(num_blocks=400)
    prefix = tokens(1, 1024)
    questions = [[idx, *tokens(idx, 11)] for idx in range(64)]
    for idx, question in enumerate(questions):
        engine.add_request(request_of(str(idx), prefix + question, max_tokens=4, ignore_eos=True))
    outputs = run(engine)
    assert len(outputs) == 64
    assert sum(output.metrics.num_computed_prompt_tokens for output in outputs.values()) == 1024 + 64 * 12
    assert engine.metrics.num_cached_tokens == 63 * 1024


@pytest.mark.parametrize("prefix_len", range(33, 50))
def test_fork_computes_the_prefix_once_and_copies_one_block_each(make_engine, request_of, run, prefix_len):
    engine = make_engine()
    prefix = tokens(5, prefix_len)
    for idx in range(8):
        engine.add_request(request_of(str(idx), [*prefix, idx, 50 + idx], shared_prefix_len=prefix_len))
    outputs = run(engine)
    assert sum(output.metrics.num_computed_prompt_tokens for output in outputs.values()) == prefix_len + 8 * 2
    assert engine.runner.num_copied_blocks == (7 if prefix_len % 16 else 0)


@pytest.mark.parametrize("prompt_len", [1, 15, 16, 17, 40])
def test_parallel_samples_share_the_prompt(make_engine, request_of, run, prompt_len):
    engine = make_engine()
    engine.add_request(
        request_of(
            "a", tokens(2, prompt_len), n=4, temperature=1.0, seed=3, ignore_eos=True, shared_prefix_len=prompt_len
        )
    )
    (output,) = run(engine).values()
    assert [completion.index for completion in output.outputs] == [0, 1, 2, 3]
    assert len({tuple(completion.token_ids) for completion in output.outputs}) == 4
    # The last token of the prompt is computed by every sample, for its logits.
    assert output.metrics.num_computed_prompt_tokens == prompt_len + 3


def test_six_turns_compute_only_what_is_new(make_engine, request_of, run):
    engine = make_engine(num_blocks=100)
    history = tokens(1, 21)
    computed_before = 0
    for turn in range(6):
        engine.add_request(request_of(str(turn), history, max_tokens=13, ignore_eos=True))
        (output,) = run(engine).values()
        # The previous turn's last token was sampled but never computed; it and the user's message are new.
        assert output.num_cached_tokens == computed_before
        assert output.metrics.num_computed_prompt_tokens == len(history) - computed_before
        computed_before = len(history) + 12
        history = history + output.outputs[0].token_ids + tokens(turn + 30, 9)


def test_a_finished_sequence_leaves_at_once_and_a_new_one_joins_the_next_step(make_engine, request_of):
    engine = make_engine(enable_prefix_caching=False, max_num_seqs=3)
    # Orca's figure: four requests, three slots; eight steps where request-level batching takes eleven.
    for name, length in zip("ABCD", (6, 4, 8, 3), strict=True):
        engine.add_request(request_of(name, tokens(ord(name), 1), max_tokens=length, ignore_eos=True))
    finished = {}
    num_steps = 0
    while engine.has_work:
        num_steps += 1
        for chunk in engine.step():
            if chunk.output is not None:
                finished[chunk.request_id] = num_steps
    assert num_steps == 8
    assert finished == {"B": 4, "A": 6, "D": 7, "C": 8}


def test_running_decodes_are_in_every_step(make_engine, request_of, run):
    engine = make_engine(num_blocks=200, max_num_batched_tokens=16, max_num_seqs=8)
    for idx in range(3):
        engine.add_request(request_of(f"decode{idx}", tokens(idx, 2), max_tokens=40, ignore_eos=True))
    engine.step()
    engine.add_request(request_of("long", tokens(60, 300), max_tokens=2, ignore_eos=True))
    run(engine)
    batches = engine.runner.batches
    assert all(sum(num_tokens for _, _, num_tokens in batch) <= 16 for batch in batches)
    for idx in range(3):
        steps = [step for step, batch in enumerate(batches) if any(name == f"decode{idx}" for name, _, _ in batch)]
        assert steps == list(range(40))
    assert [num for batch in batches for name, _, num in batch if name == "long"][:3] == [13, 13, 13]


@pytest.mark.parametrize("budget", [{"max_num_batched_tokens": 3}, {"max_num_logit_rows": 3}])
def test_no_more_run_than_every_step_has_room_for(make_engine, request_of, run, budget):
    engine = make_engine(**budget)
    for idx in range(6):
        engine.add_request(request_of(str(idx), tokens(idx * 11, 1), max_tokens=10, ignore_eos=True))
    run(engine)
    for idx in range(6):
        steps = [
            step for step, batch in enumerate(engine.runner.batches) if any(name == str(idx) for name, _, _ in batch)
        ]
        assert steps == list(range(steps[0], steps[0] + 10))


def test_preemption_recomputes_and_says_so(make_engine, request_of, run, caplog):
    prompts = {str(idx): tokens(idx * 11, 20) for idx in range(4)}
    big = make_engine(num_blocks=100)
    small = make_engine(num_blocks=8, schedule_conservativeness=0.0)
    for engine in (big, small):
        for name, prompt in prompts.items():
            engine.add_request(request_of(name, prompt, max_tokens=30, ignore_eos=True))
    expected = run(big)
    with caplog.at_level(logging.WARNING):
        actual = run(small)
    assert small.metrics.num_preemptions > 0
    assert {name: out.outputs[0].token_ids for name, out in actual.items()} == {
        name: out.outputs[0].token_ids for name, out in expected.items()
    }
    warnings = [record.getMessage() for record in caplog.records if "preempted by recompute" in record.getMessage()]
    assert len(warnings) == small.metrics.num_preemptions
    assert f"(preemption number {len(warnings)})" in warnings[-1]
    assert sum(out.metrics.num_preemptions for out in actual.values()) == len(warnings)


def test_reserve_max_never_preempts(make_engine, request_of, run):
    engine = make_engine(num_blocks=8, reserve="max")
    for idx in range(6):
        engine.add_request(request_of(str(idx), tokens(idx * 11, 20), max_tokens=30, ignore_eos=True))
    assert len(run(engine)) == 6
    assert engine.metrics.num_preemptions == 0


def test_abort_frees_within_one_step(make_engine, request_of):
    engine = make_engine()
    engine.add_request(request_of("waiting", tokens(1, 5)))
    engine.abort_request("waiting")
    (chunk,) = engine.step()
    assert isinstance(chunk.output.error, RequestAbortedError)
    assert chunk.output.outputs[0].finish_reason is FinishReason.ABORT
    engine.add_request(request_of("running", tokens(1, 40), max_tokens=100, n=2))
    for _ in range(4):
        engine.step()
    assert engine.cache.num_private_blocks > 0
    engine.abort_request("running")
    engine.step()
    assert engine.cache.num_private_blocks == 0
    assert not engine.has_work


def test_a_failing_step_fails_only_what_it_computed(make_engine, request_of, run):
    engine = make_engine(max_num_seqs=1)
    engine.add_request(request_of("first", tokens(1, 5)))
    engine.add_request(request_of("second", tokens(9, 5)))
    engine.runner.fail_next = RuntimeError("broken kernel")
    outputs = run(engine)
    assert isinstance(outputs["first"].error, RequestFailedError)
    assert "broken kernel" in str(outputs["first"].error)
    assert outputs["second"].error is None
    assert len(outputs["second"].outputs[0].token_ids) > 0


def test_nan_logits_fail_only_their_request(make_engine, request_of, run):
    engine = make_engine()
    expected = make_engine()
    engine.runner.nan_for.add("bad")
    for name, first in (("good", 1), ("bad", 5), ("fine", 9)):
        engine.add_request(request_of(name, tokens(first, 5), n=2 if name == "bad" else 1))
        if name != "bad":
            expected.add_request(request_of(name, tokens(first, 5)))
    outputs = run(engine)
    reference = run(expected)
    assert isinstance(outputs["bad"].error, RequestFailedError)
    for name in ("good", "fine"):
        assert outputs[name].outputs[0].token_ids == reference[name].outputs[0].token_ids


@pytest.mark.parametrize(
    ("prompt", "fields", "message"),
    [
        ([], {}, "prompt is empty"),
        ([101], {}, r"101 at position 0.*0 to 100"),
        ([3, -1], {}, r"-1 at position 1"),
        ([3, True], {}, "True"),
        ([1] * 4000, {"max_tokens": 97}, r"4000 tokens plus max_tokens=97 exceeds the context limit of 4096"),
        ([1] * 1000, {"max_tokens": 25}, r"1024 tokens: raise kv_cache_memory"),
        ([1], {"stop_token_ids": [500]}, "stop_token_ids has 500"),
        ([1], {"logit_bias": {500: 1.0}}, "logit_bias has 500"),
        ([1], {"shared_prefix_len": 2}, "shared_prefix_len=2"),
    ],
)
def test_what_can_never_run_is_refused_at_submit(make_engine, request_of, run, prompt, fields, message):
    engine = make_engine(num_blocks=64)
    with pytest.raises(InvalidRequestError, match=message):
        engine.add_request(request_of("bad", prompt, **fields))
    engine.add_request(request_of("good", [1, 2, 3]))
    assert run(engine)["good"].error is None


def test_an_id_in_use_is_refused(make_engine, request_of):
    engine = make_engine()
    engine.add_request(request_of("a", [1]))
    with pytest.raises(InvalidRequestError, match="'a' is already in use"):
        engine.add_request(request_of("a", [1]))
    engine.step()
    with pytest.raises(InvalidRequestError, match="'a' is already in use"):
        engine.add_request(request_of("a", [1]))


@pytest.mark.parametrize("prompt_len", [15, 16, 17, 31, 32, 33, 47])
def test_prompt_logprobs_are_the_same_from_the_cache(make_engine, request_of, run, prompt_len):
    prompt = tokens(4, prompt_len)
    cold = make_engine()
    cold.add_request(request_of("a", prompt, prompt_logprobs=3))
    expected = run(cold)["a"].prompt_logprobs
    assert expected[0] is None
    assert len(expected) == prompt_len

    # Blocks are there, but nobody asked for logprobs when they were computed.
    warm = make_engine()
    warm.add_request(request_of("plain", prompt))
    run(warm)
    warm.add_request(request_of("a", prompt, prompt_logprobs=3))
    first = run(warm)["a"]
    assert first.prompt_logprobs == expected
    # Now they are kept: only the last token is computed, and the one before it for the last one's logprob.
    warm.add_request(request_of("b", prompt, prompt_logprobs=2))
    second = run(warm)["b"]
    assert second.metrics.num_computed_prompt_tokens == 2
    assert [entry and set(entry) for entry in second.prompt_logprobs] == [
        entry and {token for token, logprob in entry.items() if logprob.rank <= 2 or token == prompt[position]}
        for position, entry in enumerate(expected)
    ]


def test_prompt_logprobs_of_requests_that_arrive_together_share_the_prefix(make_engine, request_of, run):
    prefix = tokens(4, 64)
    engine = make_engine()
    for idx in range(6):
        engine.add_request(request_of(str(idx), [*prefix, idx, idx + 1], prompt_logprobs=0))
    outputs = run(engine)
    computed = sum(output.metrics.num_computed_prompt_tokens for output in outputs.values())
    # Each later one computes its own two tokens, and the prefix's last one again for the logits after it.
    assert computed == 66 + 5 * 3
    for idx in range(6):
        alone = make_engine()
        alone.add_request(request_of("x", [*prefix, idx, idx + 1], prompt_logprobs=0))
        assert run(alone)["x"].prompt_logprobs == outputs[str(idx)].prompt_logprobs


def test_logprobs_from_a_position_leave_the_prefix_cached(make_engine, request_of, run):
    prompt = tokens(4, 70)
    engine = make_engine()
    engine.add_request(request_of("plain", prompt[:66]))
    run(engine)
    engine.add_request(request_of("scored", prompt, prompt_logprobs=0, prompt_logprobs_start=64))
    output = run(engine)["scored"]
    assert output.num_cached_tokens == 63
    assert [entry is not None for entry in output.prompt_logprobs] == [False] * 64 + [True] * 6


def test_tokens_of_other_namespaces_are_never_shared(make_engine, request_of, run):
    engine = make_engine()
    prompt = tokens(4, 40)
    for name, namespace in (("a", "one"), ("b", "two"), ("c", "one")):
        engine.add_request(request_of(name, prompt, cache_namespace=namespace))
        cached = run(engine)[name].num_cached_tokens
        assert cached == (39 if name == "c" else 0)


def test_stop_token_is_not_in_the_text(make_engine, request_of, run):
    probe = make_engine()
    probe.add_request(request_of("a", [1, 2, 3], max_tokens=6, ignore_eos=True))
    first = run(probe)["a"].outputs[0]
    assert first.finish_reason is FinishReason.LENGTH
    stop_token = first.token_ids[3]
    engine = make_engine()
    engine.add_request(request_of("a", [1, 2, 3], max_tokens=6, ignore_eos=True, stop_token_ids=[stop_token]))
    output = run(engine)["a"].outputs[0]
    end = first.token_ids.index(stop_token)
    assert output.token_ids == first.token_ids[: end + 1]
    assert output.finish_reason is FinishReason.STOP
    assert output.stop_reason == stop_token
    assert output.text == first.text[:end]
    assert output.num_text_tokens == end


@pytest.mark.compiler
def test_the_native_sampler_gives_the_same_outputs(make_engine, request_of, run, sampling_kernels):
    def outputs_with(sampler: Sampler) -> dict[str, RequestOutput]:
        engine = make_engine(num_blocks=200, eos_bias=2.0, sampler=sampler)
        for idx in range(12):
            knobs = [{"temperature": 0.0}, {"top_p": 0.9}, {"top_k": 5}, {"presence_penalty": 1.0}][idx % 4]
            fields = {"temperature": 1.0, "logprobs": 2, "prompt_logprobs": idx % 3, "min_tokens": idx % 5} | knobs
            engine.add_request(request_of(str(idx), tokens(idx % 5, 20 + idx), max_tokens=30, seed=idx, **fields))
        return run(engine)

    native, plain = outputs_with(NativeSampler(sampling_kernels(None, 2))), outputs_with(NumpySampler())
    for name, output in plain.items():
        mine, theirs = native[name].outputs[0], output.outputs[0]
        assert (mine.token_ids, mine.text, mine.finish_reason) == (theirs.token_ids, theirs.text, theirs.finish_reason)
        assert mine.cumulative_logprob == pytest.approx(theirs.cumulative_logprob, abs=1e-9)
        assert [entry and list(entry) for entry in native[name].prompt_logprobs] == [
            entry and list(entry) for entry in output.prompt_logprobs
        ]


def test_an_abort_of_a_finished_request_does_not_reach_the_next_one_of_its_name(make_engine, request_of, run):
    engine = make_engine()
    engine.add_request(request_of("a", [1, 2, 3]))
    run(engine)
    engine.abort_request("a")
    engine.add_request(request_of("a", [1, 2, 3]))
    assert run(engine)["a"].error is None


@pytest.mark.parametrize("chunk", [512, 16])
def test_what_is_not_finite_reaches_no_later_request(make_engine, request_of, run, chunk):
    engine = make_engine(max_num_batched_tokens=chunk)
    engine.runner.nan_for = {"bad"}
    engine.add_request(request_of("bad", tokens(1, 40), prompt_logprobs=1))
    assert "not finite" in str(run(engine)["bad"].error)
    assert engine.cache.num_tree_blocks == 0
    engine.add_request(request_of("good", tokens(1, 40), prompt_logprobs=1, max_tokens=3))
    (output,) = run(engine).values()
    assert output.error is None
    assert output.num_cached_tokens == 0
    noted = [entry.logprob for listing in output.prompt_logprobs[1:] for entry in listing.values()]
    assert all(math.isfinite(logprob) for logprob in noted)
