"""What does the prefix cache give a few-shot evaluation? Public tasks with and without it, in one process.

    python -m benchmarks.eval --data DIR [--rounds 2] [--quick] [--output benchmarks/results/eval.md]

DIR holds gsm8k/ and bbh/ (see ramet/eval/builtin.py). Every task is asked with an empty cache and with caching switched
off, alternating, so read the ratios. The answers must be the same. The model is tiny: its accuracy says nothing of the
tasks.
"""

from __future__ import annotations

import argparse
import platform
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramet import LLM
from ramet.eval import EvalResult, Metric, Task, evaluate, load_task

TASKS: list[tuple[str, int, dict[str, Any]]] = [
    ("gsm8k", 16, {"max_tokens": 64}),
    ("bbh:boolean_expressions", 16, {"max_tokens": 64}),
    ("bbh:navigate", 12, {"max_tokens": 64}),
    ("bbh:sports_understanding", 16, {"max_tokens": 64}),
    ("bbh_choices:boolean_expressions", 60, {}),
    ("bbh_choices:navigate", 60, {}),
    ("bbh_choices:date_understanding", 60, {}),
    ("bbh_choices:logical_deduction_three_objects", 60, {}),
]
"""Name, items, changes. Answers are cut at 64 tokens: reading is measured, and writing costs the same both ways."""


@dataclass(frozen=True)
class Comparison:
    """One task: the last result with the cache, and the seconds of all rounds."""

    result: EvalResult
    seconds: list[float]
    plain_seconds: list[float]

    @property
    def speed_up(self) -> float:
        return statistics.median(self.plain_seconds) / statistics.median(self.seconds)


def answers(result: EvalResult) -> list[tuple[object, ...]]:
    outcomes = [item.outcome for item in result.items]
    assert not result.failed
    return [(each.output, each.logprobs) for each in outcomes if each is not None]


def compare(task: Task, limit: int, cached: LLM, plain: LLM, num_rounds: int) -> Comparison:
    seconds, plain_seconds = [], []
    for _ in range(num_rounds):
        cached.reset_prefix_cache()
        result = evaluate(task, cached, limit=limit)
        without = evaluate(task, plain, limit=limit)
        assert answers(result) == answers(without), "the cache must not change an answer"
        seconds.append(result.elapsed_s)
        plain_seconds.append(without.elapsed_s)
    return Comparison(result, seconds, plain_seconds)


def line(each: Comparison) -> str:
    result = each.result
    first: Metric = next(iter(result.metrics.values()))
    seconds, plain_seconds = statistics.median(each.seconds), statistics.median(each.plain_seconds)
    return (
        f"| {result.task.name} | {len(result.items)} | {result.task.num_shots} | "
        f"{first.name} {first.value:.3f} ({first.low:.3f} to {first.high:.3f}) | "
        f"{result.tokens.num_cached_tokens:,} of {result.tokens.num_prompt_tokens:,} ({result.tokens.hit_rate:.0%}) | "
        f"{seconds:.1f} | {plain_seconds:.1f} | {each.speed_up:.1f}x |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a few items each: to see that all runs")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    lines = []
    with LLM("smollm2") as cached, LLM("smollm2", enable_prefix_caching=False) as plain:
        for name, limit, changes in TASKS:
            task = load_task(name, args.data, **changes)
            lines.append(line(compare(task, 4 if args.quick else limit, cached, plain, args.rounds)))
            print(lines[-1], flush=True)
        machine = f"{platform.machine()}, Python {platform.python_version()}, {cached.num_threads} threads"
    document = f"""# Few-shot evaluation

`python -m benchmarks.eval --data DIR`

{machine}, {cached.kernels_name} kernels, SmolLM2-135M; {args.rounds} rounds. Log-probabilities and texts are
equal to the last bit with the cache and without. Generated answers are cut at 64 tokens.

| task | items | shots | metric (95 %) | prompt tokens from the cache | seconds | without | speed-up |
|---|---|---|---|---|---|---|---|
{chr(10).join(lines)}
"""
    if args.output is not None:
        args.output.write_text(document, encoding="utf-8")


if __name__ == "__main__":
    main()
