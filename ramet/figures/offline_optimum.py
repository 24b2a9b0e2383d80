"""The best any order of service can do for a batch of prompts that is known beforehand, on the real prefix cache.

Theorem 3.1 of the SGLang paper (arXiv 2312.07104): for a batch of requests, served one at a time by a cache that holds
at least the longest of them, depth-first order over the tree of their prompts has the highest hit rate there is. Both
sides can be computed here: the order, and the maximum over all orders where there are few enough of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from ..radix.prefix_cache import PrefixCache
from .workloads import Tokens


def num_hit_tokens(prompts: Sequence[Tokens], num_blocks: int, block_size: int) -> int:
    """Prompt tokens found in a new cache when the prompts are computed one after another, in the order given.

    As in an engine, the last token of a prompt is always computed. The pool must hold the longest prompt.
    """
    cache = PrefixCache(num_blocks, block_size)
    num_hits = 0
    for prompt in prompts:
        match = cache.match(prompt, max_tokens=len(prompt) - 1)
        acquired = cache.acquire(prompt, match, len(prompt))
        assert acquired is not None, f"a prompt of {len(prompt)} tokens does not fit in {num_blocks} x {block_size}"
        table, _ = acquired
        num_hits += table.num_computed_tokens
        cache.commit(table, len(prompt))
        cache.release(table)
    return num_hits


def depth_first(prompts: Sequence[Tokens]) -> list[Tokens]:
    """The prompts in a depth-first order of their tree: sorted, those behind a common prefix stand together."""
    return sorted(prompts)


def best_of_all_orders(prompts: Sequence[Tokens], num_blocks: int, block_size: int) -> int:
    """Most hit tokens over every order of service. Cost: factorial; a second for some 6 prompts."""
    return max(num_hit_tokens(order, num_blocks, block_size) for order in permutations(prompts))
