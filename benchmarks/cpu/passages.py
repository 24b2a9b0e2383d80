"""Text of several kinds, to compare the logits of two ways to compute the same model on.

All of it is this repository's own, or made up here, so it is at hand wherever the benchmarks are.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WINDOW_TOKENS = 512
TOKENS_PER_KIND = 1024


def read_passages() -> dict[str, str]:
    """The kinds and their texts."""
    return {
        "story": (HERE / "passages" / "story.txt").read_text(encoding="utf-8"),
        "licence": (ROOT / "LICENSE").read_text(encoding="utf-8"),
        "documentation": (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"),
        "code": (ROOT / "radix" / "tree.py").read_text(encoding="utf-8"),
        "data": make_data(),
        "languages": (HERE / "passages" / "languages.txt").read_text(encoding="utf-8"),
    }


def make_data() -> str:
    """Records as JSON and as a table."""
    chance = random.Random(1)
    names = ["Adler", "Bianchi", "Costa", "Dubois", "Evans", "Fischer", "Garcia", "Hansen", "Ito", "Jansen"]
    cities = ["Lisbon", "Oslo", "Turin", "Ghent", "Kyoto", "Cardiff", "Malmo", "Graz"]
    orders = [
        {
            "id": 1000 + idx,
            "customer": {"name": chance.choice(names), "city": chance.choice(cities)},
            "items": [
                {"sku": f"A-{chance.randrange(100, 999)}", "count": chance.randrange(1, 9)}
                for _ in range(chance.randrange(1, 3))
            ],
            "paid": chance.random() < 0.7,
            "total": round(chance.uniform(5, 200), 2),
        }
        for idx in range(12)
    ]
    rows = [
        f"| {chance.choice(names):8} | {chance.choice(cities):8} | {chance.randrange(1900, 2020)} |" for _ in range(30)
    ]
    return json.dumps(orders, indent=2) + "\n\n" + "\n".join(["| name | city | year |", "|---|---|---|", *rows]) + "\n"


def make_windows(encode: Callable[[str], list[int]]) -> dict[str, list[list[int]]]:
    """Windows of token ids by kind, each a text of its own: the first ones of every passage."""
    windows = {}
    for kind, text in read_passages().items():
        token_ids = encode(text)[:TOKENS_PER_KIND]
        windows[kind] = [token_ids[start : start + WINDOW_TOKENS] for start in range(0, len(token_ids), WINDOW_TOKENS)]
    return windows
