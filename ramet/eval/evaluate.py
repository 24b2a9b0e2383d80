"""evaluate: every question of a task to a model, side by side, and the metrics over what came of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ..frontend.backend import Backend
from ..frontend.default_backend import as_backend, get_default_backend
from ..frontend.errors import ProgramCancelledError
from ..frontend.program import Program
from ..frontend.state import ProgramState
from .errors import InvalidTaskError, ScorerError
from .metrics import compute_metrics
from .perplexity import model_of
from .programs import ASK
from .question import Question, build_questions
from .results import EvalResult, ItemResult, Outcome, TokenTotals
from .results_file import ResultsFile
from .scoring import Scorer, judge
from .show import exact_prompt
from .task import Task

if TYPE_CHECKING:
    from ..frontend.default_backend import BackendLike


def evaluate(
    task: Task,
    backend: BackendLike | None = None,
    *,
    limit: int | None = None,
    max_concurrency: int = 64,
    progress_bar: bool = False,
    output: str | Path | None = None,
    resume: bool = False,
    scorers: Mapping[str, Scorer] | None = None,
) -> EvalResult:
    """Ask a model every question of a task and judge the answers. Blocks until all have ended.

    An item that fails (a prompt longer than the context) has an error instead of scores and disturbs no other.
    The result does not depend on max_concurrency, on what was cached or on an interruption.

    Args:
        backend: a backend, an LLM or a model name; None takes the default one.
        limit: how many items are asked, from the first on; None asks all.
        max_concurrency: how many at a time.
        progress_bar: show progress on the standard error stream.
        output: a file for the results, an item a line as soon as it has ended; in the order of the items at the end.
        resume: go on with `output` if it is there: what it has of these very questions is not asked again, only judged
            again. Without it the file must not exist.
        scorers: metrics of your own beside the task's.

    Raises:
        InvalidTaskError: the task does not fit its items, or an option is not allowed. Nothing has run then.
        ResultsFileError: `output` cannot be written or gone on with.
        GenerationError: the model has no chat template, or it refuses these roles.
    """
    resolved = get_default_backend() if backend is None else as_backend(backend)
    start = time.monotonic()
    questions = build_questions(task, limit)
    if resume and output is None:
        raise InvalidTaskError("resume=True needs an output to go on with")
    _check_first(task, questions[0], resolved)
    model = _model_name(resolved)
    keyed = [(question, question.key(task, model)) for question in questions]
    settings = {"model": model, **task.settings()}
    with ExitStack() as stack:
        file = None if output is None else stack.enter_context(ResultsFile(Path(output), settings, resume=resume))
        run = _Run(task, resolved, scorers or {}, file)
        known = {} if file is None else file.outcomes({key for _, key in keyed})
        todo = [(question, key) for question, key in keyed if key not in known]
        results = {question.idx: run.judged(question, key, known[key]) for question, key in keyed if key in known}
        results |= run.ask(todo, max_concurrency, progress_bar)
        items = tuple(results[question.idx] for question in questions)
        if file is not None:
            file.finish(items)
    return EvalResult(
        task=task,
        model=model,
        items=items,
        metrics=compute_metrics(task, items),
        tokens=TokenTotals.of(items),
        num_resumed=len(questions) - len(todo),
        elapsed_s=time.monotonic() - start,
        limit=limit,
    )


class _Run:
    """Asks questions and keeps their results, each written down as soon as it is there."""

    def __init__(self, task: Task, backend: Backend, scorers: Mapping[str, Scorer], file: ResultsFile | None) -> None:
        self._task = task
        self._backend = backend
        self._scorers = scorers
        self._file = file
        self._lock = threading.Lock()
        self._results: dict[int, ItemResult] = {}

    def ask(
        self, questions: Sequence[tuple[Question, str]], max_concurrency: int, progress_bar: bool
    ) -> dict[int, ItemResult]:
        """The results by the item's index."""

        def ask(s: ProgramState, question: Question, key: str) -> None:
            try:
                outcome = ASK[self._task.kind](s, self._task, question, self._backend)
            except ProgramCancelledError:
                raise
            except Exception as error:
                self._keep(ItemResult(question, key, error=_root_cause(error)))
                raise
            self._keep(self.judged(question, key, outcome))

        ask.__name__ = self._task.name  # the progress line shows it
        Program(ask).run_batch(
            questions, max_concurrency=max_concurrency, progress_bar=progress_bar, backend=self._backend
        )
        return self._results

    def judged(self, question: Question, key: str, outcome: Outcome) -> ItemResult:
        """The result of a question; with an error beside the outcome, if one of the user's scorers fails."""
        try:
            answers, scores = judge(self._task, question, outcome, self._scorers)
        except ScorerError as error:
            return ItemResult(question, key, outcome, error=str(error))
        return ItemResult(question, key, outcome, answers, scores)

    def _keep(self, result: ItemResult) -> None:
        with self._lock:
            self._results[result.question.idx] = result
        if self._file is not None:
            self._file.add(result)


def _check_first(task: Task, question: Question, backend: Backend) -> None:
    """Raise what would fail every item alike before the first of them runs."""
    if task.kind == "perplexity":
        model_of(backend)
    if task.chat != "off":
        exact_prompt(task, question, backend)


def _model_name(backend: Backend) -> str:
    info = backend.info()
    return str(info.get("model", info.get("backend", "unknown")))


def _root_cause(error: BaseException) -> str:
    """What went wrong first: the errors above it only say which call of ours it was."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"
