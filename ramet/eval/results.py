"""What an evaluation gives: an ItemResult each, metrics over them, and what the cache saved."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .. import __version__
from .question import Question
from .task import Task


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the model did with a question. It says nothing of right or wrong.

    Attributes:
        prompt: the exact text before the answer, special tokens included; of a perplexity the text itself.
        output: the text that was generated or selected.
        finish_reason: as of a gen; "select" or "scored" where nothing was generated.
        logprobs: log-probability of each choice, in order; of a perplexity one, that of the text.
        num_scored_tokens: how many tokens each of these is a sum over.
        num_prompt_tokens, num_cached_tokens, num_generated_tokens: as of CallMeta.
        duration_s: from submission to the end, seconds.
    """

    prompt: str
    output: str = ""
    finish_reason: str = "scored"
    logprobs: tuple[float, ...] = ()
    num_scored_tokens: tuple[int, ...] = ()
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    duration_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """As plain JSON; a log-probability of minus infinity is null."""
        return {
            "prompt": self.prompt,
            "output": self.output,
            "finish_reason": self.finish_reason,
            "logprobs": [_finite(value) for value in self.logprobs],
            "num_scored_tokens": list(self.num_scored_tokens),
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_cached_tokens": self.num_cached_tokens,
            "num_generated_tokens": self.num_generated_tokens,
            "duration_s": round(self.duration_s, 4),
        }

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Outcome:
        """
        Raises:
            KeyError, TypeError, ValueError: it is not what `to_json` gives.
        """
        return cls(
            prompt=str(line["prompt"]),
            output=str(line["output"]),
            finish_reason=str(line["finish_reason"]),
            logprobs=tuple(-math.inf if value is None else float(value) for value in line["logprobs"]),
            num_scored_tokens=tuple(int(value) for value in line["num_scored_tokens"]),
            num_prompt_tokens=int(line["num_prompt_tokens"]),
            num_cached_tokens=int(line["num_cached_tokens"]),
            num_generated_tokens=int(line["num_generated_tokens"]),
            duration_s=float(line["duration_s"]),
        )


@dataclass(frozen=True, slots=True)
class ItemResult:
    """One item and what came of it.

    Attributes:
        key: of the question; see Question.key.
        outcome: None if the model gave none.
        answers: per metric, the answer that was judged; None if none was found.
        scores: per metric, a number; 1 and 0 for right and wrong.
        error: why it has no scores, None otherwise.
    """

    question: Question
    key: str
    outcome: Outcome | None = None
    answers: Mapping[str, str | None] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """A line of the results file."""
        question = self.question
        line: dict[str, Any] = {"idx": question.idx, "key": self.key, "item": dict(question.item)}
        if question.choices:
            line |= {"choices": list(question.choices), "target_idx": question.target_idx}
        line |= {"targets": list(question.targets), "answers": dict(self.answers)}
        line["scores"] = {name: _finite(value) for name, value in self.scores.items()}
        if self.outcome is not None:
            line |= self.outcome.to_json()
        return line if self.error is None else {**line, "error": self.error}


@dataclass(frozen=True, slots=True)
class Metric:
    """A number over all items that have scores.

    Attributes:
        stderr: standard error; None of a single item.
        low, high: ends of the 95 % interval.
        interval: how it was found: "wilson" where every score is 0 or 1, else "bootstrap".
    """

    name: str
    value: float
    stderr: float | None
    low: float
    high: float
    interval: Literal["wilson", "bootstrap"]
    num_items: int

    def to_json(self) -> dict[str, Any]:
        return {
            "value": _finite(self.value),
            "stderr": _finite(self.stderr),
            "low": _finite(self.low),
            "high": _finite(self.high),
            "interval": self.interval,
            "num_items": self.num_items,
        }


def _finite(value: float | None) -> float | None:
    """The number, or None for what JSON has no number for."""
    return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class TokenTotals:
    """Sums over all items, those of an earlier run that was gone on with included."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0

    @classmethod
    def of(cls, items: Sequence[ItemResult]) -> TokenTotals:
        outcomes = [item.outcome for item in items if item.outcome is not None]
        return cls(
            sum(outcome.num_prompt_tokens for outcome in outcomes),
            sum(outcome.num_cached_tokens for outcome in outcomes),
            sum(outcome.num_generated_tokens for outcome in outcomes),
        )

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that came from the cache, in [0, 1]."""
        return self.num_cached_tokens / self.num_prompt_tokens if self.num_prompt_tokens else 0.0


@dataclass(frozen=True, slots=True)
class EvalResult:
    """The whole evaluation.

    Attributes:
        items: in the order of the task's items.
        metrics: by name, over the items without an error.
        num_resumed: items whose outcome an earlier run had written.
        elapsed_s: what this run took, seconds.
        limit: how many of the task's items were asked at most; None for all.
    """

    task: Task
    model: str
    items: tuple[ItemResult, ...]
    metrics: Mapping[str, Metric]
    tokens: TokenTotals
    num_resumed: int
    elapsed_s: float
    limit: int | None = None

    @property
    def failed(self) -> tuple[ItemResult, ...]:
        """The items with an error."""
        return tuple(item for item in self.items if item.error is not None)

    def to_json(self) -> dict[str, Any]:
        """The summary, without the items."""
        task = self.task
        return {
            "task": task.name,
            "model": self.model,
            "ramet_version": __version__,
            **task.settings(),
            "limit": self.limit,
            "num_items": len(self.items),
            "num_failed": len(self.failed),
            "num_resumed": self.num_resumed,
            "metrics": {name: metric.to_json() for name, metric in self.metrics.items()},
            "tokens": {
                "num_prompt_tokens": self.tokens.num_prompt_tokens,
                "num_cached_tokens": self.tokens.num_cached_tokens,
                "num_generated_tokens": self.tokens.num_generated_tokens,
                "hit_rate": self.tokens.hit_rate,
            },
            "elapsed_s": self.elapsed_s,
        }
