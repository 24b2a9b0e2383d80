"""Judging an outcome: the answer each metric sees, and its score. No model is needed, so it can be done again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from .errors import ScorerError
from .question import Question
from .results import Outcome
from .task import Task

Scorer = Callable[[Mapping[str, Any], Outcome], float | bool]
"""A metric of the user's own: the item and what the model made of it, to a number."""

Judged = tuple[dict[str, str | None], dict[str, float]]
"""Answers and scores, by metric."""


def judge(task: Task, question: Question, outcome: Outcome, scorers: Mapping[str, Scorer]) -> Judged:
    """The answers and scores of one item.

    Raises:
        ScorerError: a scorer raised, or gave no number.
    """
    answers, scores = _JUDGES[task.kind](task, question, outcome)
    for name, scorer in scorers.items():
        try:
            score = float(scorer(question.item, outcome))
        except Exception as error:
            raise ScorerError(f"the scorer {name!r} failed: {type(error).__name__}: {error}") from error
        if not math.isfinite(score):
            raise ScorerError(f"the scorer {name!r} gave {score}, and a score must be a finite number")
        scores[name] = score
    return answers, scores


def _judge_likelihoods(task: Task, question: Question, outcome: Outcome) -> Judged:
    """`acc`: the likeliest choice is right; `acc_norm`: that of the highest log-probability per character is."""
    sums = outcome.logprobs
    per_character = [value / len(choice) for value, choice in zip(sums, question.choices, strict=True)]
    answers: dict[str, str | None] = {}
    scores: dict[str, float] = {}
    for name, values in (("acc", sums), ("acc_norm", per_character)):
        best = max(range(len(values)), key=lambda idx: values[idx])
        answers[name] = question.choices[best]
        scores[name] = float(question.choices[best] == question.targets[0])
    return answers, scores


def _judge_selection(task: Task, question: Question, outcome: Outcome) -> Judged:
    return {"acc": outcome.output}, {"acc": float(outcome.output == question.targets[0])}


def _judge_text(task: Task, question: Question, outcome: Outcome) -> Judged:
    answers = {each.name: each.extract(outcome.output) for each in task.filters}
    scores = {each.name: float(each.is_right(answers[each.name], question.targets)) for each in task.filters}
    return answers, scores


def _judge_perplexity(task: Task, question: Question, outcome: Outcome) -> Judged:
    """Its metrics are ratios of sums over all items; an item has the parts."""
    text = question.parts[0][1]
    return {}, {
        "logprob": outcome.logprobs[0],
        "num_words": float(len(text.split())),
        "num_bytes": float(len(text.encode())),
        "num_tokens": float(outcome.num_scored_tokens[0]),
    }


_JUDGES: Mapping[str, Callable[[Task, Question, Outcome], Judged]] = {
    "multiple_choice": _judge_likelihoods,
    "select": _judge_selection,
    "generate": _judge_text,
    "perplexity": _judge_perplexity,
}
