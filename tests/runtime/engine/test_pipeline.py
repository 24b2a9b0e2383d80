"""The pipelined order: a step is launched while the tokens of the one before are known to the device alone.

The device here computes nothing before it is waited for, so whatever is read too early is NaN or no token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramet.runtime.errors import RequestAbortedError, RequestFailedError
from ramet.runtime.outputs import FinishReason

from .deferred import DeferredDevice, DeferredDraw

EOS = 100
ORDERS = (False, True, "pipelined")


def tokens(first: int, length: int) -> list[int]:
    return [(first + 7 * idx) % 99 for idx in range(length)]


def contents(output: Any) -> tuple[Any, ...]:
    return output.outputs, output.prompt_logprobs, output.continuations


class Log:
    """Writes down what is launched and what is waited for: "step 2", "draw 2", "tokens 2"."""

    def __init__(self, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self._num = {"step": 0, "draw": 0}
        device = engine.runner.device
        launch_step, begin = device.launch_step, engine.sampler.begin

        def launched(*args: Any) -> Any:
            self._enter("step")
            return launch_step(*args)

        def begun(*args: Any) -> DeferredDraw:
            draw: DeferredDraw = begin(*args)
            number, wait = self._enter("draw"), draw.wait

            def waited() -> None:
                self.events.append(f"tokens {number}")
                wait()

            draw.wait = waited
            return draw

        def synchronized() -> None:
            self.events.append("synchronize")
            DeferredDevice.synchronize(device)

        monkeypatch.setattr(device, "launch_step", launched)
        monkeypatch.setattr(engine.sampler, "begin", begun)
        monkeypatch.setattr(device, "synchronize", synchronized)

    def _enter(self, name: str) -> int:
        self._num[name] += 1
        self.events.append(f"{name} {self._num[name]}")
        return self._num[name]


@pytest.mark.parametrize(
    "fields",
    [{}, {"regex": "[a-c]{40}", "ignore_eos": False}, {"repetition_penalty": 1.3, "temperature": 1.0, "logprobs": 2}],
    ids=["greedy", "constrained", "with penalties"],
)
def test_a_step_is_always_launched_before_the_tokens_it_goes_on_with_are_known(
    make_engine, request_of, run, monkeypatch, fields
):
    """While the host waits for tokens, and until it has launched the next step, the device has one to compute."""
    engine = make_engine(overlap_schedule="pipelined")
    log = Log(engine, monkeypatch)
    for idx in range(3):
        engine.add_request(request_of(str(idx), tokens(idx, 9), **{"max_tokens": 6, "ignore_eos": True} | fields))
    run(engine)
    assert log.events[:11] == [
        *("step 1", "draw 1", "step 2", "tokens 1", "draw 2", "step 3"),
        *("tokens 2", "draw 3", "step 4", "tokens 3", "draw 4"),
    ]
    assert "synchronize" not in log.events
    assert engine.metrics.num_steps == 6
    assert engine.metrics.num_wasted_tokens == 0


@pytest.mark.parametrize(
    ("fields", "num_steps"),
    [({"use_beam_search": True, "n": 2}, 5), ({"prompt_logprobs": 1}, 3)],
    ids=["beams", "prompt logprobs"],
)
def test_what_the_host_decides_is_not_overtaken(make_engine, request_of, run, monkeypatch, fields, num_steps):
    """The next plan waits for the results of such a step; those behind it go on as ever."""
    engine = make_engine(overlap_schedule="pipelined", max_num_batched_tokens=8)
    log = Log(engine, monkeypatch)
    engine.add_request(request_of("a", tokens(1, 20), max_tokens=3, ignore_eos=True, **fields))
    run(engine)
    events = [event for event in log.events if event != "synchronize"]
    in_turn = [event for number in range(1, num_steps + 1) for event in (f"step {number}", f"draw {number}")]
    assert [event for event in events if not event.startswith("tokens")][: 2 * num_steps] == in_turn
    for number in range(1, num_steps + 1):
        if f"step {number + 1}" in events:
            assert events.index(f"tokens {number}") < events.index(f"step {number + 1}")
    assert engine.metrics.num_steps == 5
    assert engine.metrics.num_wasted_tokens == 0


def cached_tokens(engine: Any) -> int:
    return sum(len(node.token_ids) + sum(map(len, node.leaves)) for node in engine.cache.tree.nodes())


@pytest.mark.parametrize(
    ("fields", "num_wasted"),
    [
        ({"ignore_eos": True}, 0),
        ({"stop_token_ids": list(range(0, 99, 2))}, 1),
        ({"stop": list("ACEGIKMOQSUWYacegikmoqsuwy")}, 2),
    ],
    ids=["length", "stop token", "stop string"],
)
def test_an_end_that_is_seen_late_wastes_a_token_a_step_and_leaves_no_trace(
    make_engine, request_of, run, fields, num_wasted
):
    outputs, engines = [], []
    for order in ORDERS:
        engine = make_engine(num_blocks=200, overlap_schedule=order)
        for idx in range(4):
            engine.add_request(request_of(str(idx), tokens(idx, 30), max_tokens=30, **fields))
        outputs.append({name: contents(output) for name, output in run(engine).items()})
        engines.append(engine)
    assert outputs[0] == outputs[1] == outputs[2]
    assert engines[2].metrics.num_wasted_tokens == 4 * num_wasted
    assert cached_tokens(engines[0]) == cached_tokens(engines[2])
    assert engines[2].cache.num_private_blocks == 0


def test_a_steered_token_voids_what_was_computed_from_the_drawn_one(make_engine, request_of, run):
    """The position is computed again with the right token; what was computed before is marked and never committed."""
    fields = {"regex": "[a-z]{3,}(END)", "on_incomplete": "close", "max_tokens": 9, "temperature": 1.0, "seed": 3}
    outputs = []
    for order in ORDERS:
        engine = make_engine(overlap_schedule=order)
        recorder = engine.start_trace("fake")
        engine.add_request(request_of("a", tokens(1, 20), logprobs=1, **fields))
        engine.add_request(request_of("b", tokens(2, 20), max_tokens=12, ignore_eos=True))
        outputs.append({name: contents(output) for name, output in run(engine).items()})
    assert outputs[0] == outputs[1] == outputs[2]
    assert outputs[2]["a"][0][0].text.endswith("END")
    wasted = [part for step in recorder.trace for part in step.parts if part.is_wasted]
    assert {part.request_id for part in wasted} == {"a"}
    assert engine.metrics.num_wasted_tokens == sum(part.num_new_tokens for part in wasted)
    kept = [
        position
        for step in recorder.trace
        for part in step.parts
        if part.request_id == "a" and not part.is_wasted
        for position in range(part.start, part.start + part.num_new_tokens)
    ]
    assert kept == list(range(20 + len(outputs[2]["a"][0][0].token_ids) - 1))
    assert any(part.start in kept for part in wasted), "nothing was steered"


def test_a_part_that_forced_tokens_follow_counts_and_is_not_sampled(make_engine, request_of, run):
    outputs = []
    for order in ORDERS:
        engine = make_engine(overlap_schedule=order)
        recorder = engine.start_trace("fake")
        engine.add_request(request_of("a", tokens(1, 20), max_tokens=60, regex="([ab]Middle){4}[a-z]"))
        (output,) = run(engine).values()
        outputs.append(contents(output))
    assert outputs[0] == outputs[1] == outputs[2]
    parts = [part for step in recorder.trace for part in step.parts]
    assert [part.is_sampled for part in parts if not part.is_wasted] == [True, *[False, True] * 4]
    assert [part.num_new_tokens for part in parts if not part.is_wasted] == [20, *[1, 6] * 4]
    assert [part.num_new_tokens for part in parts if part.is_wasted] == [1], "the end of the text is seen late"


@pytest.mark.parametrize("num_steps", range(6))
@pytest.mark.parametrize("kind", ["abort", "step", "prepare", "sampler", "not a number"])
def test_whatever_goes_wrong_when_it_takes_no_others_with_it(
    make_engine, request_of, run, monkeypatch, kind, num_steps
):
    """What "other" needs is what it needs alone; "bad" ends, and all it had is free."""
    engine = make_engine(overlap_schedule="pipelined", max_num_batched_tokens=24)
    engine.add_request(request_of("bad", tokens(1, 30), max_tokens=60, ignore_eos=True))
    for _ in range(num_steps):
        engine.step()
    match kind:
        case "abort":
            engine.abort_request("bad")
        case "step":
            engine.runner.fail_next = RuntimeError("injected")
        case "not a number":
            engine.runner.nan_for.add("bad")
        case _:
            owner, name = {"prepare": (engine.runner, "prepare"), "sampler": (engine.sampler, "begin")}[kind]
            monkeypatch.setattr(owner, name, failing_once(getattr(owner, name), monkeypatch.undo))
    outputs: dict[str, Any] = {}
    for _ in range(3):
        outputs |= {chunk.request_id: chunk.output for chunk in engine.step() if chunk.output is not None}
    engine.add_request(request_of("other", tokens(40, 30), max_tokens=12))
    outputs |= run(engine)
    assert isinstance(outputs["bad"].error, RequestAbortedError if kind == "abort" else RequestFailedError)
    alone = make_engine()
    alone.add_request(request_of("other", tokens(40, 30), max_tokens=12))
    assert contents(outputs["other"]) == contents(run(alone)["other"])
    assert not engine.has_work
    assert engine.cache.num_private_blocks == 0


def failing_once(function: Callable[..., Any], undo: Callable[[], None]) -> Callable[..., Any]:
    def fail(*args: Any) -> Any:
        undo()
        raise RuntimeError(f"injected into {function.__name__}")

    return fail


def test_an_abort_gives_everything_back_at_once(make_engine, request_of, run):
    engine = make_engine(overlap_schedule="pipelined")
    engine.add_request(request_of("a", tokens(1, 20), max_tokens=40, ignore_eos=True))
    engine.add_request(request_of("b", tokens(50, 20), max_tokens=12, ignore_eos=True))
    for _ in range(4):
        engine.step()
    engine.abort_request("a")
    (last,) = [chunk for chunk in engine.step() if chunk.request_id == "a"]
    assert last.finish_reason is FinishReason.ABORT
    assert [sequence.request.request_id for sequence in engine.scheduler.running] == ["b"]
    assert len(run(engine)["b"].outputs[0].token_ids) == 12
    assert engine.metrics.num_wasted_tokens == 2


def test_nobody_is_preempted_for_a_token_that_is_not_known(make_engine, request_of, run):
    """Three sequences outgrow the pool. Before one loses its blocks, all that is in flight is collected."""
    counts, outputs = [], []
    for order in ORDERS:
        engine = make_engine(num_blocks=7, schedule_conservativeness=0.0, overlap_schedule=order)
        for idx in range(3):
            engine.add_request(request_of(str(idx), tokens(idx, 16), max_tokens=40, ignore_eos=True))
        outputs.append({name: contents(output) for name, output in run(engine).items()})
        counts.append((engine.metrics.num_preemptions, engine.metrics.num_wasted_tokens))
    assert outputs[0] == outputs[1] == outputs[2]
    assert counts[2] == counts[0]
    assert counts[0][0] > 0


def test_the_same_prefixes_are_found(make_engine, request_of, run):
    outputs = []
    for order in ORDERS:
        engine = make_engine(num_blocks=200, max_num_batched_tokens=64, overlap_schedule=order)
        for idx in range(6):
            prompt = tokens(1, 100) + tokens(idx, 9)
            engine.add_request(request_of(str(idx), prompt, n=2, temperature=1.0, seed=idx, ignore_eos=True))
        outputs.append({name: (contents(out), out.num_cached_tokens) for name, out in run(engine).items()})
    assert outputs[0] == outputs[1] == outputs[2]


KINDS: list[dict[str, Any]] = [
    {},
    {"logprobs": 2, "min_tokens": 3},
    {"temperature": 1.0, "n": 3, "stop": ["a", "zz"]},
    {"temperature": 1.0, "best_of": 3, "n": 2},
    {"use_beam_search": True, "n": 2},
    {"prompt_logprobs": 1, "temperature": 1.0},
    {"repetition_penalty": 1.2, "presence_penalty": 0.5, "stop_token_ids": [3, 4, 5, 6]},
    {"regex": "(abc|abd)+[0-9]{2,6}(END)?", "on_incomplete": "close"},
    {"regex": "x{3,30}y", "on_incomplete": "return"},
    {"choices": ["yes", "no", "not", "A", "zz"], "temperature": 1.0},
    {"ebnf": 'root ::= "(" root ")" | [a-f]+', "temperature": 1.0, "top_k": 5},
]


@settings(max_examples=60, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_nobody_can_tell_in_which_order_the_host_works(make_engine, request_of, run, data):
    """All kinds of requests, arriving while others run, over any pool: all orders give the same."""
    options = {
        "num_blocks": data.draw(st.integers(20, 60)),
        "block_size": 4,
        "max_num_batched_tokens": data.draw(st.sampled_from([5, 16, 64])),
        "max_num_seqs": data.draw(st.sampled_from([2, 5])),
        "batching": data.draw(st.sampled_from(["continuous", "prefill-first", "request-level"])),
        "reserve": data.draw(st.sampled_from(["estimate", "max", "none"])),
        "jump_forward": data.draw(st.booleans()),
        "enable_prefix_caching": data.draw(st.booleans()),
        "schedule_policy": data.draw(st.sampled_from(["lpm", "fcfs", "program"])),
    }
    requests = [
        request_of(
            str(idx),
            tokens(data.draw(st.integers(0, 2)), data.draw(st.integers(1, 20))),
            max_tokens=data.draw(st.integers(6, 20)),
            **{"seed": idx} | data.draw(st.sampled_from(KINDS)),
        )
        for idx in range(data.draw(st.integers(1, 5)))
    ]
    delays = [data.draw(st.integers(0, 3)) for _ in requests]
    outputs = []
    for order in (False, "pipelined"):
        engine = make_engine(overlap_schedule=order, eos_bias=1.0, **options)
        ended: dict[str, Any] = {}
        for request, delay in zip(requests, delays, strict=True):
            engine.add_request(request)
            for _ in range(delay):
                ended |= {chunk.request_id: chunk.output for chunk in engine.step() if chunk.output is not None}
        ended |= run(engine)
        outputs.append({name: (contents(output), str(output.error)) for name, output in ended.items()})
        assert engine.cache.num_private_blocks == 0
    assert outputs[0] == outputs[1]


def test_a_request_that_ended_and_was_added_again_is_not_in_the_step_of_its_first_life(make_engine, request_of, run):
    """Its stop token was seen late: a step that computes it in vain is in flight, and fails."""
    engine = make_engine(overlap_schedule="pipelined")
    twice = request_of("twice", tokens(1, 9), max_tokens=40, stop_token_ids=list(range(0, 99, 9)))
    engine.add_request(request_of("other", tokens(5, 9), max_tokens=200, ignore_eos=True))
    engine.add_request(twice)
    outputs: dict[str, Any] = {}
    while "twice" not in outputs:
        outputs |= {chunk.request_id: chunk.output for chunk in engine.step() if chunk.output is not None}
    in_vain = [part.sequence.request for step in engine._in_flight for part in step.batch.scheduled]
    assert any(request is twice for request in in_vain)
    first = outputs["twice"]
    engine.add_request(twice)
    engine.runner.fail_next = RuntimeError("injected")
    outputs = run(engine)
    assert contents(outputs["twice"]) == contents(first)
    assert len(outputs["other"].outputs[0].token_ids) == 200, "it was not alone in the step: it is tried again"
    assert (engine.metrics.num_requests, engine.metrics.num_failed, engine.metrics.num_retried_sequences) == (3, 0, 1)


@pytest.mark.parametrize("is_failing", [False, True])
@pytest.mark.parametrize("num_steps", range(1, 6))
def test_closing_waits_for_all_that_was_launched(make_engine, request_of, num_steps, is_failing):
    engine = make_engine(overlap_schedule="pipelined")
    engine.add_request(request_of("a", tokens(1, 9), max_tokens=20, ignore_eos=True))
    for _ in range(num_steps):
        engine.step()
    if is_failing:
        engine.runner.fail_next = RuntimeError("injected")
    assert engine._in_flight
    engine.close()
    assert not engine._in_flight
    assert engine.runner.device.is_idle
    engine.close()
