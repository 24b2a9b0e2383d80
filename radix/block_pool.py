"""BlockPool: which block is free, which is the tree's, which is private to one sequence.

The pool knows states and counts, not tokens. Every block is in exactly one state, and only these moves exist:

                 allocate                     adopt
        FREE  ------------->  PRIVATE  ------------------->  TREE
          ^                      |                             |
          |         free         |            free             |
          +----------------------+-----------------------------+

`free` also drops what was annotated to the block. Ids are handed out lowest first from a new pool, and the latest
freed first after that, because that memory is the warmest.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from .errors import CacheUsageError


class BlockState(IntEnum):
    FREE = 0
    TREE = 1
    PRIVATE = 2


_FREE, _PRIVATE, _TREE = int(BlockState.FREE), int(BlockState.PRIVATE), int(BlockState.TREE)  # compare much faster


class BlockPool:
    """`num_blocks` blocks with ids 0 .. num_blocks - 1. All operations are O(1) for each block named.

    Attributes:
        num_frees: how many times a block was freed since the start. A match is stale once this has moved.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise CacheUsageError(f"num_blocks={num_blocks} is not allowed: it must be at least 1")
        self.num_blocks = num_blocks
        self.num_frees = 0
        self.num_tree = 0
        self._free_ids = list(range(num_blocks - 1, -1, -1))
        self._states = bytearray(num_blocks)
        self._annotations: dict[int, object] = {}

    @property
    def num_free(self) -> int:
        return len(self._free_ids)

    @property
    def num_private(self) -> int:
        return self.num_blocks - len(self._free_ids) - self.num_tree

    def state(self, block_id: int) -> BlockState:
        return BlockState(self._states[block_id])

    def free_ids(self) -> tuple[int, ...]:
        """The free blocks, the next one to be handed out last. O(num_blocks): for checks and displays."""
        return tuple(self._free_ids)

    def allocate(self, num_blocks: int) -> list[int] | None:
        """FREE -> PRIVATE for `num_blocks` blocks; None, and nothing changed, if fewer are free."""
        if num_blocks > len(self._free_ids):
            return None
        if num_blocks == 0:
            return []
        block_ids = self._free_ids[: -num_blocks - 1 : -1]
        del self._free_ids[-num_blocks:]
        states = self._states
        for block_id in block_ids:
            states[block_id] = _PRIVATE
        return block_ids

    def adopt(self, block_ids: Iterable[int]) -> None:
        """PRIVATE -> TREE: from now on the blocks are read-only and may be shared."""
        states = self._states
        for block_id in block_ids:
            assert states[block_id] == _PRIVATE, f"block {block_id} is not private"
            states[block_id] = _TREE
            self.num_tree += 1

    def free(self, block_ids: Iterable[int]) -> None:
        """PRIVATE or TREE -> FREE; drops the blocks' annotations."""
        states, free_ids, annotations = self._states, self._free_ids, self._annotations
        for block_id in block_ids:
            state = states[block_id]
            assert state != _FREE, f"block {block_id} is free already"
            if state == _TREE:
                self.num_tree -= 1
            states[block_id] = _FREE
            free_ids.append(block_id)
            if annotations:
                annotations.pop(block_id, None)
            self.num_frees += 1

    def annotate(self, block_id: int, payload: object) -> None:
        """Keep `payload` beside the block until the block is freed; replaces an earlier one.

        Raises:
            CacheUsageError: there is no such block, or it is free.
        """
        if not 0 <= block_id < self.num_blocks or self._states[block_id] == BlockState.FREE:
            raise CacheUsageError(f"block_id={block_id} cannot be annotated: it is not a block in use")
        self._annotations[block_id] = payload

    def annotation(self, block_id: int) -> object | None:
        return self._annotations.get(block_id)

    def move_annotation(self, src_block_id: int, dst_block_id: int) -> None:
        """Give `dst` the payload of `src`, unless `dst` has one; `src` keeps none."""
        payload = self._annotations.pop(src_block_id, None)
        if payload is not None:
            self._annotations.setdefault(dst_block_id, payload)

    def annotated_ids(self) -> tuple[int, ...]:
        """Blocks that have an annotation. O(number of them): for checks."""
        return tuple(self._annotations)
