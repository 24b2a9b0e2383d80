"""Beam search and best_of in the engine: what transformers finds, over shared blocks, however it is scheduled."""

from __future__ import annotations

import itertools

import pytest
import torch
from transformers import LlamaForCausalLM

from ramet.runtime.errors import InvalidRequestError, RequestAbortedError, RequestFailedError
from ramet.runtime.outputs import FinishReason

EOS = 100


def tokens(first: int, length: int) -> list[int]:
    return [(first + 7 * idx) % 99 for idx in range(length)]


@pytest.fixture(scope="module")
def model_dir(make_tiny_model, tmp_path_factory):
    return make_tiny_model(seed=3).save(tmp_path_factory.mktemp("beams") / "model")


@pytest.fixture(scope="module")
def reference(model_dir):
    return LlamaForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()


def expected_beams(model, prompt, *, width, n, max_tokens, **options):
    found = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        num_beams=width,
        num_return_sequences=n,
        max_new_tokens=max_tokens,
        do_sample=False,
        eos_token_id=EOS,
        pad_token_id=0,
        output_scores=True,
        return_dict_in_generate=True,
        **options,
    )
    listings = []
    for row, score in zip(found.sequences.tolist(), found.sequences_scores.tolist(), strict=True):
        generated = row[len(prompt) :]
        end = generated.index(EOS) + 1 if EOS in generated else max_tokens
        listings.append((generated[:end], score))
    return listings


@pytest.mark.parametrize(("width", "n"), [(2, 1), (3, 3), (4, 2), (8, 8)])
@pytest.mark.parametrize(
    "options",
    [{}, {"length_penalty": 0.0}, {"length_penalty": 2.0, "early_stopping": True}, {"early_stopping": "never"}],
    ids=str,
)
def test_beams_are_those_of_transformers(
    model_dir, reference, load_runner, engine_over, request_of, run, width, n, options
):
    engine = engine_over(load_runner(model_dir, "torch", num_blocks=200))
    prompts = {str(idx): tokens(idx * 13, 5 + 9 * idx) for idx in range(3)}
    for name, prompt in prompts.items():
        engine.add_request(request_of(name, prompt, n=n, best_of=width, use_beam_search=True, max_tokens=24, **options))
    outputs = run(engine)
    for name, prompt in prompts.items():
        expected = expected_beams(reference, prompt, width=width, n=n, max_tokens=24, **options)
        assert [output.token_ids for output in outputs[name].outputs] == [token_ids for token_ids, _ in expected]
        for output, (token_ids, score) in zip(outputs[name].outputs, expected, strict=True):
            length = len(token_ids) ** options.get("length_penalty", 1.0)
            assert output.cumulative_logprob / length == pytest.approx(score, rel=1e-4)
            assert output.finish_reason is (FinishReason.STOP if token_ids[-1] == EOS else FinishReason.LENGTH)
        assert [output.index for output in outputs[name].outputs] == list(range(n))
    assert engine.cache.num_private_blocks == 0


def beam_requests(request_of):
    yield request_of("beams", tokens(1, 37), n=3, best_of=4, use_beam_search=True, max_tokens=20, ignore_eos=True)
    yield request_of("other beams", tokens(1, 21), best_of=3, use_beam_search=True, max_tokens=25)
    yield request_of("samples", tokens(1, 30), n=2, best_of=5, temperature=1.0, seed=4, max_tokens=18)
    for idx in range(4):
        yield request_of(f"plain {idx}", tokens(20 * idx, 30), max_tokens=30, ignore_eos=True)


@pytest.fixture(scope="module")
def undisturbed(make_engine, request_of, run):
    outputs = {}
    for request in beam_requests(request_of):
        engine = make_engine(num_blocks=400, eos_bias=2.0)
        engine.add_request(request)
        outputs |= run(engine)
    return outputs


OPTIONS = [
    {"num_blocks": 14, "schedule_conservativeness": 0.0},
    {"num_blocks": 16, "schedule_conservativeness": 0.0, "enable_prefix_caching": False},
    {"num_blocks": 14, "overlap_schedule": True, "max_num_batched_tokens": 16},
    {"num_blocks": 14, "overlap_schedule": "pipelined", "max_num_batched_tokens": 16},
    {"num_blocks": 60, "max_num_seqs": 4},
    {"num_blocks": 20, "max_num_batched_tokens": 7, "schedule_policy": "priority"},
    {"num_blocks": 16, "reserve": "max"},
    {"num_blocks": 14, "reserve": "none"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_ranked_outputs_do_not_depend_on_the_schedule(make_engine, request_of, run, undisturbed, options):
    engine = make_engine(eos_bias=2.0, **options)
    for request in beam_requests(request_of):
        engine.add_request(request)
    outputs = run(engine)
    assert outputs.keys() == undisturbed.keys()
    for name, output in outputs.items():
        assert output.outputs == undisturbed[name].outputs
    assert engine.cache.num_private_blocks == 0
    engine.cache.reset()
    assert engine.cache.num_free_blocks == engine.cache.num_blocks


def test_beams_share_their_common_blocks(make_engine, request_of):
    engine = make_engine(num_blocks=200)
    recorder = engine.start_trace("fake")
    engine.add_request(request_of("a", tokens(1, 64), best_of=4, use_beam_search=True, max_tokens=40, ignore_eos=True))
    while engine.has_work:
        engine.step()
    memory = [step.memory for step in recorder.trace.steps if len(step.parts) == 4]
    assert len(memory) > 30
    # A beam that is dropped is not the end of anything.
    assert [len(step.finished) for step in recorder.trace] == [0] * (len(recorder.trace) - 1) + [1]
    assert recorder.trace[-1].finished[0].reason == "length"
    # The prompt's four blocks are held once by all four beams.
    assert all(each.num_table_blocks - each.num_used_blocks >= 3 * 4 for each in memory)


@pytest.mark.parametrize("num_steps", range(1, 9))
def test_an_aborted_search_gives_everything_back(make_engine, request_of, num_steps):
    engine = make_engine(num_blocks=60, max_num_batched_tokens=16)
    engine.add_request(
        request_of("a", tokens(1, 40), n=2, best_of=4, use_beam_search=True, max_tokens=30, ignore_eos=True)
    )
    for _ in range(num_steps):
        engine.step()
    engine.abort_request("a")
    (chunk,) = [chunk for chunk in engine.step() if chunk.output is not None]
    assert isinstance(chunk.output.error, RequestAbortedError)
    assert not engine.has_work
    assert engine.cache.num_private_blocks == 0


@pytest.mark.parametrize("budget", [20, 64])
def test_beams_that_cannot_share_end_however_often_they_are_preempted(make_engine, request_of, run, budget):
    """Each computes the whole prompt again: a pool that holds them all must do, and nobody behind them starves."""
    options = {"enable_prefix_caching": False, "reserve": "none", "max_num_batched_tokens": budget}
    engine = make_engine(num_blocks=12, **options)
    engine.add_request(request_of("plain", [1] * 70, max_tokens=100, ignore_eos=True))
    engine.add_request(
        request_of("beams", list(range(64)), best_of=2, use_beam_search=True, max_tokens=30, ignore_eos=True)
    )
    for _ in range(60):
        engine.step()
    engine.add_request(request_of("late", [5] * 10))
    outputs = run(engine, max_steps=2_000)
    assert engine.metrics.num_preemptions > 0
    assert all(output.error is None for output in outputs.values())


@pytest.mark.parametrize("fields", [{"use_beam_search": True}, {"temperature": 1.0}], ids=str)
def test_a_ranked_request_that_is_aborted_has_as_many_outputs_as_asked_for(make_engine, request_of, fields):
    engine = make_engine(num_blocks=60)
    engine.add_request(request_of("a", tokens(1, 20), n=2, best_of=4, max_tokens=30, ignore_eos=True, **fields))
    for _ in range(3):
        engine.step()
    engine.abort_request("a")
    (chunk,) = engine.step()
    assert [output.index for output in chunk.output.outputs] == [0, 1]
    assert chunk.index == 1


def test_best_of_reports_the_likeliest_samples(make_engine, request_of, run):
    fields = {"temperature": 1.0, "seed": 9, "max_tokens": 12, "ignore_eos": True}
    engine = make_engine(num_blocks=200)
    engine.add_request(request_of("all", tokens(1, 20), n=6, logprobs=0, **fields))
    engine.add_request(request_of("best", tokens(1, 20), n=2, best_of=6, **fields))
    outputs = run(engine)
    ranked = sorted(outputs["all"].outputs, key=lambda output: -output.cumulative_logprob)
    best = outputs["best"].outputs
    assert [output.token_ids for output in best] == [output.token_ids for output in ranked[:2]]
    assert [output.index for output in best] == [0, 1]
    assert [output.cumulative_logprob for output in best] == [output.cumulative_logprob for output in ranked[:2]]
    assert best[0].logprobs is None


def test_ranked_outputs_come_at_the_end_in_one_chunk_each(make_engine, request_of):
    engine = make_engine(num_blocks=200)
    engine.add_request(request_of("a", tokens(1, 20), n=3, best_of=5, use_beam_search=True, max_tokens=9))
    chunks = list(itertools.chain.from_iterable(engine.step() for _ in range(30)))
    assert [chunk.index for chunk in chunks] == [0, 1, 2]
    assert [chunk.output is None for chunk in chunks] == [True, True, False]
    assert [chunk.text for chunk in chunks] == [output.text for output in chunks[-1].output.outputs]


@pytest.mark.parametrize("num_failures", [0, 1, 9])
def test_a_step_that_fails_may_have_copied_for_forks_or_not(make_engine, request_of, run, num_failures):
    """The beams are in no part of it. They copy again; what they copied from may be somebody else's by then."""
    engine = make_engine(num_blocks=100, batching="prefill-first")
    engine.add_request(request_of("beams", tokens(1, 20), best_of=4, use_beam_search=True, max_tokens=9))
    engine.step()
    assert len(engine.scheduler.running) == 4
    engine.add_request(request_of("prompt", tokens(50, 30), max_tokens=3))
    engine.runner.fail("prompt", num_failures)
    outputs = run(engine)
    assert (outputs["prompt"].error is not None) == (num_failures == 9)
    alone = make_engine(num_blocks=100)
    alone.add_request(request_of("beams", tokens(1, 20), best_of=4, use_beam_search=True, max_tokens=9))
    assert outputs["beams"].outputs == run(alone)["beams"].outputs
    assert engine.cache.num_private_blocks == 0


def test_a_search_over_logits_that_are_not_numbers_fails_alone(make_engine, request_of, run):
    engine = make_engine(num_blocks=100)
    engine.runner.nan_for = {"bad"}
    for name in ("bad", "good"):
        engine.add_request(request_of(name, tokens(len(name), 20), best_of=4, use_beam_search=True, max_tokens=9))
    outputs = run(engine)
    assert isinstance(outputs["bad"].error, RequestFailedError)
    assert "not finite" in str(outputs["bad"].error)
    assert outputs["good"].error is None
    assert engine.cache.num_private_blocks == 0


@pytest.mark.parametrize(
    ("options", "fields", "message"),
    [
        ({"max_num_seqs": 3}, {}, "width 4 needs as many sequences"),
        ({"num_blocks": 10}, {"max_tokens": 60}, "can never fit in the KV cache of 160 tokens"),
        ({"num_blocks": 15, "enable_prefix_caching": False}, {"max_tokens": 30}, "4 beams of up to 30 tokens behind"),
    ],
)
def test_a_search_that_can_never_run_is_refused(make_engine, request_of, options, fields, message):
    engine = make_engine(**options)
    with pytest.raises(InvalidRequestError, match=message):
        engine.add_request(request_of("a", tokens(1, 20), **{"best_of": 4, "use_beam_search": True} | fields))


def test_a_search_without_a_limit_takes_what_all_its_beams_have_room_for(make_engine, request_of, run):
    engine = make_engine(num_blocks=10)
    engine.add_request(
        request_of("a", tokens(1, 20), best_of=3, use_beam_search=True, max_tokens=None, ignore_eos=True)
    )
    (output,) = run(engine).values()
    # One full block of the prompt is shared; three beams have three blocks each for 4 tokens of it and their own.
    assert len(output.outputs[0].token_ids) == 3 * 16 - 4


@pytest.mark.parametrize("order", [False, True, "pipelined"])
@pytest.mark.parametrize("max_num_seqs", [3, 8])
@pytest.mark.parametrize("num_blocks", [8, 64])
def test_tokens_of_beams_are_counted_once_whoever_waits_for_whom(
    make_engine, request_of, run, order, max_num_seqs, num_blocks
):
    """Beside another sequence there is no seat for the third beam, or no block: its siblings wait for it."""
    options = {"num_blocks": num_blocks, "max_num_seqs": max_num_seqs, "max_num_batched_tokens": 16, "block_size": 4}
    engine = make_engine(overlap_schedule=order, schedule_conservativeness=0.0, reserve="none", **options)
    engine.add_request(request_of("other", [(3 + 7 * idx) % 99 for idx in range(9)], max_tokens=20, ignore_eos=True))
    beams = {"use_beam_search": True, "n": 1, "best_of": 3, "max_tokens": 6, "ignore_eos": True}
    engine.add_request(request_of("beams", [(1 + 7 * idx) % 99 for idx in range(9)], **beams))
    assert all(output.error is None for output in run(engine).values())
    assert engine.metrics.num_generated_tokens == 20 + 15 + 1  # three after each step but the last, one at the end
