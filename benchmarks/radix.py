"""What do match, insert, decode commits and eviction cost when the prefix cache is full?

Fills a cache of 17,280 blocks (276,480 tokens) with texts that share a 512-token prefix in groups, then times each
call on it. Plain Python, one thread; run as `python benchmarks/radix.py`.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

from ramet.radix import PrefixCache

NUM_BLOCKS = 17_280
PREFIX_LEN, TEXT_LEN, GROUP_SIZE = 512, 1_000, 16


def microseconds(calls: list[Callable[[], object]]) -> str:
    times = []
    for call in calls:
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    times.sort()
    return f"median {statistics.median(times):8.1f} us   p99 {times[len(times) * 99 // 100]:8.1f} us"


def make_texts(generator: random.Random, num_texts: int) -> list[list[int]]:
    texts: list[list[int]] = []
    for index in range(num_texts):
        if index % GROUP_SIZE == 0:
            prefix = [generator.randrange(50_000) for _ in range(PREFIX_LEN)]
        texts.append(prefix + [generator.randrange(50_000) for _ in range(TEXT_LEN - PREFIX_LEN)])
    return texts


def insert(cache: PrefixCache, text: list[int]) -> None:
    """The whole life of a sequence: match, acquire, commit all at once, release."""
    match = cache.match(text, max_tokens=len(text) - 1)
    acquired = cache.acquire(text, match, len(text))
    assert acquired is not None
    cache.commit(acquired[0], len(text))
    cache.release(acquired[0])


def fill(cache: PrefixCache, generator: random.Random) -> list[list[int]]:
    texts: list[list[int]] = []
    while cache.num_free_blocks > 1_200:
        group = make_texts(generator, GROUP_SIZE)
        for text in group:
            insert(cache, text)
        texts += group
    return texts


def decode_commits(cache: PrefixCache, num_tokens: int) -> list[Callable[[], object]]:
    tokens = [1, 2, 3]
    acquired = cache.acquire(tokens, cache.match([]), num_tokens + 3)
    assert acquired is not None
    table = acquired[0]

    def commit() -> None:
        tokens.append(4)
        cache.commit(table, len(tokens))

    return [commit] * num_tokens


def one_block_nodes(cache: PrefixCache, generator: random.Random) -> list[int]:
    """A text that is as bad as can be: every block of it is a node of its own."""
    text = [generator.randrange(50_000) for _ in range(TEXT_LEN)]
    insert(cache, text)
    for cut in range(16, TEXT_LEN, 16):
        insert(cache, text[:cut] + [generator.randrange(50_000) for _ in range(16)])
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    generator = random.Random(parser.parse_args().seed)
    cache = PrefixCache(NUM_BLOCKS)
    texts = fill(cache, generator)
    num_nodes = sum(1 for _ in cache.tree.nodes())
    print(f"{cache.num_tree_blocks * 16:,} tokens cached in {num_nodes:,} nodes; texts of {TEXT_LEN:,} tokens\n")
    asked = [[int(str(token)) for token in text] for text in generator.choices(texts, k=500)]  # equal, not identical
    print("match, all cached        ", microseconds([lambda text=text: cache.match(text) for text in asked]))
    worst = one_block_nodes(cache, generator)
    print("match, a node per block  ", microseconds([lambda: cache.match(worst)] * 500))
    print("commit of a decoded token", microseconds(decode_commits(cache, 2_000)))
    same = [text[:900] + [7] * 100 for text in generator.choices(texts, k=100)]
    print("life of a hit (900/1000) ", microseconds([lambda text=text: insert(cache, text) for text in same]))
    new = make_texts(generator, 400)
    print("life with eviction       ", microseconds([lambda text=text: insert(cache, text) for text in new]))
    print(f"\n{cache.stats.num_evicted_blocks:,} blocks evicted")
    start = time.perf_counter()
    num_dropped = cache.reset()
    print(
        f"reset: {(time.perf_counter() - start) * 1e6 / max(num_dropped, 1):.2f} us for each of {num_dropped:,} blocks"
    )


if __name__ == "__main__":
    main()
