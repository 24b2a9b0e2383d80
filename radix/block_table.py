"""BlockTable: where the KV of one running sequence lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from .errors import CacheUsageError
from .node import RadixNode
from .retention import Retention


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy the first `num_tokens` slots of a block to another block, before the step writes anything.

    All copies of a step read before any of them writes: a source may be evicted, and even be the destination of
    another copy, in the same step.
    """

    src_block_id: int
    dst_block_id: int
    num_tokens: int


@dataclass(eq=False, slots=True)
class BlockTable:
    """The blocks of one running sequence, in token order. Only PrefixCache changes it. Compared by identity.

          tree's, read-only, shared          private to this sequence
        |<-- num_committed_tokens -->|<------------------------------------->|
        | block | block | ... | block | computed .. | not yet computed | room |
        |<------------ num_computed_tokens -------->|

    Attributes:
        token_ids: the sequence's own live list, by reference. Its owner may append to it and do nothing else.
        block_ids: blocks that hold, or have room for, the tokens' KV.
        num_computed_tokens: how many tokens' KV is in the blocks, copies of this step included.
        num_committed_tokens: a multiple of the block size; the blocks up to there belong to the tree.
        node: the tree node whose end is num_committed_tokens. Its path is locked.
        priority: what the `priority` eviction policy orders by.
        retention: which of the tokens to keep for longer, or not so long, once they are evictable.
        is_tail_written: the partial block at the end of the computed tokens holds its KV now. False from an acquire
            or fork that asked for a copy until the sequence's next commit: until then nobody may copy from it.
        is_released: the table is dead: it has no blocks.
    """

    token_ids: list[int]
    block_ids: list[int]
    num_computed_tokens: int
    num_committed_tokens: int
    node: RadixNode
    priority: int = 0
    retention: Retention = ()
    is_tail_written: bool = True
    is_released: bool = False

    @property
    def num_tail_tokens(self) -> int:
        """Computed tokens in the partial block behind the committed ones: less than a block."""
        return self.num_computed_tokens - self.num_committed_tokens

    def refuse_commit(self, num_computed_tokens: int, block_size: int) -> NoReturn:
        """Raise CacheUsageError: the table was released, or cannot have that many computed tokens."""
        self.check_live()
        most = min(len(self.token_ids), len(self.block_ids) * block_size)
        raise CacheUsageError(
            f"num_computed_tokens={num_computed_tokens} is not allowed: it must be between the present "
            f"{self.num_computed_tokens} and {most}, for {len(self.token_ids)} tokens in {len(self.block_ids)} blocks"
        )

    def check_live(self) -> None:
        """Raise CacheUsageError if the table was released."""
        if self.is_released:
            raise CacheUsageError("the table was released and has no blocks: acquire a new one")
