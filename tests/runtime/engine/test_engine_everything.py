"""Random lives of engines with every option at once, over requests of every kind: each ends, leaks nothing, and gives
what it gives alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ramet.radix.retention import RetentionRange
from ramet.runtime.engine import Engine
from ramet.runtime.errors import InvalidRequestError
from ramet.runtime.outputs import RequestOutput
from ramet.runtime.policies.registry import SCHEDULE_POLICIES
from ramet.runtime.request import Request
from ramet.sampling_params import SamplingParams

NUM_ARRIVAL_STEPS = 250
CONSTRAINTS: list[dict[str, Any]] = [
    {"regex": "[a-z]{3,}"},
    {"regex": "(abc|abd)+[0-9]{2,6}(END)?"},
    {"regex": "x{3,30}y"},
    {"choices": ["yes", "no", "not", "A", "zz"]},
    {
        "json_schema": '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}',
        "json_whitespace": "compact",
    },
    {"ebnf": 'root ::= "(" root ")" | [a-f]+'},
    {"regex": "[ab]{2}(cd|ce)*", "grammar_backend": "outlines"},
]


class Life:
    """What one engine goes through. Everything is drawn from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.recorders: list[Any] = []
        self.block_size = self.random.choice([4, 16])
        self.num_blocks = self.random.randrange(12, 40) * 16 // self.block_size
        self.is_disturbed = self.random.random() < 0.5
        self.stems = [[self.random.randrange(99) for _ in range(90)] for _ in range(4)]

    def options(self) -> dict[str, Any]:
        choose = self.random.choice
        return {
            "block_size": self.block_size,
            "num_blocks": self.num_blocks,
            "schedule_policy": choose(list(SCHEDULE_POLICIES)),
            "batching": choose(["continuous"] * 3 + ["prefill-first", "request-level"]),
            "reserve": choose(["estimate", "max", "none"]),
            "overlap_schedule": choose([True, False, "pipelined", "pipelined"]),
            "jump_forward": choose([True, False]),
            "max_num_batched_tokens": choose([1, 4, 9, 24, 64, 512]),
            "max_num_seqs": choose([1, 4, 6, 256]),
            "max_num_logit_rows": choose([4, 16, 512]),
            "enable_prefix_caching": choose([True] * 4 + [False]),
            "schedule_conservativeness": choose([0.0, 0.5, 1.0]),
            "eviction_policy": choose(["lru", "slru", "priority", "lfu", "fifo"]),
            "long_prefill_token_threshold": choose([0, 0, 5]),
        }

    def request(self, request_of: Callable[..., Request], request_id: str) -> Request:
        rng = self.random
        num_slots = self.num_blocks * self.block_size
        own = [rng.randrange(99) for _ in range(rng.randrange(1, 12))]
        prompt = (rng.choice(self.stems)[: rng.randrange(90)] + own)[12 - num_slots :]
        request = request_of(
            request_id,
            prompt,
            max_tokens=rng.randrange(1, min(num_slots - len(prompt), 40) + 1),
            priority=rng.randrange(3),
            cache_namespace=rng.choice([None, None, "other"]),
            shared_prefix_len=rng.randrange(len(prompt) + 1),
            **self._constrained({"ignore_eos": rng.random() < 0.3} | self._sampling()),
        )
        if rng.random() < 0.2:
            request = self._scoring(request, num_slots)
        ranges = (
            RetentionRange(0, rng.randrange(1, 50), rng.randrange(101)),
            RetentionRange(rng.randrange(60), None, rng.randrange(101)),
        )
        return replace(request, routing_key=rng.choice([None, "a", "b"]), retention=rng.choice([(), (), ranges]))

    def _scoring(self, request: Request, num_slots: int) -> Request:
        rng = self.random
        room = num_slots - len(request.prompt_token_ids)
        continuations = tuple(
            tuple(rng.randrange(rng.choice([2, 99])) for _ in range(rng.randrange(1, min(room, 12) + 1)))
            for _ in range(rng.choice([1, 4, 30]))
        )
        return replace(request, sampling_params=SamplingParams(), continuations=continuations)

    def _sampling(self) -> dict[str, Any]:
        rng = self.random
        kind = rng.choice(["one", "one", "several", "best", "beams"])
        if kind == "beams":
            return {"use_beam_search": True, "best_of": rng.randrange(1, 5), "early_stopping": rng.random() < 0.5}
        fields = {
            "temperature": 1.0 if kind == "best" else rng.choice([0.0, 1.0]),
            "seed": rng.randrange(1 << 40),
            "stop": rng.choice([(), (), "ab", ("A", "zz")]),
            "prompt_logprobs": rng.choice([None, None, None, 1]),
            "logprobs": rng.choice([None, 1]),
        }
        return fields | {"one": {}, "several": {"n": rng.choice([2, 4])}, "best": {"n": 2, "best_of": 4}}[kind]

    def _constrained(self, fields: dict[str, Any]) -> dict[str, Any]:
        rng = self.random
        if rng.random() < 0.6:
            return fields
        fields |= rng.choice(CONSTRAINTS)
        if "use_beam_search" in fields:
            return fields | {"ignore_eos": False}
        ways = ["return", "return", "raise"] if fields["stop"] else ["return", "raise", "close"]
        return fields | {"on_incomplete": rng.choice(ways)}

    def disturb(self, engine: Engine, alive: dict[str, Request]) -> None:
        dice = self.random.random()
        if dice < 0.04 and alive:
            engine.abort_request(self.random.choice(sorted(alive)))
        elif dice < 0.05:
            engine.reset_prefix_cache()
        elif dice < 0.055:
            engine.runner.fail_next = RuntimeError("injected")  # type: ignore[attr-defined]
        elif dice < 0.07:
            self.recorders.append(engine.start_trace("fake"))
        elif dice < 0.085 and self.recorders:
            engine.stop_trace(self.recorders.pop(self.random.randrange(len(self.recorders))))


def contents(output: RequestOutput) -> tuple[Any, ...]:
    return output.outputs, output.prompt_logprobs, output.continuations


@pytest.mark.parametrize("seed", range(16))
def test_a_random_life_ends_leaks_nothing_and_changes_nothing(make_engine, request_of, run, seed):
    life = Life(seed)
    engine = make_engine(eos_bias=1.5, **life.options())
    alive: dict[str, Request] = {}
    ended: list[tuple[Request, RequestOutput]] = []
    num_idle_steps = step = 0
    while step < NUM_ARRIVAL_STEPS or engine.has_work:
        step += 1
        assert step < 5_000
        if step < NUM_ARRIVAL_STEPS and life.random.random() < 0.3 and len(alive) < 20:
            request = life.request(request_of, str(step))
            try:
                engine.add_request(request)
            except InvalidRequestError:  # more beams or tokens than these options have room for
                continue
            alive[request.request_id] = request
        if life.is_disturbed:
            life.disturb(engine, alive)
        num_batches = len(engine.runner.batches)
        had_work = engine.has_work
        chunks = engine.step()
        is_idle = had_work and not chunks and len(engine.runner.batches) == num_batches
        num_idle_steps = num_idle_steps + 1 if is_idle else 0
        assert num_idle_steps < 4, "work is left and nothing happens"
        ended += [(alive.pop(chunk.request_id), chunk.output) for chunk in chunks if chunk.output is not None]
    engine.close()
    assert not alive
    assert engine.cache.num_private_blocks == 0
    engine.cache.reset()
    assert engine.cache.num_free_blocks == life.num_blocks
    whole = [(request, output) for request, output in ended if output.error is None]
    assert whole
    for request, output in life.random.sample(whole, min(6, len(whole))):
        alone = make_engine(num_blocks=600, eos_bias=1.5)
        alone.add_request(request)
        (expected,) = run(alone).values()
        assert contents(output) == contents(expected)
