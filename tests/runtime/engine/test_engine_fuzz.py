"""Thousands of random steps over a runner that knows what every slot must hold."""

from __future__ import annotations

import itertools
import random

import pytest

OPTIONS = [
    {"schedule_policy": "lpm", "num_blocks": 12, "max_num_batched_tokens": 24, "schedule_conservativeness": 0.2},
    {"schedule_policy": "fcfs", "num_blocks": 10, "max_num_seqs": 4, "schedule_conservativeness": 0.0},
    {"schedule_policy": "priority", "num_blocks": 16, "max_num_batched_tokens": 9, "max_num_seqs": 9, "block_size": 4},
    {"schedule_policy": "lpm", "num_blocks": 14, "long_prefill_token_threshold": 5, "schedule_conservativeness": 0.0},
    {"schedule_policy": "lpm", "num_blocks": 12, "enable_prefix_caching": False, "schedule_conservativeness": 0.0},
    {"schedule_policy": "lpm", "num_blocks": 10, "overlap_schedule": True, "schedule_conservativeness": 0.0},
    {"schedule_policy": "lpm", "num_blocks": 10, "overlap_schedule": "pipelined", "schedule_conservativeness": 0.0},
    {"schedule_policy": "fcfs", "num_blocks": 14, "overlap_schedule": "pipelined", "reserve": "none"},
]


class Chaos:
    """Draws requests that share prefixes, and disturbs them."""

    def __init__(self, seed: int, capacity: int) -> None:
        self.random = random.Random(seed)
        self.capacity = capacity
        self.stems = [[self.random.randrange(99) for _ in range(90)] for _ in range(4)]
        self.count = 0

    def prompt(self) -> list[int]:
        stem = self.random.choice(self.stems)[: self.random.randrange(90)]
        tail = [self.random.randrange(99) for _ in range(self.random.randrange(1, 12))]
        return (stem + tail)[-(self.capacity - 10) :]

    def request(self, request_of):
        self.count += 1
        prompt = self.prompt()
        room = self.capacity - len(prompt)
        return request_of(
            f"r{self.count}",
            prompt,
            max_tokens=self.random.randrange(1, min(room, 40) + 1),
            n=self.random.choice([1, 1, 1, 2, 4]),
            temperature=self.random.choice([0.0, 1.0]),
            seed=self.random.randrange(1 << 40),
            prompt_logprobs=self.random.choice([None, None, None, 0, 2]),
            ignore_eos=self.random.random() < 0.2,
            priority=self.random.randrange(3),
            stop=self.random.choice([(), (), "ab", ("A", "zz")]),
            cache_namespace=self.random.choice([None, None, "other"]),
            shared_prefix_len=self.random.randrange(len(prompt) + 1),
        )

    def poison(self, engine, alive: list[str]) -> None:
        """Let steps fail: the next one, or those of a request, for a while or for ever."""
        if self.random.random() < 0.3 or not alive:
            engine.runner.fail_next = RuntimeError("injected")
            return
        num_times = self.random.choice([1, 2, 5, 1 << 30])
        place = self.random.choice(["prepare", "step", "end"])
        engine.runner.fail(self.random.choice(alive), num_times, place)


def live(make_engine, request_of, options, seed: int, num_steps: int):
    """Random requests, aborts, flushes, failing steps and logits that are not numbers. Returns the engine and how many
    requests finished and failed."""
    engine = make_engine(eos_bias=1.5, **options)
    chaos = Chaos(seed, capacity=options["num_blocks"] * options.get("block_size", 16))
    alive: set[str] = set()
    num_finished = num_failed = 0
    for _ in range(num_steps):
        dice = chaos.random.random()
        if dice < 0.25 and len(alive) < 25:
            request = chaos.request(request_of)
            engine.add_request(request)
            alive.add(request.request_id)
        elif dice < 0.31 and alive:
            engine.abort_request(chaos.random.choice(sorted(alive)))
        elif dice < 0.32:
            engine.reset_prefix_cache()
        elif dice < 0.33:
            chaos.poison(engine, sorted(alive))
        elif dice < 0.335 and alive:
            engine.runner.nan_for.add(chaos.random.choice(sorted(alive)))
        for chunk in engine.step():
            if chunk.output is not None:
                alive.remove(chunk.request_id)
                is_bad = chunk.request_id in engine.runner.nan_for
                assert is_bad or "not finite" not in str(chunk.output.error), "what was not there yet was used"
                num_finished += chunk.output.error is None
                num_failed += chunk.output.error is not None
        assert engine._requests.keys() == alive
    engine.runner.fail_next = None
    while engine.has_work:
        for chunk in engine.step():
            if chunk.output is not None:
                alive.remove(chunk.request_id)
    assert not alive
    assert not engine.scheduler.suspects
    assert engine.cache.num_private_blocks == 0
    engine.cache.reset()
    assert engine.cache.num_free_blocks == engine.cache.num_blocks
    engine.close()
    return engine, num_finished, num_failed


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: str(options["schedule_policy"]))
def test_random_life_leaks_nothing(make_engine, request_of, options):
    engine, num_finished, num_failed = live(make_engine, request_of, options, seed=7, num_steps=2_000)
    assert num_finished > 100
    assert num_failed > 10
    assert engine.metrics.num_failed_steps > 5
    assert engine.metrics.num_retried_sequences > 2
    if options["schedule_policy"] != "priority":
        assert engine.metrics.num_preemptions > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: str(options["schedule_policy"]))
def test_ten_thousand_steps_of_random_life_leak_nothing(make_engine, request_of, options, seed):
    live(make_engine, request_of, options, seed=seed, num_steps=10_000)


@pytest.fixture(scope="module")
def requests(request_of):
    chaos = Chaos(seed=3, capacity=14 * 16)
    return [chaos.request(request_of) for _ in range(30)]


@pytest.fixture(scope="module")
def alone(make_engine, run, requests):
    """What each request gives with an engine to itself."""
    outputs = {}
    for request in requests:
        engine = make_engine(num_blocks=400)
        engine.add_request(request)
        outputs |= run(engine)
    return outputs


@pytest.mark.parametrize("num_blocks", [14, 400])
@pytest.mark.parametrize("is_cached", [True, False])
@pytest.mark.parametrize(
    ("overlap_schedule", "chunk"),
    [*itertools.product((True, False), (1, 7, 64, 4096)), ("pipelined", 7), ("pipelined", 64)],
)
def test_output_does_not_depend_on_how_it_was_scheduled(
    make_engine, run, requests, alone, chunk, num_blocks, is_cached, overlap_schedule
):
    engine = make_engine(
        num_blocks=num_blocks,
        max_num_batched_tokens=chunk,
        max_num_seqs=min(chunk, 16),
        enable_prefix_caching=is_cached,
        overlap_schedule=overlap_schedule,
        schedule_conservativeness=0.0,
    )
    for request in requests:
        engine.add_request(request)
    together = run(engine)
    assert together.keys() == alone.keys()
    for request in requests:
        actual, expected = together[request.request_id], alone[request.request_id]
        assert [output.token_ids for output in actual.outputs] == [output.token_ids for output in expected.outputs]
        assert actual.prompt_logprobs == expected.prompt_logprobs
