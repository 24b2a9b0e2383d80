"""The cache report: what each call asked of the model, and how much of it the prefix cache already held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..counted import counted
from .terminal import Terminal

_HEADINGS = ("prompt", "cached", "computed", "generated", "seconds")
_NUMBER_WIDTH = 11
_MIN_LABEL_LEN, _MAX_LABEL_LEN = 12, 44


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
class FailedCall:
    """One call that failed, and the error as one line."""

    label: str
    error: str


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


def format_table(calls: Sequence[CallRow | FailedCall], totals: Totals, terminal: Terminal) -> str:
    """The calls as a table with a line of sums, ready to print. On a terminal its lines fit, if labels can be cut."""
    labels = [_shortened(call.label, _max_label_len(terminal)) for call in calls]
    label_width = max(len("call"), *map(len, labels)) if labels else len("call")
    heading = "call".ljust(label_width) + "".join(name.rjust(_NUMBER_WIDTH) for name in _HEADINGS)
    rule = terminal.dim("-" * len(heading))
    lines = [terminal.bold(heading), rule]
    for label, call in zip(labels, calls, strict=True):
        if isinstance(call, CallRow):
            counts = (call.num_prompt_tokens, call.num_cached_tokens, call.num_computed_tokens)
            lines.append(_line(label.ljust(label_width), counts, call.num_generated_tokens, call.duration_s, terminal))
        else:
            width = len(_HEADINGS) * _NUMBER_WIDTH
            lines.append(
                label.ljust(label_width) + terminal.bad(_shortened(f"  failed: {call.error}", width).ljust(width))
            )
    num_computed = totals.num_prompt_tokens - totals.num_cached_tokens
    counts = (totals.num_prompt_tokens, totals.num_cached_tokens, num_computed)
    lines += [rule, _line("all".ljust(label_width), counts, totals.num_generated_tokens, totals.elapsed_s, terminal)]
    return "\n".join(lines)


def _line(
    label: str, prompt_counts: tuple[int, int, int], num_generated: int, duration_s: float, terminal: Terminal
) -> str:
    num_prompt, num_cached, num_computed = prompt_counts
    return (
        f"{label}{num_prompt:>{_NUMBER_WIDTH},}"
        + terminal.good(f"{num_cached:>{_NUMBER_WIDTH},}")
        + f"{num_computed:>{_NUMBER_WIDTH},}{num_generated:>{_NUMBER_WIDTH},}{duration_s:>{_NUMBER_WIDTH}.2f}"
    )


def format_summary(totals: Totals) -> str:
    """The sums as one line."""
    calls = counted(totals.num_calls, "call")
    return (
        f"{calls}, {totals.num_prompt_tokens:,} prompt tokens: {totals.num_cached_tokens:,} from the cache "
        f"({totals.hit_rate:.0%}), {totals.num_prompt_tokens - totals.num_cached_tokens:,} computed; "
        f"{totals.num_generated_tokens:,} generated in {totals.elapsed_s:.1f} s ({totals.tokens_per_s:.1f} tok/s)"
    )


def format_failures(failures: Sequence[FailedCall], num_calls: int) -> str:
    """How many calls failed, and what the first of them met, as one line.

    Args:
        failures: at least one.
        num_calls: how many calls there were, these included.
    """
    first = failures[0]
    calls = counted(num_calls, "call")
    which = first.label if len(failures) == 1 else f"the first, {first.label}"
    return f"{len(failures):,} of {calls} failed; {which}: {first.error}"


def _max_label_len(terminal: Terminal) -> int:
    if not terminal.is_interactive:
        return _MAX_LABEL_LEN
    room = terminal.width - len(_HEADINGS) * _NUMBER_WIDTH
    return min(max(room, _MIN_LABEL_LEN), _MAX_LABEL_LEN)


def _shortened(text: str, max_len: int) -> str:
    return text if len(text) <= max_len else text[: max_len - 3] + "..."
