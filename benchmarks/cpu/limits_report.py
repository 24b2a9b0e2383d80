"""The section on the machine's limits and how far from them we are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .markdown import format_number, table
from .steps_report import best_step_seconds


def limits_section(results: Mapping[str, Any]) -> str:
    limits = {name: max(part[name] for part in results["limits"]) for name in results["limits"][0]}
    model = results["model"]
    megabytes = model["weight_bytes"] / 1e6
    per_row = 2 * (model["num_body_weights"] + model["num_head_weights"])
    prefill = 2 * (model["num_body_weights"] * 512 + model["num_head_weights"])
    dram, cached = limits["dram_bytes_per_second"], limits["weights_bytes_per_second"]
    int8 = limits["int8_ops_per_second"]
    floors = [
        ("read, 1 GiB buffer", f"{dram / 1e9:.1f} GB/s", "decode, batch 1, context 128", model["weight_bytes"] / dram),
        (
            f"read, buffer of the weights' {megabytes:.0f} MB",
            f"{cached / 1e9:.1f} GB/s",
            "decode, batch 1, context 128",
            model["weight_bytes"] / cached,
        ),
        ("int8 products", f"{int8 / 1e9:.0f} GOP/s", "decode, batch 32, context 128", 32 * per_row / int8),
        ("int8 products", f"{int8 / 1e9:.0f} GOP/s", "prefill 512", prefill / int8),
        ("fp32 products", f"{limits['fp32_ops_per_second'] / 1e9:.0f} GOP/s", "", None),
    ]
    rows = [[limit, value, step, *_distance(results, step, floor)] for limit, value, step, floor in floors]
    heads = ["limit", "measured", "bounds the step", "floor, ms", "ramet, ms", "ramet / floor"]
    note = (
        "Reads are `torch.sum`, products `torch._int_mm` and `torch.mm` on squares of 2,048: what torch reaches here, "
        "not what the data sheet says. A floor counts the weights alone: no attention, no activations."
    )
    return "\n".join(["## The machine's limits", "", *table(heads, rows), "", note])


def _distance(results: Mapping[str, Any], step: str, floor: float | None) -> list[str]:
    if floor is None:
        return ["", "", ""]
    if not results["steps"]:
        return [format_number(floor * 1e3), "", ""]
    own = best_step_seconds(results, step)
    return [format_number(floor * 1e3), format_number(own * 1e3), f"{own / floor:.1f}x"]
