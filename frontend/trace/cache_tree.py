"""CacheTree: what a backend's prefix cache holds at one moment, for people to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ..backend import Backend


@dataclass(frozen=True, slots=True)
class CacheNode:
    """Tokens that lie in the cache behind those of another node.

    Attributes:
        parent_idx: the place of that other node among the nodes; None at the beginning of a text.
        start: how many tokens come before it.
        token_ids, text: what it holds; the text with special tokens.
        num_hits: how many calls began on it or beyond it.
        last_used: the higher, the later; only the order means something.
        is_locked: a running call uses it, so it cannot be evicted now.
    """

    parent_idx: int | None
    start: int
    token_ids: tuple[int, ...]
    text: str
    num_hits: int
    last_used: int
    is_locked: bool = False

    @property
    def end(self) -> int:
        """How many tokens the text has up to its end."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class CacheTree:
    """All of a cache.

    Attributes:
        num_slots: token slots that it has.
        num_free_slots: those of them in blocks that nothing is in.
        nodes: each after its parent, children in their order.
    """

    num_slots: int
    num_free_slots: int
    nodes: tuple[CacheNode, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens that the nodes hold."""
        return sum(len(node.token_ids) for node in self.nodes)

    def depths(self) -> Sequence[int]:
        """Per node, how many nodes are above it."""
        depths: list[int] = []
        for node in self.nodes:
            depths.append(0 if node.parent_idx is None else depths[node.parent_idx] + 1)
        return depths


@runtime_checkable
class HasCacheTree(Protocol):
    """A backend that can show its cache."""

    def cache_tree(self) -> CacheTree: ...


def cache_tree_of(backend: Backend) -> CacheTree | None:
    """What the backend's cache holds now; None if it has none to show, or is closed."""
    if not isinstance(backend, HasCacheTree):
        return None
    try:
        return backend.cache_tree()
    except Exception:  # looking must not fail what it looks at
        return None
