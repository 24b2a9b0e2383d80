"""The scheduler step by step: modes of batching, chunks, forks, and ways out when nothing can go on."""

from __future__ import annotations

import pytest

from ramet.radix.prefix_cache import PrefixCache
from ramet.runtime.batch import WaitReason
from ramet.runtime.config import EngineConfig
from ramet.runtime.scheduler import Scheduler
from ramet.runtime.sequence import Sequence, SequenceStatus
from ramet.runtime.step_plan import StepPlan


def tokens(first: int, length: int) -> list[int]:
    return [(first + 7 * idx) % 99 for idx in range(length)]


class Bench:
    """A scheduler over a cache, and the part of an engine that moves its sequences on."""

    def __init__(self, request_of, num_blocks: int = 64, block_size: int = 4, **options) -> None:
        config = EngineConfig(seed=0, **({"schedule_policy": "fcfs"} | options))
        self.cache = PrefixCache(num_blocks, block_size)
        self.scheduler = Scheduler(config, self.cache)
        self._request_of = request_of
        self._num_arrivals = 0

    def sequence(self, name: str, prompt: list[int], **fields) -> Sequence:
        request = self._request_of(name, prompt, **fields)
        sequence = Sequence(request, 0, self._num_arrivals, request.sampling_params.max_tokens, 0, frozenset(), None)
        self._num_arrivals += 1
        return sequence

    def add(self, name: str, prompt: list[int], **fields) -> Sequence:
        sequence = self.sequence(name, prompt, **fields)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> dict[str, int]:
        """Plan and compute a step; how many tokens of whom. Whoever is complete gets a token, beams wait for it."""
        batch = self.scheduler.schedule()
        for part in batch.scheduled:
            self.cache.commit(part.sequence.block_table, part.end)
        for part in batch.scheduled:
            if part.is_sampled and not part.sequence.is_beam:
                part.sequence.token_ids.append(77)
                if part.sequence.num_remaining_tokens == 0:
                    self.scheduler.remove(part.sequence)
        self.cache.check_invariants()
        return {part.sequence.request.request_id: part.num_new_tokens for part in batch.scheduled}


@pytest.fixture
def bench(request_of):
    return lambda **options: Bench(request_of, **options)


def test_request_level_takes_in_nobody_before_all_have_ended(bench):
    """Orca's figure: four requests, three slots; eleven steps where iteration-level batching takes eight."""
    num_steps = {}
    for batching in ("continuous", "request-level"):
        loop = bench(batching=batching, max_num_seqs=3, enable_prefix_caching=False)
        for name, length in zip("ABCD", (6, 4, 8, 3), strict=True):
            loop.add(name, tokens(ord(name), 1), max_tokens=length)
        plans = []
        while loop.scheduler.has_work:
            plans.append(set(loop.step()))
        num_steps[batching] = len(plans)
    assert num_steps == {"continuous": 8, "request-level": 11}
    assert [plan for plan in plans if "D" in plan] == [{"D"}] * 3


def test_prefill_first_pauses_decodes_for_whole_prompts(bench):
    loop = bench(batching="prefill-first", max_num_batched_tokens=16)
    loop.add("decode", tokens(1, 3), max_tokens=50)
    assert loop.step() == {"decode": 3}
    assert loop.step() == {"decode": 1}
    loop.add("a", tokens(20, 10), max_tokens=50)
    loop.add("b", tokens(40, 10), max_tokens=50)
    loop.add("long", tokens(60, 40), max_tokens=50)
    assert loop.step() == {"a": 10}  # not a piece of b
    assert loop.step() == {"b": 10}
    assert loop.step() == {"long": 14}  # longer than a step: near-equal pieces, and decodes pause for all of them
    assert loop.step() == {"long": 13}
    assert loop.step() == {"long": 13}
    assert loop.step() == {"decode": 1, "a": 1, "b": 1, "long": 1}


def test_prefill_first_goes_on_with_decodes_when_nobody_fits(bench):
    loop = bench(batching="prefill-first", max_num_seqs=1)
    loop.add("decode", tokens(1, 3), max_tokens=5)
    loop.add("waits", tokens(30, 3), max_tokens=5)
    assert [set(loop.step()) for _ in range(6)] == [{"decode"}] * 5 + [{"waits"}]


@pytest.mark.parametrize("batching", ["continuous", "prefill-first", "request-level"])
def test_every_mode_ends_with_a_pool_that_is_too_small_for_all(bench, batching):
    loop = bench(num_blocks=8, batching=batching, schedule_conservativeness=0.0, max_num_batched_tokens=12)
    for idx in range(6):
        loop.add(str(idx), tokens(idx * 11, 9), max_tokens=16)
    for _ in range(1_000):
        if not loop.scheduler.has_work:
            break
        loop.step()
    assert not loop.scheduler.has_work
    assert loop.scheduler.num_preemptions > 0
    assert loop.cache.num_private_blocks == 0


@pytest.mark.parametrize(("prompt_len", "budget"), [(100, 33), (99, 33), (1000, 512), (17, 16), (50, 7), (5, 1)])
def test_a_prompt_is_cut_into_near_equal_pieces_and_no_more_of_them(bench, prompt_len, budget):
    loop = bench(num_blocks=300, max_num_batched_tokens=budget)
    loop.add("long", tokens(1, prompt_len), max_tokens=1)
    pieces = []
    while loop.scheduler.has_work:
        pieces.append(loop.step()["long"])
    assert sum(pieces) == prompt_len
    assert len(pieces) == -(-prompt_len // budget)
    assert max(pieces) - min(pieces) <= 1


def test_the_threshold_is_for_those_who_have_company(bench):
    loop = bench(num_blocks=300, long_prefill_token_threshold=8, max_num_batched_tokens=64)
    loop.add("alone", tokens(1, 60), max_tokens=1)
    assert loop.step() == {"alone": 60}
    loop.add("long", tokens(5, 60), max_tokens=1)
    loop.add("short", tokens(9, 6), max_tokens=1)
    assert loop.step() == {"long": 8, "short": 6}
    assert loop.step() == {"long": 52}


def test_no_reserve_admits_as_long_as_the_next_step_fits(bench):
    for reserve, num_admitted in (("none", 4), ("max", 1)):
        loop = bench(num_blocks=8, reserve=reserve)
        for idx in range(4):
            loop.add(str(idx), tokens(idx * 11, 7), max_tokens=24)
        assert len(loop.step()) == num_admitted


def test_those_passed_over_for_their_prefix_are_listed(bench):
    loop = bench(max_num_batched_tokens=8)
    prefix = tokens(1, 16)
    loop.add("first", [*prefix, 1], max_tokens=1)
    followers = [loop.add(f"follower{idx}", [*prefix, 50 + idx], max_tokens=1) for idx in range(3)]
    loop.add("other", tokens(30, 2), max_tokens=1)
    batch = loop.scheduler.schedule()
    assert [part.sequence.request.request_id for part in batch.scheduled] == ["first", "other"]
    first = batch.scheduled[0].sequence
    assert batch.waiting_for_prefix == [(follower, first) for follower in followers]


WAIT_CASES = {
    "seats": ({"max_num_seqs": 2}, [8, 8, 8, 8], 2, None),
    "budget": ({"max_num_batched_tokens": 16}, [8, 8, 8, 8], 2, None),
    "room": ({"num_blocks": 8, "reserve": "max"}, [8, 8, 8, 8], 2, 2),
    "budget, whole prompts": ({"max_num_batched_tokens": 24, "enable_chunked_prefill": False}, [9, 9, 9, 9], 2, 2),
    "budget, prompts first": ({"max_num_batched_tokens": 24, "batching": "prefill-first"}, [9, 9, 9, 9], 2, 2),
    "nobody": ({}, [8, 8, 8, 8], 4, None),
}


@pytest.mark.parametrize("case", WAIT_CASES)
def test_a_batch_says_why_the_others_wait(bench, case):
    options, prompt_lens, num_admitted, stopped_at = WAIT_CASES[case]
    loop = bench(**options)
    sequences = [loop.add(str(idx), tokens(idx * 23, size), max_tokens=8) for idx, size in enumerate(prompt_lens)]
    batch = loop.scheduler.schedule()
    assert batch.admitted == sequences[:num_admitted]
    assert batch.wait_reason == (None if case == "nobody" else case.split(",")[0])
    assert batch.stopped_at is (None if stopped_at is None else sequences[stopped_at])


def test_a_batch_says_that_nobody_joins_or_that_blocks_were_taken_back(bench):
    loop = bench(batching="request-level")
    loop.add("a", tokens(1, 8), max_tokens=8)
    loop.step()
    loop.add("b", tokens(40, 8), max_tokens=8)
    assert (batch := loop.scheduler.schedule()).wait_reason is WaitReason.BATCHING
    assert batch.stopped_at is None
    loop = bench(num_blocks=5, reserve="none")
    first, second = (loop.add(name, tokens(salt, 8), max_tokens=12) for name, salt in (("a", 1), ("b", 40)))
    loop.step()
    assert (batch := loop.scheduler.schedule()).wait_reason is WaitReason.ROOM
    assert (batch.preempted, batch.stopped_at) == ([second], None)
    assert (first.num_lost_tokens, second.num_lost_tokens) == (0, 8)


def beams(bench, num_blocks=64, **options):
    """A bench with one beam whose prompt of 10 tokens is computed, and a way to make its children."""
    loop = bench(num_blocks=num_blocks, **options)
    root = loop.add("search", tokens(1, 10), use_beam_search=True, n=3, max_tokens=8)
    assert loop.step() == {"search": 10}

    def child_of(parent: Sequence) -> Sequence:
        child = Sequence(parent.request, 0, parent.arrival_idx, parent.max_tokens, 0, frozenset(), None)
        child.token_ids += parent.output_token_ids
        return child

    return loop, root, child_of


def test_a_fork_runs_behind_its_parent_and_its_copy_goes_with_the_next_batch(bench):
    loop, root, child_of = beams(bench)
    other = loop.add("other", tokens(50, 3), max_tokens=9)
    loop.step()
    child = child_of(root)
    assert loop.scheduler.fork(root, child)
    for beam, token_id in ((root, 5), (child, 6)):
        beam.token_ids.append(token_id)
    assert loop.scheduler.running == [root, child, other]
    assert child.status is SequenceStatus.RUNNING
    batch = loop.scheduler.schedule()
    assert [part.sequence for part in batch.scheduled] == [root, child, other]
    (copy,) = batch.block_copies
    assert (copy.src_block_id, copy.dst_block_id) == (root.block_table.block_ids[2], child.block_table.block_ids[2])
    assert copy.num_tokens == 2
    assert loop.scheduler.schedule().block_copies == []


def test_the_copy_of_a_fork_that_ended_is_dropped(bench):
    loop, root, child_of = beams(bench)
    child = child_of(root)
    assert loop.scheduler.fork(root, child)
    root.token_ids.append(5)
    loop.scheduler.remove(child)
    batch = loop.scheduler.schedule()
    assert [part.sequence for part in batch.scheduled] == [root]
    assert batch.block_copies == []


def test_a_fork_without_room_waits_and_is_the_first_to_be_admitted(bench):
    loop, root, child_of = beams(bench, num_blocks=4, reserve="none")
    loop.add("other", tokens(50, 3), max_tokens=1_000)
    loop.step()  # the pool is full: three blocks and one
    assert loop.cache.num_available_blocks == 0
    loop.add("impatient", tokens(70, 2), max_tokens=1)
    child = child_of(root)
    assert not loop.scheduler.fork(root, child)
    assert next(iter(loop.scheduler.waiting)) is child
    root.token_ids.append(5)
    child.token_ids.append(6)
    assert loop.step() == {"search": 1, "other": 1}  # neither the child nor, before it, the impatient one fits
    loop.scheduler.remove(loop.scheduler.running[-1])
    assert loop.scheduler.schedule().admitted[0] is child


def test_no_fork_makes_more_run_than_fit_in_a_step(bench):
    loop, root, child_of = beams(bench, max_num_seqs=2)
    assert loop.scheduler.fork(root, child_of(root))
    assert not loop.scheduler.fork(root, child_of(root))
    assert len(loop.scheduler.running) == 2


def test_beams_are_preempted_together(bench):
    loop, root, child_of = beams(bench, num_blocks=9, reserve="none")
    child = child_of(root)
    assert loop.scheduler.fork(root, child)
    for beam in (root, child):
        beam.token_ids.append(5 + (beam is child))
    elder = loop.sequence("elder", tokens(50, 3), max_tokens=1_000)
    elder.arrival_idx = 100  # so that the beams are the latest arrivals
    loop.scheduler.add(elder)
    for beam in (root, child):
        beam.arrival_idx = 200
    num_preempted = 0
    while num_preempted == 0:
        batch = loop.scheduler.schedule()
        num_preempted = len(batch.preempted)
        for part in batch.scheduled:
            loop.cache.commit(part.sequence.block_table, part.end)
            part.sequence.token_ids.append(9)
    assert set(batch.preempted) == {root, child}
    assert [part.sequence for part in batch.scheduled] == [elder]
    assert loop.scheduler.num_preemptions == 2


def test_two_searches_that_wait_for_their_siblings_do_not_block_each_other(bench):
    """Nobody who runs has anything to compute, and the siblings they wait for find no block: one search must yield."""
    loop, root, child_of = beams(bench, num_blocks=6, reserve="none")
    late = loop.add("late", tokens(60, 10), use_beam_search=True, n=3, max_tokens=8)
    assert loop.step() == {"late": 10}
    children = [child_of(root), child_of(late)]
    assert not any(loop.scheduler.fork(parent, child) for parent, child in zip((root, late), children, strict=True))
    for child in children:
        child.token_ids[-1] = 97  # the children lag behind: their last token is not computed
    assert root.num_uncomputed_tokens == late.num_uncomputed_tokens == 0
    batch = loop.scheduler.schedule()
    assert batch.preempted == [late]
    assert children[0] in batch.admitted


def test_recompute_asks_for_the_last_logits_only(bench):
    loop = bench()
    sequence = loop.add("a", tokens(1, 10), max_tokens=20)
    for _ in range(5):
        loop.step()
    loop.scheduler._preempt(StepPlan(loop.scheduler.config))
    loop.cache.reset()
    (part,) = loop.scheduler.schedule().scheduled
    assert part.sequence is sequence
    assert (part.start, part.num_new_tokens, part.num_logit_rows) == (0, 15, 1)


@pytest.mark.parametrize("seed", range(5))
def test_the_oldest_is_never_preempted(bench, seed):
    loop = bench(num_blocks=10, reserve="none", schedule_policy="lpm", max_num_batched_tokens=9)
    sequences = [loop.add(str(idx), tokens(seed + idx * 13, 8), max_tokens=20 + seed) for idx in range(8)]
    while loop.scheduler.has_work:
        loop.step()
    assert sequences[0].num_preemptions == 0
    assert loop.scheduler.num_preemptions > 0
