"""The sections on our own steps and on what the engine adds to them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from .markdown import format_number, table

TARGETS = {
    "decode, batch 1, context 128": "<= 6 ms",
    "decode, batch 32, context 128": "<= 18 ms",
    "decode, batch 32, shared 1,024 + 16": "<= 30 ms",
    "prefill 512": ">= 2500 tok/s",
}
HOST_TARGET = 0.10


def best_step_seconds(results: Mapping[str, Any], name: str) -> float:
    """The shortest time of a step over all rounds."""
    return min(part["steps"][name]["best"] for part in results["steps"])


def steps_section(results: Mapping[str, Any]) -> str:
    parts = results["steps"]
    rows = []
    for name, first in parts[0]["steps"].items():
        best = best_step_seconds(results, name)
        median = statistics.median(part["steps"][name]["median"] for part in parts)
        rate = first["num_tokens"] / best
        times = f"{format_number(best * 1e3)} ({format_number(median * 1e3)})"
        rows.append([name, times, f"{rate:.0f}", TARGETS.get(name, "")])
    heads = ["step", "ms, best (median)", "tok/s", "target"]
    return "\n".join([f"## One step of ramet's model ({parts[0]['kernels']} kernels)", "", *table(heads, rows)])


def host_section(results: Mapping[str, Any]) -> str:
    rows = []
    for batch_size in results["steps"][0]["host"]:
        best = min((part["host"][batch_size] for part in results["steps"]), key=lambda one: one["host"])
        phases = [f"{best[phase] * 1e6:.0f}" for phase in ("intake", "schedule", "sample", "commit")]
        share = best["host"] / best["step"]
        verdict = "met" if share <= HOST_TARGET else "missed"
        rows.append(
            [
                batch_size,
                f"{best['forward'] * 1e3:.2f}",
                *phases,
                f"{best['host'] * 1e6:.0f}",
                f"{share:.1%}",
                f"{HOST_TARGET:.0%}, {verdict}",
            ]
        )
    heads = [
        "sequences",
        "model, ms",
        "intake, us",
        "schedule, us",
        "sample, us",
        "commit, us",
        "all but the model, us",
        "of the step",
        "target",
    ]
    return "\n".join(["## What the engine adds to a decoding step", "", *table(heads, rows)])
