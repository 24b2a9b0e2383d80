"""run_batch: many runs of one program, a bounded number at a time, each with a result of its own."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from .errors import InvalidProgramError
from .progress import Progress
from .scope import Scope
from .state import ProgramState

MAX_CONCURRENCY = 4096

BatchItem = tuple[Scope, Callable[[], BaseException | None]]
"""A run that has not begun, and what runs its body to the end and hands back what it raised."""


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How to run a batch.

    Raises:
        InvalidProgramError: max_concurrency is not an integer from 1 to 4096.
    """

    max_concurrency: int = 64
    has_progress: bool = False

    def __post_init__(self) -> None:
        value = self.max_concurrency
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_CONCURRENCY:
            raise InvalidProgramError(
                f"max_concurrency={value!r} is not allowed: give an integer from 1 to {MAX_CONCURRENCY}"
            )


def run_batch(items: Sequence[BatchItem], options: BatchOptions, *, name: str) -> list[ProgramState]:
    """Run every item to its end; one state per item, in order. There is at least one.

    If interrupted, everything that runs is cancelled.
    """
    progress = Progress(name, len(items)) if options.has_progress else None
    num_threads = min(options.max_concurrency, len(items))
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix=f"ramet-{name}")
    futures: list[Future[None]] = []
    try:
        for item in items:
            futures.append(pool.submit(contextvars.copy_context().run, _run_item, item, progress))
        for future in wait(futures, return_when=FIRST_EXCEPTION).done:
            future.result()
    except BaseException:
        for future in futures:
            future.cancel()
        for scope, _ in items:
            scope.cancel("the batch was interrupted")
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        if progress is not None:
            progress.close()
    return [ProgramState(scope) for scope, _ in items]


def _run_item(item: BatchItem, progress: Progress | None) -> None:
    scope, execute = item
    error = execute()
    if error is not None and not isinstance(error, Exception):
        raise error
    scope.wait()
    if progress is not None:
        metas = [record.meta for record in scope.run.graph.records() if record.meta is not None]
        progress.add(
            is_failed=scope.run.body_error() is not None or scope.failure() is not None,
            num_prompt_tokens=sum(meta.num_prompt_tokens for meta in metas),
            num_cached_tokens=sum(meta.num_cached_tokens for meta in metas),
            num_generated_tokens=sum(meta.num_generated_tokens for meta in metas),
        )
