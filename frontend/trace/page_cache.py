"""The radix tree on a page: every node a bar from its first token to its last, coloured by how often it was hit."""

from __future__ import annotations

import math
from collections.abc import Sequence

from . import wording
from .cache_tree import CacheNode, CacheTree
from .markup import html_text

_MAX_NODES = 500
_SNIPPET_CHARS = 120
_NUM_HEATS = 6
_WIDE, _FAR = 36.0, 62.0
"""In percent of the width: a bar this wide has room for its text inside; one that ends beyond has it to its left."""


def cache_section(cache: CacheTree | None) -> str:
    """The section; empty without a cache to show."""
    if cache is None:
        return ""
    shown = _most_hit(cache)
    end = max((cache.nodes[idx].end for idx in shown), default=1)
    max_hits = max((cache.nodes[idx].num_hits for idx in shown), default=0)
    newest = max((node.last_used for node in cache.nodes), default=0)
    depths = cache.depths()
    rows = "".join(_row(cache.nodes[idx], depths[idx], end, max_hits, newest) for idx in shown)
    num_used = cache.num_slots - cache.num_free_slots
    note = f" The {_MAX_NODES} most used are shown." if len(shown) < len(cache.nodes) else ""
    summary = (
        f"{wording.counted(len(cache.nodes), 'node')} hold {cache.num_tokens:,} tokens; "
        f"{num_used:,} of {cache.num_slots:,} slots are in use.{note}"
    )
    if not rows:
        return f'<section id="cache"><h2>Cache</h2><p class="muted">{summary}</p></section>'
    legend = "".join(f'<i class="heat{heat}"></i>' for heat in range(_NUM_HEATS))
    return (
        f'<section id="cache"><h2>Cache</h2><p class="muted">{summary} Each bar runs from the first to the last token '
        f"of a node, {end:,} tokens across; what is below and to the right of one continues it.</p>"
        f'<p class="legend"><span>never hit</span><span class="heats">{legend}</span><span>{max_hits:,} hits</span></p>'
        '<div class="nodes"><div class="node head"><span></span><span>tokens</span><span>hits</span>'
        f"<span>last used</span></div>{rows}</div></section>"
    )


def _most_hit(cache: CacheTree) -> Sequence[int]:
    """Which nodes to show, in their order: a node has at least the hits of those that continue it."""
    indices = range(len(cache.nodes))
    if len(indices) <= _MAX_NODES:
        return indices
    best = sorted(indices, key=lambda idx: (-cache.nodes[idx].num_hits, -cache.nodes[idx].last_used, idx))
    return sorted(best[:_MAX_NODES])


def _row(node: CacheNode, depth: int, end: int, max_hits: int, newest: int) -> str:
    left, width = 100 * node.start / end, 100 * len(node.token_ids) / end
    heat = _heat(node.num_hits, max_hits)
    text = html_text(wording.shortened(node.text, _SNIPPET_CHARS))
    if width >= _WIDE:
        style, place = f"left:{left:.2f}%;width:{width:.2f}%", f"inside heat{heat}"
    elif left + width <= _FAR:
        style, place = f"left:{left + width:.2f}%", "after"
    else:
        style, place = f"right:{100 - left:.2f}%;max-width:{left:.2f}%", "before"
    title = html_text(
        f"tokens {node.start:,} to {node.end:,}, {wording.counted(node.num_hits, 'hit')}: {node.text[:1000]}"
    )
    ago = newest - node.last_used
    used = "running" if node.is_locked else "last" if ago == 0 else f"{ago:,} before"
    return (
        f'<div class="node" title="{title}"><div class="span" aria-level="{depth + 1}">'
        f'<i class="heat{heat}{" locked" if node.is_locked else ""}" style="left:{left:.2f}%;width:{width:.2f}%"></i>'
        f'<span class="{place}" style="{style}">{text}</span></div>'
        f"<span>{len(node.token_ids):,}</span><span>{node.num_hits:,}</span><span>{used}</span></div>"
    )


def _heat(num_hits: int, max_hits: int) -> int:
    """0 for none, then by order of magnitude up to the most that a node has."""
    if num_hits == 0:
        return 0
    if max_hits <= 1:
        return _NUM_HEATS - 1
    return 1 + round((_NUM_HEATS - 2) * math.log(num_hits) / math.log(max_hits))
