"""A request whose numbers are not finite fails alone, whichever of its parts shows it, and leaves nothing behind."""

from __future__ import annotations

import ctypes
import importlib.util
from typing import Any

import pytest

from ramet.runtime.errors import RequestFailedError
from ramet.runtime.request import Request
from ramet.sampling_params import SamplingParams

ORDERS = (False, True, "pipelined")
BAD_TOKEN = 96
NO_TRITON = importlib.util.find_spec("triton") is None


def tokens(first: int, length: int) -> list[int]:
    return [(first + 7 * idx) % 90 for idx in range(length)]


def is_bad(output: Any) -> bool:
    return isinstance(output.error, RequestFailedError) and "not finite" in str(output.error)


@pytest.fixture(scope="module")
def model_dir(make_tiny_model, tmp_path_factory):
    """A model with one token whose embedding is NaN."""
    model = make_tiny_model(seed=3)
    model.tensors["model.embed_tokens.weight"][BAD_TOKEN] = float("nan")
    return model.save(tmp_path_factory.mktemp("nan") / "model")


@pytest.mark.parametrize(
    ("kernels", "is_overlapping"),
    [
        ("reference", False),
        ("torch", False),
        ("torch", True),
        pytest.param("triton", False, marks=pytest.mark.skipif(NO_TRITON, reason="Triton runs on Linux only")),
        pytest.param("triton", True, marks=pytest.mark.skipif(NO_TRITON, reason="Triton runs on Linux only")),
    ],
)
def test_a_bad_token_behind_a_shared_prefix_does_not_spoil_it(
    model_dir, load_runner, engine_over, request_of, run, kernels, is_overlapping
):
    """The good tokens before it are in the same chunk, which is not the last one. Masked, it still makes them NaN."""
    prefix = tokens(1, 20)
    good = request_of("good", [*prefix, 50, 51, 52], max_tokens=3, ignore_eos=True)
    outputs = []
    for others in ([request_of("bad", [*prefix, BAD_TOKEN, *tokens(5, 40)], max_tokens=2)], []):
        engine = engine_over(
            load_runner(model_dir, kernels, num_blocks=20),
            max_num_batched_tokens=32,
            overlap_schedule=is_overlapping,
        )
        finished = {}
        for request in (*others, good):
            engine.add_request(request)
            finished |= run(engine)
        outputs.append(finished)
    assert is_bad(outputs[0]["bad"])
    assert outputs[0]["good"].error is None
    assert outputs[0]["good"].outputs == outputs[1]["good"].outputs


@pytest.mark.parametrize(
    "kernels",
    [
        "reference",
        "torch",
        pytest.param("cpu", marks=pytest.mark.compiler),
        pytest.param(
            "triton",
            marks=[pytest.mark.slow, pytest.mark.skipif(NO_TRITON, reason="Triton runs on Linux only")],
        ),
    ],
)
def test_blocks_full_of_rubbish_are_as_good_as_new(
    make_tiny_model, tmp_path_factory, load_runner, engine_over, request_of, run, kernels
):
    """Every slot is as bad as a failed request can leave it before anybody gets it: NaN, or as much as the C++ kernels
    store. What a block holds behind the tokens of its owner is read by nobody."""
    path = make_tiny_model(seed=3).save(tmp_path_factory.mktemp("rubbish") / "model")
    outputs = []
    for is_rubbish in (False, True):
        loaded = load_runner(path, kernels, num_blocks=12)
        if is_rubbish and kernels == "cpu":
            ctypes.memset(loaded.runner._kv_data, 0x53, 12 * loaded.runner.bytes_per_block)  # 0.8 * 2**40 in bf16
        elif is_rubbish:
            for layer in loaded.runner.kv_cache.layers:
                for cache in layer:
                    cache.fill_(float("nan"))
        engine = engine_over(loaded, max_num_batched_tokens=40)
        for idx, length in enumerate((5, 19, 33)):
            fields = {"prompt_logprobs": 1} if idx == 1 else {"logprobs": 1}
            engine.add_request(request_of(str(idx), tokens(idx, length), max_tokens=6, ignore_eos=True, **fields))
        engine.add_request(request_of("beams", tokens(7, 21), max_tokens=4, use_beam_search=True, n=2))
        finished = run(engine)
        outputs.append({name: (output.outputs, output.prompt_logprobs) for name, output in finished.items()})
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("fields", [{}, {"prompt_logprobs": 1, "prompt_logprobs_start": 70}, {"n": 2, "logprobs": 1}])
@pytest.mark.parametrize("options", [{}, {"max_num_logit_rows": 2}, {"max_num_seqs": 2, "batching": "prefill-first"}])
def test_a_part_that_is_not_sampled_is_looked_at(make_engine, request_of, run, order, fields, options):
    """The second of five parts of "bad" is bad: nothing behind the first one is committed, and nothing computed."""
    engine = make_engine(overlap_schedule=order, max_num_batched_tokens=16, block_size=4, **options)
    engine.runner.nan_at.add(("bad", 31))
    engine.add_request(request_of("bad", tokens(1, 80), temperature=1.0, **fields))
    output = run(engine)["bad"]
    assert is_bad(output)
    assert engine.runner.num_computed_tokens - engine.metrics.num_wasted_tokens == 32
    assert engine.cache.num_private_blocks == 0
    assert engine.cache.num_tree_blocks == engine.cache.num_evictable_blocks == 4


@pytest.mark.parametrize("order", ORDERS)
def test_so_is_what_beams_and_branches_compute_of_their_prompt(make_engine, request_of, run, order):
    engine = make_engine(num_blocks=200, overlap_schedule=order, max_num_batched_tokens=16, block_size=4)
    engine.add_request(request_of("beams", tokens(1, 80), use_beam_search=True, best_of=2, n=1))
    engine.add_request(
        Request(
            request_id="branches",
            prompt_token_ids=tuple(tokens(3, 80)),
            sampling_params=SamplingParams(),
            continuations=((1, 2), (3,)),
        )
    )
    engine.runner.nan_at = {(name, position) for name in ("beams", "branches") for position in range(16, 60)}
    outputs = run(engine)
    assert is_bad(outputs["beams"])
    assert is_bad(outputs["branches"])
    assert engine.cache.num_private_blocks == 0
    assert engine.cache.num_tree_blocks < 20  # what both have before the bad part, and nothing behind


@pytest.mark.parametrize("order", ORDERS)
def test_so_is_recompute(make_engine, request_of, run, order):
    """Three outgrow the pool; the one that loses its blocks computes its tokens again, in parts."""
    options: dict[str, Any] = {"num_blocks": 7, "schedule_conservativeness": 0.0, "max_num_batched_tokens": 20}
    engine = make_engine(overlap_schedule=order, enable_prefix_caching=False, **options)
    for idx in range(3):
        engine.add_request(request_of(str(idx), tokens(idx, 16), max_tokens=40, ignore_eos=True))
    outputs: dict[str, Any] = {}
    while engine.has_work:
        outputs |= {chunk.request_id: chunk.output for chunk in engine.step() if chunk.output is not None}
        for sequence in engine.scheduler.waiting:
            if sequence.num_preemptions:
                first_part_end = min(19, sequence.num_lost_tokens - 2)
                bad = sequence.request.request_id
                engine.runner.nan_at = {(bad, position) for position in range(first_part_end + 1)}
    assert engine.metrics.num_preemptions
    assert {name for name, output in outputs.items() if is_bad(output)} == {bad}
    assert {name for name, output in outputs.items() if output.error is None} == {"0", "1", "2"} - {bad}


@pytest.mark.parametrize("order", ORDERS)
def test_so_is_a_part_behind_which_tokens_turn_out_to_be_forced(make_engine, request_of, run, order):
    """In the pipelined order, where it was to be sampled when it was planned. In the others it is none of its own."""
    params = {"max_tokens": 30, "ignore_eos": False, "regex": "[ab]cdefgh[ab]cdefgh"}
    counts = []
    for bad_position in (None, 20):
        engine = make_engine(overlap_schedule=order)
        if bad_position is not None:
            engine.runner.nan_at.add(("a", bad_position))
        engine.add_request(request_of("a", tokens(1, 20), **params))
        output = run(engine)["a"]
        assert is_bad(output) == (bad_position is not None and order == "pipelined")
        counts.append(engine.metrics.num_forced_tokens)
    assert counts[0] > 0


@pytest.mark.parametrize("order", ORDERS)
def test_no_listing_is_made_of_a_bad_row(make_engine, request_of, run, order):
    """With a window the last row of a part may be good although one before it is not."""
    engine = make_engine(overlap_schedule=order)
    engine.runner.nan_at.add(("bad", 5))
    engine.add_request(request_of("bad", tokens(1, 20), prompt_logprobs=1))
    engine.add_request(request_of("good", tokens(3, 20), prompt_logprobs=1))
    outputs = run(engine)
    assert is_bad(outputs["bad"])
    assert outputs["good"].error is None
    assert engine.cache.num_private_blocks == 0


@pytest.mark.parametrize("order", ORDERS)
def test_one_row_of_logits_a_step_is_enough_for_everybody(make_engine, request_of, run, order):
    """Chunks take the one row there is; nothing changes for what comes out, prompt logprobs included."""
    outputs = []
    for options in ({}, {"max_num_logit_rows": 1, "max_num_batched_tokens": 8}):
        engine = make_engine(overlap_schedule=order, **options)
        for idx in range(3):
            fields = {"prompt_logprobs": 1, "prompt_logprobs_start": 17} if idx == 1 else {}
            engine.add_request(request_of(str(idx), tokens(idx, 30), max_tokens=4, ignore_eos=True, **fields))
        finished = run(engine)
        outputs.append({name: (output.outputs, output.prompt_logprobs) for name, output in finished.items()})
    assert outputs[0] == outputs[1]
    assert outputs[0]["1"][1][16] is None
