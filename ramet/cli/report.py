"""The cache report: what each call asked of the model, and how much of it the prefix cache already held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .terminal import Terminal

_HEADINGS = ("prompt", "cached", "computed", "generated", "seconds")
_MAX_LABEL_LEN = 44


@dataclass(frozen=True, slots=True)
class CallRow:
    """One call. Counts are tokens; computed tokens are prompt tokens that were not in the cache."""

    label: str
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    duration_s: float

    @property
    def num_computed_tokens(self) -> int:
        return self.num_prompt_tokens - self.num_cached_tokens


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over some calls, and the time from the first to the last of them in seconds."""

    num_calls: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    elapsed_s: float

    @classmethod
    def of(cls, rows: Sequence[CallRow], elapsed_s: float) -> Totals:
        return cls(
            num_calls=len(rows),
            num_prompt_tokens=sum(row.num_prompt_tokens for row in rows),
            num_cached_tokens=sum(row.num_cached_tokens for row in rows),
            num_generated_tokens=sum(row.num_generated_tokens for row in rows),
            elapsed_s=elapsed_s,
        )

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that came from the cache, in [0, 1]."""
        return self.num_cached_tokens / self.num_prompt_tokens if self.num_prompt_tokens else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second of elapsed time."""
        return self.num_generated_tokens / self.elapsed_s if self.elapsed_s > 0 else 0.0


def format_table(rows: Sequence[CallRow], totals: Totals, terminal: Terminal) -> str:
    """The calls as a table with a line of sums, ready to print."""
    labels = [_shortened(row.label) for row in rows]
    label_width = max(len("call"), len("all"), *map(len, labels)) if labels else len("call")
    heading = "call".ljust(label_width) + "".join(f"{name:>11}" for name in _HEADINGS)
    lines = [terminal.bold(heading), terminal.dim("-" * len(heading))]
    for label, row in zip(labels, rows, strict=True):
        lines.append(
            label.ljust(label_width)
            + f"{row.num_prompt_tokens:>11,}"
            + terminal.good(f"{row.num_cached_tokens:>11,}")
            + f"{row.num_computed_tokens:>11,}{row.num_generated_tokens:>11,}{row.duration_s:>11.2f}"
        )
    lines.append(terminal.dim("-" * len(heading)))
    lines.append(
        "all".ljust(label_width)
        + f"{totals.num_prompt_tokens:>11,}"
        + terminal.good(f"{totals.num_cached_tokens:>11,}")
        + f"{totals.num_prompt_tokens - totals.num_cached_tokens:>11,}{totals.num_generated_tokens:>11,}"
        + f"{totals.elapsed_s:>11.2f}"
    )
    return "\n".join(lines)


def format_summary(totals: Totals) -> str:
    """The sums as one line."""
    calls = "1 call" if totals.num_calls == 1 else f"{totals.num_calls:,} calls"
    return (
        f"{calls}, {totals.num_prompt_tokens:,} prompt tokens: {totals.num_cached_tokens:,} from the cache "
        f"({totals.hit_rate:.0%}), {totals.num_prompt_tokens - totals.num_cached_tokens:,} computed; "
        f"{totals.num_generated_tokens:,} generated in {totals.elapsed_s:.1f} s ({totals.tokens_per_s:.1f} tok/s)"
    )


def _shortened(label: str) -> str:
    return label if len(label) <= _MAX_LABEL_LEN else label[: _MAX_LABEL_LEN - 3] + "..."
