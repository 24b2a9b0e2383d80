"""Walk and Tail: the two halves of what the tree answers when it is asked for a prefix."""

from __future__ import annotations

from dataclasses import dataclass

from .node import PartialLeaf, RadixNode


@dataclass(slots=True)
class Walk:
    """Where a walk ended: `num_node_blocks` blocks into `node` (all of them, or fewer if it ended inside the run)."""

    node: RadixNode
    num_node_blocks: int
    block_ids: list[int]


@dataclass(slots=True)
class Tail:
    """The best partial block found: its first `num_tokens` tokens agree. `owner` is the piece of the tree it is in,
    or None where a running sequence has it or nothing was found (num_tokens 0)."""

    num_tokens: int = 0
    block_id: int | None = None
    owner: RadixNode | PartialLeaf | None = None
