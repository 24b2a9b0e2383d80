"""load_task: a task from a TOML file, or one of the built-in ones by its name."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

from ..suggestions import did_you_mean
from .builtin import BUILTIN_TASKS, load_builtin
from .errors import InvalidTaskError
from .filters import Filter
from .jsonl import read_jsonl, read_text
from .task import Kind, Task

TASK_FILE_FIELDS = ("data", *(item.name for item in fields(Task) if item.name != "items"))
"""What a task file may say: the fields of Task, with `data` and `shots` naming JSONL files beside it."""


_WHAT_IS_MISSING = {
    "kind": f"{', '.join(get_args(Kind))}; as kind = ..., or with --kind",
    "prompt": r"a template such as 'Question: {question}\nAnswer:'; as prompt = ..., or with --prompt",
}


def load_task(task: str | Path, data: str | Path | None = None, **changes: Any) -> Task:
    """Read a task.

    Args:
        task: a `.toml` file, a `.jsonl` file of items, or the name of a built-in task: "gsm8k", "bbh:SUBTASK" or
            "bbh_choices:SUBTASK".
        data: the directory with the data of a built-in task; of a task file, another file for its items.
        changes: fields of Task to set differently; of a `.jsonl` file, all there are.

    Raises:
        InvalidTaskError: it cannot be read, or says something that does not work; the message names the file.
    """
    path = Path(task)
    if path.suffix == ".toml":
        return _read_task_file(path, data, changes)
    if path.suffix in (".jsonl", ".ndjson"):
        if data is not None:
            raise InvalidTaskError(f"{path} holds the items already: leave data={str(data)!r} out")
        return task_from_table({"name": path.stem, "data": path.name, **changes}, path.parent, str(path))
    _check_names(changes)
    built_in = load_builtin(str(task), None if data is None else Path(data))
    if isinstance(changes.get("shots"), str):
        changes["shots"] = read_jsonl(Path(changes["shots"]))
    return replace(built_in, **changes)


def _read_task_file(path: Path, data: str | Path | None, changes: Mapping[str, Any]) -> Task:
    try:
        table = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InvalidTaskError(f"{path} is no TOML: {error}") from None
    table = {"name": path.stem, **table}
    if data is not None:
        table["data"] = str(Path(data).absolute())
    return task_from_table({**table, **changes}, path.parent, str(path))


def task_from_table(table: Mapping[str, Any], folder: Path, where: str) -> Task:
    """The task that a table of TASK_FILE_FIELDS describes; file names in it are relative to `folder`.

    Raises:
        InvalidTaskError: it says something unknown or that does not work; the message begins with `where`.
    """
    options = dict(table)
    try:
        _check_names(options)
        _read_data(options, folder)
        if "filters" in options:
            options["filters"] = [_as_filter(item) for item in _listed(options["filters"])]
        missing = [name for name in ("kind", "prompt") if name not in options]
        if missing:
            raise InvalidTaskError(f"the task does not say its {missing[0]}: {_WHAT_IS_MISSING[missing[0]]}")
        return Task(**options)
    except InvalidTaskError as error:
        message = str(error)
        raise InvalidTaskError(message if message.startswith(where) else f"{where}: {message}") from error.__cause__


def _check_names(options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in (*TASK_FILE_FIELDS, "items"):
            raise InvalidTaskError(
                f"unknown field {name!r}{did_you_mean(name, TASK_FILE_FIELDS)} a task has {', '.join(TASK_FILE_FIELDS)}"
            )


def _read_data(options: dict[str, Any], folder: Path) -> None:
    """Replace file names by what the files hold."""
    if "items" not in options:
        if not isinstance(options.get("data"), str):
            raise InvalidTaskError("the task does not say its data: the name of a JSONL file")
        options["items"] = read_jsonl(folder / options["data"])
    options.pop("data", None)
    if isinstance(options.get("shots"), str):
        options["shots"] = read_jsonl(folder / options["shots"])


def _listed(value: object) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise InvalidTaskError(f"filters={value!r} must be a list of tables: [[filters]]")
    return list(value)


def _as_filter(value: object) -> Filter:
    if isinstance(value, Filter):
        return value
    if not isinstance(value, Mapping):
        raise InvalidTaskError(f"a filter must be a table, not {value!r}")
    return Filter(**value)


__all__ = ["BUILTIN_TASKS", "TASK_FILE_FIELDS", "load_task", "task_from_table"]
