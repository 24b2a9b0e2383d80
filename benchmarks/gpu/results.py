"""What a run writes down: rows, checks, targets and failures of each part; JSON and Markdown after every one."""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Row = dict[str, Any]


class Deadline:
    """A moment by which something should be over."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock() + seconds

    @property
    def left(self) -> float:
        """Seconds; negative when it has passed."""
        return self._at - self._clock()

    @property
    def is_over(self) -> bool:
        return self.left <= 0

    def earlier(self, seconds: float) -> Deadline:
        """In so many seconds from now, or at this one if that is earlier."""
        return Deadline(min(self.left, seconds), self._clock)


@dataclass(frozen=True, slots=True)
class Target:
    """A goal that was set before anything was measured.

    Attributes:
        value: what was measured, in the unit of the goal.
        is_at_least: whether more is better; else less.
    """

    name: str
    value: float
    goal: float
    is_at_least: bool = True

    @property
    def is_met(self) -> bool:
        return self.value >= self.goal if self.is_at_least else self.value <= self.goal


@dataclass
class PartResult:
    """What came of a part.

    Attributes:
        rows: flat, with the keys of the part's columns.
        notes: sentences for whoever reads the table.
        failures: tracebacks, of the whole part or of single cases.
        seconds: on the wall.
        compile_seconds: of them, first calls: compilation, mostly.
        skipped: why it did not run; None if it did.
    """

    name: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    failures: list[dict[str, str]] = field(default_factory=list)
    seconds: float = 0.0
    compile_seconds: float = 0.0
    skipped: str | None = None

    @property
    def num_wrong(self) -> int:
        """Rows of checks whose result is wrong."""
        return sum(row.get("is_right") is False for row in self.rows)

    @property
    def is_sound(self) -> bool:
        """Whether it measured something, and nothing failed or is wrong. A part that was skipped has shown nothing."""
        return bool(self.rows) and not self.failures and not self.num_wrong

    def as_dict(self) -> dict[str, Any]:
        targets = [{**asdict(target), "is_met": target.is_met} for target in self.targets]
        return {**asdict(self), "targets": targets, "num_wrong": self.num_wrong}


class Record:
    """What a part writes its result with, as long as its time lasts."""

    def __init__(self, result: PartResult, deadline: Deadline) -> None:
        self.result = result
        self.deadline = deadline

    def row(self, cells: Row | None = None, **more: Any) -> None:
        """Add a row; one that is given as a dictionary may still be changed."""
        row = {} if cells is None else cells
        row.update(more)
        self.result.rows.append(row)

    def note(self, text: str) -> None:
        self.result.notes.append(text)

    def target(self, name: str, value: float, goal: float, *, is_at_least: bool = True) -> None:
        self.result.targets.append(Target(name, value, goal, is_at_least))

    def fail(self, label: str, error: BaseException) -> None:
        text = "".join(traceback.format_exception(error))
        self.result.failures.append({"case": label, "error": f"{type(error).__name__}: {error}", "traceback": text})

    @contextmanager
    def guard(self, label: str) -> Iterator[None]:
        """A failure inside is written down, and the code behind goes on."""
        try:
            yield
        except Exception as error:
            self.fail(label, error)

    def in_time(self, cases: Sequence[T], seconds_each: float = 0.0) -> Iterator[T]:
        """The cases, until too little time is left for another; those left out are noted.

        Args:
            seconds_each: what a case takes at least.
        """
        for idx, case in enumerate(cases):
            if self.deadline.left <= seconds_each:
                names = ", ".join(str(left_out) for left_out in cases[idx:])
                self.note(f"Left out for lack of time: {names}.")
                return
            yield case


def finite_or_text(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become text. Numbers in containers too."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: finite_or_text(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_text(entry) for entry in value]
    return value


def save_json(path: Path, header: dict[str, Any], results: Sequence[PartResult]) -> None:
    """Replace the file by the results so far."""
    data = finite_or_text({**header, "parts": [result.as_dict() for result in results]})
    scratch = path.with_suffix(".part")
    scratch.write_text(json.dumps(data, indent=1, default=str) + "\n", encoding="utf-8")
    scratch.replace(path)
