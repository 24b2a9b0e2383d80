"""The table that a person reads after an evaluation."""

from __future__ import annotations

from .results import EvalResult, Metric

_HEADINGS = ("metric", "value", "stderr", "95 % interval")


def format_report(result: EvalResult) -> str:
    """What was asked, a line per metric, what failed, what the cache saved. Several lines, no newline at the end."""
    task, num_items = result.task, len(result.items)
    shots = f"{_counted(task.num_shots, 'shot')} ({_shot_order(result)})" if task.num_shots else "no shots"
    chat = "" if task.chat == "off" else f", chat {task.chat}"
    lines = [f"{task.name}: {task.kind}, {_counted(num_items, 'item')}, {shots}{chat}, model {result.model}"]
    if result.num_resumed:
        lines.append(f"{result.num_resumed:,} of them were there from an earlier run")
    if result.metrics:
        lines += ["", *_table(list(result.metrics.values()))]
    lines.append("")
    if result.failed:
        first = result.failed[0]
        lines.append(
            f"{_counted(len(result.failed), 'item')} failed and counted in no metric; the first, "
            f"item {first.question.idx}: {first.error}"
        )
    return "\n".join([*lines, format_tokens(result)])


def format_tokens(result: EvalResult) -> str:
    """What the cache saved and how long it took, as one line."""
    tokens, num_asked = result.tokens, len(result.items) - result.num_resumed
    rate = f", {num_asked / result.elapsed_s:.1f} items/s" if num_asked and result.elapsed_s > 0 else ""
    return (
        f"{tokens.num_cached_tokens:,} of {tokens.num_prompt_tokens:,} prompt tokens from the cache "
        f"({100 * tokens.hit_rate:.0f} %); {tokens.num_generated_tokens:,} generated; {result.elapsed_s:.1f} s{rate}"
    )


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _shot_order(result: EvalResult) -> str:
    task = result.task
    return task.shot_order if task.shot_order == "first" else f"{task.shot_order}, seed {task.seed}"


def _table(metrics: list[Metric]) -> list[str]:
    rows = [_HEADINGS, *(_row(metric) for metric in metrics)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS) - 1)]
    return [
        "  ".join([row[0].ljust(widths[0]), row[1].rjust(widths[1]), row[2].rjust(widths[2]), row[3]]) for row in rows
    ]


def _row(metric: Metric) -> tuple[str, str, str, str]:
    stderr = "-" if metric.stderr is None else f"{metric.stderr:.4f}"
    return (
        metric.name,
        f"{metric.value:.4f}",
        stderr,
        f"{metric.low:.4f} .. {metric.high:.4f} ({metric.interval})",
    )
