"""What does each call on a full prefix cache cost, and does it depend on how much is cached?

The workload of the table: prompts in 20 groups, of 1,024 tokens that the group shares and 128 of its own, each
computed and released; as many prompts as there are to be leaves. A second table is about watches: 1,024 waiting
prompts of the same kind. Plain Python, one thread, and its processor time; run as `python benchmarks/radix.py`.

The last column holds figures of SGLang 0.5.23 (page size 1, on 2,000 prompts of this workload), from another day on a
machine like the one this was written on: for the order of magnitude. Its evict is of 256 tokens, 16 blocks here.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable

from ramet.radix import PrefixCache, PrefixMatch

NUM_GROUPS, SHARED_LEN, OWN_LEN = 20, 1_024, 128
NUM_WATCHES = 1_024
SGLANG_US = {"match": 65.0, "insert (commit)": 218.0, "lock + unlock": 23.0, "evict 256 tokens": 1_245.0}


def microseconds(calls: list[Callable[[], object]]) -> float:
    """The median time of a call."""
    times = []
    for call in calls:
        start = time.thread_time()
        call()
        times.append((time.thread_time() - start) * 1e6)
    return statistics.median(times)


class Workload:
    """Makes the prompts: token ids that are equal where they should be, but never the same objects."""

    def __init__(self, seed: int) -> None:
        self.generator = random.Random(seed)
        self.shared = [self.tokens(SHARED_LEN) for _ in range(NUM_GROUPS)]

    def tokens(self, num_tokens: int) -> list[int]:
        return [self.generator.randrange(1_000, 50_000) for _ in range(num_tokens)]

    def prompt(self) -> list[int]:
        return fresh(self.generator.choice(self.shared)) + self.tokens(OWN_LEN)


def fresh(tokens: list[int]) -> list[int]:
    return [token + 1 - 1 for token in tokens]


def insert(cache: PrefixCache, prompt: list[int]) -> None:
    """The whole life of a sequence: match, acquire, commit all at once, release."""
    match = cache.match(prompt, max_tokens=len(prompt) - 1)
    acquired = cache.acquire(prompt, match, len(prompt))
    assert acquired is not None
    cache.commit(acquired[0], len(prompt))
    cache.release(acquired[0])


def filled(workload: Workload, num_leaves: int) -> tuple[PrefixCache, list[list[int]]]:
    """A cache of just the size for num_leaves prompts and some more, and a sample of the prompts in it."""
    num_blocks = (NUM_GROUPS * SHARED_LEN + (num_leaves + 600) * OWN_LEN) // 16
    cache = PrefixCache(num_blocks)
    sample = []
    for index in range(num_leaves):
        prompt = workload.prompt()
        insert(cache, prompt)
        if index % (num_leaves // 500) == 0:
            sample.append(prompt)
    return cache, sample


def commits(cache: PrefixCache, prompts: list[list[int]]) -> float:
    times = []
    for prompt in prompts:
        acquired = cache.acquire(prompt, cache.match(prompt, max_tokens=len(prompt) - 1), len(prompt))
        assert acquired is not None
        start = time.thread_time()
        cache.commit(acquired[0], len(prompt))
        times.append((time.thread_time() - start) * 1e6)
        cache.release(acquired[0])
    return statistics.median(times)


def lock_and_unlock(cache: PrefixCache, match: PrefixMatch) -> None:
    cache.tree.lock(match.node)
    cache.tree.unlock(match.node)


def evict(cache: PrefixCache, num_blocks: int) -> None:
    cache.pool.free(cache.tree.evict(num_blocks))


def measure(workload: Workload, num_leaves: int) -> dict[str, float]:
    cache, sample = filled(workload, num_leaves)
    asked = [fresh(prompt) for prompt in sample]
    matches = [cache.match(prompt) for prompt in asked]
    figures = {
        "match": microseconds([lambda p=p: cache.match(p) for p in asked]),
        "match 1,000 tokens": microseconds([lambda p=p: cache.match(p, max_tokens=1_000) for p in asked]),
        "lock + unlock": microseconds([lambda m=m: lock_and_unlock(cache, m) for m in matches]),
        "insert (commit)": commits(cache, [workload.prompt() for _ in range(200)]),
        "whole life, no room made": microseconds([lambda: insert(cache, workload.prompt())] * 200)
        - microseconds([workload.prompt] * 200),
        "evict 256 tokens": microseconds([lambda: evict(cache, 16)] * 50),
        "evict 256 blocks": microseconds([lambda: evict(cache, 256)] * 10),
    }
    leaves = [node for node in cache.tree.nodes() if node.is_evictable]
    workload.generator.shuffle(leaves)
    start = time.thread_time()
    for node in leaves[: len(leaves) * 9 // 10]:
        cache.tree.lock(node)
        cache.tree.touch(node, 0, is_hit=True)
        cache.tree.unlock(node)
    figures["use of a leaf"] = (time.thread_time() - start) * 1e6 / len(leaves) / 0.9
    evictions = [lambda: evict(cache, 256)]
    figures["evict 256 blocks, 9 of 10 used since, first"] = microseconds(evictions)
    figures["evict 256 blocks, 9 of 10 used since, median"] = microseconds(evictions * 9)
    return figures


def measure_watches(workload: Workload) -> dict[str, float]:
    cache, _ = filled(workload, 1_000)
    prompts = [workload.prompt() for _ in range(NUM_WATCHES)]
    figures = {"match of a prompt, cached to its own part": microseconds([lambda p=p: cache.match(p) for p in prompts])}
    start = time.thread_time()
    watches = [cache.watch(prompt) for prompt in prompts]
    figures["watch"] = (time.thread_time() - start) * 1e6 / NUM_WATCHES
    by_watch = [lambda w=w: cache.match(w.token_ids, watch=w) for w in watches]
    figures["match from its watch"] = microseconds(by_watch)
    figures["look at all 1,024 watches"] = microseconds([lambda: [watch.num_tokens for watch in watches]] * 50)
    figures["commit of new blocks that no watch waits for"] = commits(cache, [workload.prompt() for _ in range(200)])
    figures["commit of new blocks that one waits for"] = commits(cache, [fresh(p) for p in prompts[:200]])
    start = time.thread_time()
    for watch in watches:
        cache.unwatch(watch)
    figures["unwatch"] = (time.thread_time() - start) * 1e6 / NUM_WATCHES
    figures["the same commit without watches"] = commits(cache, [workload.prompt() for _ in range(200)])
    cache = PrefixCache(1_000)
    common = workload.prompt()
    insert(cache, common[:SHARED_LEN])
    watches = [cache.watch(fresh(common) + workload.tokens(16)) for _ in range(NUM_WATCHES)]
    figures["commit of 8 blocks that all 1,024 wait for"] = commits(cache, [common])
    assert all(watch.num_tokens == len(common) for watch in watches)
    figures["eviction of all they had"] = microseconds([cache.reset])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--leaves", type=int, nargs="+", default=[1_000, 2_000, 10_000, 100_000])
    arguments = parser.parse_args()
    gc.disable()  # its pauses are those of the whole process
    columns = {num_leaves: measure(Workload(arguments.seed), num_leaves) for num_leaves in arguments.leaves}
    print("Median microseconds with so many leaves".ljust(48), *(f"{n:>9,}" for n in columns), "   SGLang")
    for name in next(iter(columns.values())):
        sglang = f"{SGLANG_US[name]:9.0f}" if name in SGLANG_US else "        -"
        print(name.ljust(48), *(f"{figures[name]:9.1f}" for figures in columns.values()), sglang)
    print("\nMicroseconds with 1,024 watches, 1,000 leaves")
    for name, figure in measure_watches(Workload(arguments.seed)).items():
        print(name.ljust(48), f"{figure:9.1f}")


if __name__ == "__main__":
    main()
