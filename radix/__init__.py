"""radix: a prefix cache for KV blocks. Standard library only, usable on its own.

The cache deals in token ids and block ids; whoever uses it keeps the memory the ids stand for, and computes. Here
blocks of 4 tokens, and a first sequence of which 10 tokens are computed:

>>> from ramet.radix import PrefixCache
>>> cache = PrefixCache(num_blocks=8, block_size=4)
>>> first = list(range(100, 110))
>>> table, copies = cache.acquire(first, cache.match(first), num_tokens=10)
>>> table.num_computed_tokens, table.block_ids, copies
(0, [0, 1, 2], [])
>>> cache.commit(table, 10)

A second one, whose first 9 tokens are the same, shares two blocks and copies one token of the third:

>>> second = [*range(100, 109), 7, 8, 9]
>>> match = cache.match(second, max_tokens=len(second) - 1)
>>> match.num_tokens, match.block_ids, match.num_tail_tokens
(9, (0, 1), 1)
>>> other, copies = cache.acquire(second, match, num_tokens=12)
>>> other.num_computed_tokens, other.block_ids, copies
(9, [0, 1, 3], [BlockCopy(src_block_id=2, dst_block_id=3, num_tokens=1)])
>>> cache.commit(other, 12)
>>> cache.release(table)
>>> cache.release(other)
>>> from ramet.radix.debug import render
>>> print(render(cache))
8 blocks of 4: 4 free, 4 in the tree (4 evictable), 0 private
namespace None
  [100 101 102 103 104 105 +2]  blocks 0-1
    ~ [108 109]  block 2
    [108 7 8 9]  blocks 3

How it works is told in tree.py; the calls and their rules are in prefix_cache.py.
"""

from __future__ import annotations

from .block_pool import BlockPool, BlockState
from .block_table import BlockCopy, BlockTable
from .errors import CacheUsageError, InvariantViolation
from .eviction import EVICTION_POLICIES, NEVER, UNKNOWN, EvictionPolicy
from .expectations import Expectation
from .node import PartialLeaf, RadixNode
from .prefix_cache import PrefixCache
from .prefix_match import PrefixMatch
from .retention import DEFAULT_RETENTION, RetentionRange
from .stats import CacheStats
from .tree import RadixTree
from .watches import PrefixWatch

__all__ = [
    "DEFAULT_RETENTION",
    "EVICTION_POLICIES",
    "NEVER",
    "UNKNOWN",
    "BlockCopy",
    "BlockPool",
    "BlockState",
    "BlockTable",
    "CacheStats",
    "CacheUsageError",
    "EvictionPolicy",
    "Expectation",
    "InvariantViolation",
    "PartialLeaf",
    "PrefixCache",
    "PrefixMatch",
    "PrefixWatch",
    "RadixNode",
    "RadixTree",
    "RetentionRange",
]
