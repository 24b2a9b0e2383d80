"""What a check is, how checks are run, and the measures of being right."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from .results import Record

LIMITS = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 1e-2}
"""Largest ||result - exact|| / ||exact|| of an op in a dtype: a few roundings of it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        error: in the measure that the limit is in; NaN is wrong.
    """

    what: str
    error: float
    limit: float

    @property
    def is_right(self) -> bool:
        return self.error <= self.limit


@dataclass(frozen=True, slots=True)
class Check:
    """Attributes:
    run: computes something and compares; has no effect on other checks, so it may run beside them.
    """

    name: str
    run: Callable[[], list[Finding]]

    def __str__(self) -> str:
        return self.name


def close_to(what: str, actual: Tensor, exact: Tensor, limit: float) -> Finding:
    """The relative error of the whole; NaN where an element is not finite."""
    difference = torch.linalg.vector_norm(actual.double() - exact.double())
    return Finding(what, float(difference / torch.linalg.vector_norm(exact.double()).clamp(min=1e-30)), limit)


def same_bits(what: str, actual: Tensor, expected: Tensor) -> Finding:
    """How many elements differ; none may."""
    return Finding(what, float((actual != expected).sum()), 0.0)


@contextlib.contextmanager
def poisoned_memory() -> Iterator[None]:
    """New tensors hold NaN, or the largest integer, until they are written: what a kernel leaves out is seen."""
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    was_filling = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = was_filling


def run_checks(checks: Sequence[Check], num_threads: int, record: Record) -> None:
    """Run them, several at a time: most of their time is compilation. One that raises is run once more by itself, and
    its failure is written down if it raises again."""
    failed: list[Check] = []
    with poisoned_memory():
        with ThreadPoolExecutor(num_threads) as pool:
            running = [(check, pool.submit(_run, check, record)) for check in checks]
            for check, future in running:
                try:
                    _write_down(check, future.result(), record)
                except Exception:
                    failed.append(check)
        for check in failed:
            with record.guard(check.name):
                _write_down(check, _run(check, record), record)
                record.note(f"{check.name} failed beside other checks and passed by itself.")


def _run(check: Check, record: Record) -> list[Finding] | None:
    """None if time is over."""
    if record.deadline.is_over:
        return None
    with torch.inference_mode():
        return check.run()


def _write_down(check: Check, findings: list[Finding] | None, record: Record) -> None:
    if findings is None:
        record.note(f"Left out for lack of time: {check.name}.")
        return
    for finding in findings:
        record.row(
            check=f"{check.name}: {finding.what}", error=finding.error, limit=finding.limit, is_right=finding.is_right
        )
