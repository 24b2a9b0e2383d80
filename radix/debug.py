"""Pictures of the cache, for people."""

from __future__ import annotations

from .node import RadixNode
from .prefix_cache import PrefixCache

MAX_TOKENS_SHOWN = 6


def render(cache: PrefixCache) -> str:
    """The counts and every tree of `cache` as text, one line for each node, partial leaf and running sequence.

    O(whole cache). Locks are shown as `x2`; `~` marks a partial leaf, `>` a running sequence.
    """
    lines = [
        f"{cache.num_blocks} blocks of {cache.block_size}: {cache.num_free_blocks} free, "
        f"{cache.num_tree_blocks} in the tree ({cache.num_evictable_blocks} evictable), "
        f"{cache.num_private_blocks} private"
    ]
    stack: list[tuple[RadixNode, int]] = []
    for namespace, root in cache.tree.roots.items():
        lines.append(f"namespace {namespace!r}")
        lines += _behind(cache, root, 1)
        stack = [(child, 1) for child in reversed(root.children.values())]
        while stack:
            node, depth = stack.pop()
            lock = f"  x{node.lock_count}" if node.lock_count else ""
            lines.append(f"{'  ' * depth}{_tokens(node.token_ids)}  blocks {_ids(node.block_ids)}{lock}")
            lines += _behind(cache, node, depth + 1)
            stack += [(child, depth + 1) for child in reversed(node.children.values())]
    return "\n".join(lines)


def _behind(cache: PrefixCache, node: RadixNode, depth: int) -> list[str]:
    indent = "  " * depth
    lines = [f"{indent}~ {_tokens(list(leaf.token_ids))}  block {leaf.block_id}" for leaf in node.leaves.values()]
    for table in cache.open_tables.on_node(node):
        own = table.block_ids[table.num_committed_tokens // cache.block_size :]
        lines.append(
            f"{indent}> {table.num_computed_tokens} of {len(table.token_ids)} tokens computed, own blocks {_ids(own)}"
        )
    return lines


def _tokens(token_ids: list[int]) -> str:
    shown = " ".join(map(str, token_ids[:MAX_TOKENS_SHOWN]))
    more = len(token_ids) - MAX_TOKENS_SHOWN
    return f"[{shown} +{more}]" if more > 0 else f"[{shown}]"


def _ids(block_ids: list[int]) -> str:
    """Block ids with runs of consecutive ones joined: 3-7,9."""
    parts: list[str] = []
    start = 0
    for index in range(1, len(block_ids) + 1):
        if index == len(block_ids) or block_ids[index] != block_ids[index - 1] + 1:
            first, last = block_ids[start], block_ids[index - 1]
            parts.append(str(first) if first == last else f"{first}-{last}")
            start = index
    return ",".join(parts) or "none"
