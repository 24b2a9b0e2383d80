"""ResultsFile: a line of JSON per item, written as soon as the item has ended, so that a killed run can go on.

What is reused is looked up by the key of its question: a run whose prompts, choices, sampling or model changed asks
again, one whose filters or metrics changed does not. When all items have ended the file is written anew in the order of
the items; lines of other questions are kept behind them.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Collection, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from .errors import ResultsFileError
from .results import ItemResult, Outcome

_LONE_SURROGATES = "backslashreplace"
"""UTF-8 has none; JSON spells them as this error handler does."""


class ResultsFile:
    """A file of results, open for more. Thread-safe."""

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        """Open a new file, or with `resume` one that may be there.

        Raises:
            ResultsFileError: it cannot be written; or it is there without `resume`; or it holds no results.
        """
        self.path = path
        self._lock = threading.Lock()
        self._lines: dict[str, dict[str, Any]] = {}
        if path.exists() and path.stat().st_size and not resume:
            raise ResultsFileError(f"{path} exists: resume it, or give the results another name")
        try:
            if resume and path.exists():
                self._load()
            self._stream = path.open("a", encoding="utf-8", errors=_LONE_SURROGATES)
        except OSError as error:
            raise ResultsFileError(f"{path} cannot be written: {error.strerror or error}") from None

    def _load(self) -> None:
        """Read what is there, and cut off a last line that was not written to its end."""
        content = self.path.read_bytes()
        whole, newline, torn = content.rpartition(b"\n")
        for number, line in enumerate(whole.split(b"\n") if newline else [], start=1):
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
                self._lines[entry["key"]] = entry
                if _has_outcome(entry):
                    Outcome.from_json(entry)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise ResultsFileError(f"{self.path}, line {number}: this is no line of results: {error}") from error
        if torn:
            os.truncate(self.path, len(whole) + len(newline))

    def outcomes(self, keys: Collection[str]) -> dict[str, Outcome]:
        """What the file has of the questions with these keys; items that failed are not among it.

        Raises:
            ResultsFileError: it holds results, but none of these questions.
        """
        known = {key: Outcome.from_json(self._lines[key]) for key in keys if _has_outcome(self._lines.get(key))}
        if self._lines and not any(key in self._lines for key in keys):
            raise ResultsFileError(
                f"{self.path} holds results of other questions: the task, its shots, the model or the sampling differ; "
                "give the results another name"
            )
        return known

    def add(self, result: ItemResult) -> None:
        """Append one result."""
        line = _encoded(result.to_json())
        with self._lock:
            self._stream.write(line)
            self._stream.flush()

    def finish(self, results: Iterable[ItemResult]) -> None:
        """Replace the file by these results in order, then what else it held. It is replaced whole or not at all."""
        lines = [result.to_json() for result in results]
        keys = {line["key"] for line in lines}
        others = [line for key, line in self._lines.items() if key not in keys]
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        with beside.open("w", encoding="utf-8", errors=_LONE_SURROGATES) as stream:
            stream.writelines(_encoded(line) for line in (*lines, *others))
            stream.flush()
            os.fsync(stream.fileno())
        with self._lock:
            self._stream.close()
            beside.replace(self.path)

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._stream.close()


def _has_outcome(line: dict[str, Any] | None) -> bool:
    """A line with an error may have an outcome all the same, if only judging it failed."""
    return line is not None and "finish_reason" in line


def _encoded(line: dict[str, Any]) -> str:
    """A line of text. What JSON has no form for, such as a date in an item, is written as its text."""
    return json.dumps(line, ensure_ascii=False, default=str) + "\n"
