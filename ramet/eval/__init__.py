"""Few-shot evaluation: tasks of JSONL items, asked as programs, so that their shots are computed once.

from ramet.eval import evaluate, format_report, load_task

result = evaluate(load_task("bbh_choices:navigate", data="data"), "smollm2", limit=100)
print(format_report(result), result.metrics["acc"].value)
"""

from __future__ import annotations

from .errors import InvalidTaskError, ResultsFileError, ScorerError
from .evaluate import evaluate
from .filters import Filter
from .question import Question, build_questions
from .report import format_report
from .results import EvalResult, ItemResult, Metric, Outcome, TokenTotals
from .scoring import Scorer
from .show import ShownPrompt, exact_prompt
from .task import Task
from .task_file import load_task

__all__ = [
    "EvalResult",
    "Filter",
    "InvalidTaskError",
    "ItemResult",
    "Metric",
    "Outcome",
    "Question",
    "ResultsFileError",
    "Scorer",
    "ScorerError",
    "ShownPrompt",
    "Task",
    "TokenTotals",
    "build_questions",
    "evaluate",
    "exact_prompt",
    "format_report",
    "load_task",
]
