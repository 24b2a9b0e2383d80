"""ResultsFile: a line of JSON per item, written as soon as the item has ended, so that a killed run can go on.

What is reused is looked up by the key of its question: a run whose prompts, choices, sampling or model changed asks
again, one whose filters or metrics changed does not. When all items have ended the file is written anew in the order of
the items; lines of other questions are kept behind them.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ..whole_file import whole_file
from .errors import ResultsFileError
from .results import ItemResult, Outcome

_LONE_SURROGATES = "backslashreplace"
"""UTF-8 has none; JSON spells them as this error handler does."""

_BEGINNING = b'{"idx": '
"""Of every line that was written here."""

_LINE_ERRORS = (ValueError, KeyError, TypeError, OverflowError, RecursionError)


class ResultsFile:
    """A file of results, open for more. Thread-safe."""

    def __init__(self, path: Path, settings: Mapping[str, Any], *, resume: bool = False) -> None:
        """Open a new file, or with `resume` one that may be there. `settings` are what its lines were asked with; each
        has them, so that a run with others can be told what differs.

        Raises:
            ResultsFileError: it cannot be written; or it is there without `resume`; or it is there and is no file of
                results, and then it is not touched.
        """
        self.path = path
        self._settings = json.loads(json.dumps(dict(settings)))  # as a file has them
        self._target = path.resolve()  # now: the program may change its directory
        self._lock = threading.Lock()
        self._lines: dict[tuple[str, object], dict[str, Any]] = {}
        self._mended_len: int | None = None
        if path.exists() and not path.is_file():
            raise ResultsFileError(f"{path} is no file: give the results another name")
        if path.exists() and path.stat().st_size and not resume:
            raise ResultsFileError(f"{path} exists: resume it, or give the results another name")
        try:
            if resume and path.exists():
                self._load(self._target.read_bytes())
            self._stream = self._target.open("a", encoding="utf-8", errors=_LONE_SURROGATES)
        except OSError as error:
            raise ResultsFileError(f"{path} cannot be written: {error.strerror or error}") from None

    def _load(self, content: bytes) -> None:
        """Read what is there. A last line that was not written to its end is cut off when the first one is added."""
        if content and not content.startswith(_BEGINNING[: len(content)]):
            raise ResultsFileError(f"{self.path} is no file of results: give the results another name")
        whole, newline, torn = content.rpartition(b"\n")
        for number, line in enumerate(whole.split(b"\n") if newline else [], start=1):
            if not line.strip():
                continue
            try:
                self._take(line)
            except _LINE_ERRORS as error:
                raise ResultsFileError(f"{self.path}, line {number}: this is no line of results: {error}") from error
        if not torn:
            return
        try:
            self._take(torn)
        except _LINE_ERRORS as error:
            if not torn.startswith(_BEGINNING[: len(torn)]):
                raise ResultsFileError(f"{self.path}: its last line is no line of results: {error}") from error
            self._mended_len = len(whole) + len(newline)
        else:
            self._mended_len = len(content)  # complete but for its end of line

    def _take(self, line: bytes) -> None:
        """
        Raises:
            ValueError, KeyError, TypeError, OverflowError, RecursionError: it is none of ours.
        """
        entry = json.loads(line)
        if not isinstance(entry["key"], str) or not isinstance(entry["item"], dict):
            raise TypeError("its key is no text, or its item no object")
        if _has_outcome(entry):
            Outcome.from_json(entry)
        self._lines[entry["key"], entry["idx"]] = entry

    def outcomes(self, keys: Collection[str]) -> dict[str, Outcome]:
        """What the file has of the questions with these keys; items that failed are not among it.

        Raises:
            ResultsFileError: it holds results, but none of these questions.
        """
        known = {
            key: Outcome.from_json(line) for (key, _), line in self._lines.items() if key in keys and _has_outcome(line)
        }
        if self._lines and not any(key in keys for key, _ in self._lines):
            raise ResultsFileError(
                f"{self.path} holds results of other questions: {self._difference()}; give the results another name"
            )
        return known

    def _difference(self) -> str:
        """What the last line was asked with, where that is not what is asked with now."""
        before = next(reversed(self._lines.values())).get("settings")
        if not isinstance(before, dict):
            return "the task, its shots, the model or the sampling differ"
        changed = [
            f"{name} was {before[name]!r} and is {value!r}"
            for name, value in self._settings.items()
            if name in before and before[name] != value
        ]
        return ", ".join(changed) or "the items, the templates or the shots differ"

    def _line(self, result: ItemResult) -> dict[str, Any]:
        return {**result.to_json(), "settings": self._settings}

    def add(self, result: ItemResult) -> None:
        """Append one result."""
        line = _encoded(self._line(result))
        with self._lock:
            self._mend()
            self._stream.write(line)
            self._stream.flush()

    def finish(self, results: Iterable[ItemResult]) -> None:
        """Replace the file by these results in order, then what else it held. It is replaced whole or not at all."""
        lines = [self._line(result) for result in results]
        others = self._without(lines)
        with self._lock:
            self._stream.close()
            with whole_file(self._target, errors=_LONE_SURROGATES) as stream:
                stream.writelines(_encoded(line) for line in (*lines, *others))

    def _mend(self) -> None:
        """End the file with a whole line, once."""
        if self._mended_len is None:
            return
        if self._mended_len < self._target.stat().st_size:
            os.truncate(self._target, self._mended_len)
        else:
            self._stream.write("\n")
        self._mended_len = None

    def _without(self, lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """What the file held beside these lines. Items may ask the same question: each of them has a line."""
        left = Counter(line["key"] for line in lines)
        same = {(line["key"], line["idx"]) for line in lines}
        left.subtract(key for key, idx in self._lines if (key, idx) in same)
        others = []
        for (key, idx), line in self._lines.items():
            if (key, idx) in same:
                continue
            if left[key] > 0:  # the item stands elsewhere in the task now
                left[key] -= 1
            else:
                others.append(line)
        return others

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
