"""What raises for one sequence only, its grammar or its text, fails its request; nothing is computed again for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ramet.radix.errors import CacheUsageError
from ramet.runtime.errors import RequestFailedError
from ramet.runtime.request import Request
from ramet.sampling_params import SamplingParams

ORDERS = (False, True, "pipelined")


def tokens(first: int, length: int) -> list[int]:
    return [(first + 7 * idx) % 90 for idx in range(length)]


class BreakingState:
    """A state of a grammar that raises when it is asked something for the n-th time, whichever fork of it is."""

    def __init__(self, inner: Any, breaking: BreakingGrammar) -> None:
        self._inner, self._breaking = inner, breaking

    def __getattr__(self, name: str) -> Any:
        self._breaking.count(name)
        if name == "fork":
            return lambda: BreakingState(self._inner.fork(), self._breaking)
        return getattr(self._inner, name)


class BreakingGrammar:
    """Raises at the n-th question of a name."""

    num_bytes = 0

    def __init__(self, inner: Any, name: str, count: int) -> None:
        self._inner, self._name, self._num_left = inner, name, count

    def count(self, name: str) -> None:
        if name == self._name:
            self._num_left -= 1
            if self._num_left == 0:
                raise RuntimeError(f"broken at {name}")

    @property
    def is_broken(self) -> bool:
        return self._num_left <= 0

    def new_state(self) -> Any:
        self.count("new_state")
        return BreakingState(self._inner.new_state(), self)

    def ending(self) -> Any:
        return self._inner.ending()


FIELDS: list[dict[str, Any]] = [
    {"on_incomplete": "close", "max_tokens": 30},
    {"logprobs": 1, "max_tokens": 12, "on_incomplete": "close"},
    {"n": 2, "temperature": 1.0, "max_tokens": 12},
    {"use_beam_search": True, "n": 2, "max_tokens": 8},
]
QUESTIONS = ["new_state", "fork", "try_accept", "allows", "fill_mask", "forced_tokens", "is_accepting", "is_finished"]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("fields", FIELDS)
def test_a_grammar_that_raises_fails_its_request_alone(make_engine, request_of, run, order, name, fields):
    good = [
        request_of("text", tokens(1, 20), max_tokens=20, ignore_eos=True, prompt_logprobs=1),
        request_of("regex", tokens(2, 20), regex="(abc|abd)+[0-9]{2,6}", max_tokens=20, seed=1),
    ]
    alone = make_engine(overlap_schedule=order)
    for request in good:
        alone.add_request(request)
    expected = run(alone)
    num_broken = 0
    for count in (1, 2, 5, 9):
        engine = make_engine(overlap_schedule=order)
        engine.add_request(good[0])
        bad = engine.prepare(request_of("bad", tokens(3, 20), regex="ab(c|d)[a-z]+END", ignore_eos=False, **fields))
        grammar = BreakingGrammar(bad.grammar, name, count)
        engine._new_requests["bad"] = replace(bad, grammar=grammar)
        engine.add_request(good[1])
        outputs = run(engine)
        for request in good:
            assert outputs[request.request_id].outputs == expected[request.request_id].outputs
            assert outputs[request.request_id].prompt_logprobs == expected[request.request_id].prompt_logprobs
        if grammar.is_broken:
            num_broken += 1
            assert isinstance(outputs["bad"].error, RequestFailedError)
            assert f"broken at {name}" in str(outputs["bad"].error)
            assert isinstance(outputs["bad"].error.__cause__, RuntimeError)
        assert engine.metrics.num_failed_steps == 0
        assert engine.cache.num_private_blocks == 0
        assert not engine.has_work
        engine.close()
    assert num_broken or name in ("forced_tokens", "fork", "allows", "new_state", "is_finished")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "fields", [{}, {"n": 3, "temperature": 1.0}, {"logprobs": 2}, {"use_beam_search": True, "n": 2}]
)
def test_a_token_that_has_no_text_fails_its_request_alone(make_engine, request_of, run, monkeypatch, order, fields):
    engine = make_engine(overlap_schedule=order)
    broken = range(ord("a") - 33, ord("f") - 33 + 1)
    bias = dict.fromkeys(broken, -100.0)
    engine.add_request(request_of("good", tokens(1, 20), max_tokens=9, ignore_eos=True, logit_bias=bias))
    engine.add_request(request_of("bad", tokens(2, 20), max_tokens=9, regex="[a-f]{3,9}", **fields))
    plain = engine.tokenizer.token_bytes

    def token_bytes(token_id: int) -> bytes:
        if token_id in broken:
            raise KeyError("no such token")
        return plain(token_id)

    monkeypatch.setattr(engine.tokenizer, "token_bytes", token_bytes)
    outputs = run(engine)
    assert isinstance(outputs["bad"].error.__cause__, KeyError)
    assert outputs["good"].error is None
    assert len(outputs["good"].outputs[0].token_ids) == 9
    assert engine.cache.num_private_blocks == 0


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["logprobs", "token_logprobs"])
def test_logprobs_that_cannot_be_read_fail_their_request_alone(make_engine, request_of, run, monkeypatch, order, name):
    engine = make_engine(overlap_schedule=order)
    requests = [
        request_of("good", tokens(1, 20), max_tokens=9, ignore_eos=True),
        request_of("logprobs", tokens(2, 20), max_tokens=9, prompt_logprobs=1),
        Request(
            request_id="token_logprobs",
            prompt_token_ids=tuple(tokens(3, 20)),
            sampling_params=SamplingParams(),
            continuations=((1, 2), (3,)),
        ),
    ]

    def fail(*args: Any) -> Any:
        raise RuntimeError("no logprobs")

    monkeypatch.setattr(engine.sampler, name, fail)
    for request in requests:
        engine.add_request(request)
    outputs = run(engine)
    assert [key for key, output in outputs.items() if output.error is not None] == [name]
    assert "no logprobs" in str(outputs[name].error)
    assert engine.metrics.num_failed_steps == 0
    assert engine.cache.num_private_blocks == 0


def test_what_the_cache_refuses_is_no_fault_of_a_request(make_engine, request_of, run, monkeypatch):
    engine = make_engine()
    engine.add_request(request_of("a", tokens(2, 20), prompt_logprobs=1))

    def refuse(*args: Any) -> None:
        raise CacheUsageError("the block is not in use")

    monkeypatch.setattr(engine.cache, "annotate", refuse)
    with pytest.raises(CacheUsageError):
        run(engine)
