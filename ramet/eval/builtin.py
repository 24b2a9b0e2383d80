"""The tasks that ramet knows by name: GSM8K and BIG-Bench-Hard, read from a directory that has their public files.

    gsm8k                 DIR/gsm8k/test.jsonl, shots of train*.jsonl beside it
    bbh:SUBTASK           DIR/bbh/SUBTASK.json, shots of SUBTASK.cot.txt: the model reasons, then answers
    bbh_choices:SUBTASK   the same items as multiple choice, shots without reasoning

The files may also lie in DIR itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..suggestions import did_you_mean
from .errors import InvalidTaskError
from .filters import Filter
from .jsonl import read_jsonl, read_text
from .task import Task
from .template import Record

BUILTIN_TASKS = ("gsm8k", "bbh:SUBTASK", "bbh_choices:SUBTASK")

NUM_SHOWN = 5
"""So many subtasks an error lists."""

_SHOT = re.compile(r"^Q: (?P<input>.*?)\nA: (?P<solution>.*?)(?=\n\nQ: |\s*\Z)", re.DOTALL | re.MULTILINE)
_ANSWER = re.compile(r"[Ss]o the answer is (.*?)\.?\s*\Z", re.DOTALL)
_LETTERED, _DASHED = re.compile(r"^(\([A-Z]\)) ", re.MULTILINE), re.compile(r"^- (.+)$", re.MULTILINE)
_THINKING = "Let's think step by step."


def load_builtin(name: str, data: Path | None) -> Task:
    """
    Raises:
        InvalidTaskError: there is no such task, or its data is not in the directory.
    """
    family, _, subtask = name.partition(":")
    if family == "gsm8k" and not subtask:
        return _gsm8k(_folder(data, "gsm8k", name, "test.jsonl"))
    if family in ("bbh", "bbh_choices"):
        folder = _folder(data, "bbh", name, f"{subtask or 'SUBTASK'}.json")
        known = sorted(path.stem for path in folder.glob("*.json"))
        if not subtask:
            shown = ", ".join(f"{family}:{each}" for each in known[:NUM_SHOWN])
            raise InvalidTaskError(
                f"{family} is several tasks: give {family}:SUBTASK, such as {shown}"
                + (f", or another .json file of {folder}" if len(known) > NUM_SHOWN else "")
            )
        if subtask not in known:
            raise InvalidTaskError(
                f"there is no {subtask!r} in {folder}{did_you_mean(subtask, known)} known: {', '.join(known) or 'none'}"
            )
        return _bbh(folder, subtask) if family == "bbh" else _bbh_choices(folder, subtask)
    raise InvalidTaskError(
        f"there is no task {name!r}: give a .toml file, a .jsonl file, or one of {', '.join(BUILTIN_TASKS)}"
    )


def _folder(data: Path | None, inner: str, name: str, file: str) -> Path:
    """Where the files of a task are: where there is one like `file`."""
    if data is None:
        raise InvalidTaskError(
            f"the task {name!r} needs its data: give the directory that holds {inner}/{file} (--data DIR)"
        )
    if not data.is_dir():
        raise InvalidTaskError(f"the data directory {data} does not exist: it would hold {inner}/{file}")
    for folder in (data / inner, data):
        if (folder / file).is_file() or (inner == "bbh" and any(folder.glob("*.json"))):
            return folder
    raise InvalidTaskError(f"there is no data of {name!r} in {data}: neither {inner}/{file} nor {file} is there")


def _gsm8k(folder: Path) -> Task:
    train = sorted(folder.glob("train*.jsonl"))
    return Task(
        name="gsm8k",
        kind="generate",
        items=read_jsonl(folder / "test.jsonl"),
        prompt="Question: {question}\nAnswer:",
        target="{answer}",
        shots=read_jsonl(train[0]) if train else None,
        num_shots=5,
        stop=("Question:",),
        filters=(
            Filter(
                name="strict_match",
                pattern=r"#### (-?[0-9.,]+)",
                compare="number",
                target_pattern=r"#### (-?[0-9.,]+)",
            ),
            Filter(
                name="flexible_extract",
                pattern=r"-?\$?[0-9][0-9.,]*",
                take="last",
                compare="number",
                target_pattern=r"#### (-?[0-9.,]+)",
            ),
        ),
    )


def _bbh(folder: Path, subtask: str) -> Task:
    description, shots = _bbh_shots(folder, subtask)
    on_new_line = f"{_THINKING}\n" in read_text(folder / f"{subtask}.cot.txt")
    return Task(
        name=f"bbh:{subtask}",
        kind="generate",
        items=_bbh_items(folder, subtask),
        prompt=f"Q: {{input}}\nA: {_THINKING}",
        target="{target}",
        shots=shots,
        shot_target="{solution}",
        shot_order="first",
        num_shots=len(shots),
        description=description,
        delimiter="\n" if on_new_line else " ",
        max_tokens=512,
        stop=("\n\n", "Q:"),
        filters=(Filter(pattern=r"answer is (.+?)(?:\.\s|\.?\s*$)", ignore_case=True),),
    )


def _bbh_choices(folder: Path, subtask: str) -> Task:
    """Items whose target is none of their options, which the data has a few of, are left out: they have no right
    choice."""
    description, shots = _bbh_shots(folder, subtask)
    items = _bbh_items(folder, subtask)
    targets = sorted({str(item["target"]) for item in items})
    with_options = [{**item, "options": _options(str(item["input"])) or targets} for item in items]
    return Task(
        name=f"bbh_choices:{subtask}",
        kind="multiple_choice",
        items=[item for item in with_options if item["target"] in item["options"]],
        prompt="Q: {input}\nA:",
        target="{target}",
        choices="{options}",
        shots=[{**shot, "options": [shot["target"]]} for shot in shots],
        shot_order="first",
        num_shots=len(shots),
        description=description,
    )


def _bbh_items(folder: Path, subtask: str) -> Sequence[Record]:
    path = folder / f"{subtask}.json"
    try:
        document: Any = json.loads(read_text(path))
        examples = document["examples"]
        return [{"input": str(example["input"]), "target": str(example["target"])} for example in examples]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, InvalidTaskError):
            raise
        raise InvalidTaskError(
            f"{path} is no BIG-Bench-Hard file: it needs a list 'examples' of objects with 'input' and 'target'"
        ) from error


def _bbh_shots(folder: Path, subtask: str) -> tuple[str, list[Record]]:
    """The description of a subtask and its worked examples."""
    path = folder / f"{subtask}.cot.txt"
    text = read_text(path).partition("-----\n")[2]
    description, separator, examples = text.partition("\n\nQ: ")
    shots: list[Record] = []
    for match in _SHOT.finditer("Q: " + examples):
        solution = match["solution"].removeprefix(_THINKING).strip()
        answer = _ANSWER.search(solution)
        if answer is not None:
            shots.append({"input": match["input"], "solution": solution, "target": answer[1]})
    if not separator or not shots:
        raise InvalidTaskError(f"{path} has no worked examples: 'Q: ...', then 'A: ... So the answer is ....'")
    return description.strip() + "\n\n", shots


def _options(text: str) -> list[str]:
    """The options that a question lists: (A), (B), ... or what stands behind dashes."""
    listed = text.partition("Options:\n")[2]
    return _LETTERED.findall(listed) or _DASHED.findall(listed)
