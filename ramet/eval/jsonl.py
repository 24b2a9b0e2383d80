"""Reading data: one JSON object a line."""

from __future__ import annotations

import json
from pathlib import Path

from .errors import InvalidTaskError
from .template import Record


def read_jsonl(path: Path) -> tuple[Record, ...]:
    """Every object of a JSONL file; empty lines are skipped.

    Raises:
        InvalidTaskError: it cannot be read, a line is no JSON object, or there is none. The message has the line.
    """
    records: list[Record] = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidTaskError(f"{path}, line {number}: this is no JSON: {error}") from None
        if not isinstance(record, dict):
            raise InvalidTaskError(
                f"{path}, line {number}: every line must be a JSON object, not {line.strip()[:60]!r}"
            )
        records.append(record)
    if not records:
        raise InvalidTaskError(f"{path} holds no items: it needs one JSON object a line")
    return tuple(records)


def read_text(path: Path) -> str:
    """
    Raises:
        InvalidTaskError: it is not there, or no UTF-8 text.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidTaskError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InvalidTaskError(f"{path} is not UTF-8 text: {error}") from None
