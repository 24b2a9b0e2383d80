"""load_task: task files, JSONL items, and what is wrong with them in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ramet.eval import Filter, InvalidTaskError, Task, load_task

TASK = """
kind = "generate"
data = "items.jsonl"
prompt = "Q: {q}\\nA:"
target = "{a}"
num_shots = 2
shots = "train.jsonl"
stop = ["\\n"]

[[filters]]
name = "strict"
pattern = '#### (\\d+)'

[[filters]]
name = "number"
take = "last"
pattern = '\\d+'
compare = "number"
"""


def write_items(path: Path, num_items: int) -> None:
    path.write_text("".join(json.dumps({"q": f"q{n}", "a": str(n)}) + "\n" for n in range(num_items)), "utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_items(tmp_path / "items.jsonl", 5)
    write_items(tmp_path / "train.jsonl", 3)
    (tmp_path / "sums.toml").write_text(TASK, encoding="utf-8")
    return tmp_path


def test_a_task_file(folder: Path) -> None:
    task = load_task(folder / "sums.toml")
    assert (task.name, task.kind, len(task.items), len(task.shots or ())) == ("sums", "generate", 5, 3)
    assert [each.name for each in task.filters] == ["strict", "number"]
    assert task.stop == ("\n",)


def test_changes_go_before_the_file(folder: Path) -> None:
    write_items(folder / "more.jsonl", 9)
    task = load_task(folder / "sums.toml", folder / "more.jsonl", num_shots=1, shots=None, filters=[Filter()])
    assert (len(task.items), task.num_shots, task.shots, task.filters) == (9, 1, None, (Filter(),))


def test_a_file_of_items_needs_the_rest(folder: Path) -> None:
    task = load_task(folder / "items.jsonl", kind="generate", prompt="{q}", target="{a}")
    assert (task.name, len(task.items)) == ("items", 5)
    with pytest.raises(InvalidTaskError, match=r"items\.jsonl: the task does not say its kind"):
        load_task(folder / "items.jsonl", prompt="{q}")
    with pytest.raises(InvalidTaskError, match="holds the items already"):
        load_task(folder / "items.jsonl", folder, kind="generate", prompt="{q}", target="{a}")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kind = "generate"', "", "does not say its kind"),
        ('kind = "generate"', 'kind = "generat"', "kind='generat' is not allowed"),
        ('kind = "generate"', "kind = generate", "is no TOML"),
        ('prompt = "Q: {q}\\nA:"', "", "does not say its prompt"),
        ('prompt = "Q: {q}\\nA:"', 'prompt = "{q"', "has no partner"),
        ('data = "items.jsonl"', "", "does not say its data"),
        ('data = "items.jsonl"', 'data = "none.jsonl"', r"none\.jsonl cannot be read"),
        ('target = "{a}"', "", "needs a target"),
        ("num_shots = 2", "num_shot = 2", "did you mean 'num_shots'"),
        ("num_shots = 2", "num_shots = -1", "num_shots=-1 must be an integer"),
        ("num_shots = 2", 'seed = "x"', "seed='x' must be an integer"),
        ('stop = ["\\n"]', "stop = [3]", r"stop\[0\] is 3"),
        ('stop = ["\\n"]', "max_tokens = 0", "max_tokens"),
        ('stop = ["\\n"]', "temperature = -1.0", "temperature"),
        ('stop = ["\\n"]', 'choices = "{a}"', "takes no choices"),
        ('stop = ["\\n"]', 'system = "Be brief."', "needs a chat"),
        ('stop = ["\\n"]', 'chat = "yes"', "chat='yes' is not allowed"),
        ('stop = ["\\n"]', 'shot_order = "random"', "shot_order='random'"),
        ('stop = ["\\n"]', 'delimiter = ["x"]', r"delimiter=\['x'\] must be a text"),
        ('stop = ["\\n"]', 'choices_method = "best"', "unknown choices method"),
        ('name = "number"', 'name = "strict"', "names must differ"),
        ('name = "number"', 'names = "strict"', "did you mean 'name'"),
    ],
)
def test_what_is_wrong_with_a_task_file(folder: Path, old: str, new: str, message: str) -> None:
    assert old in TASK
    (folder / "sums.toml").write_text(TASK.replace(old, new), encoding="utf-8")
    with pytest.raises(InvalidTaskError, match=message) as caught:
        load_task(folder / "sums.toml")
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"q": 1}\n{"q": \n', r"items\.jsonl, line 2: this is no JSON"),
        (b'{"q": 1}\n\n[1]\n', "line 3: every line must be a JSON object"),
        (b"\n", "holds no items"),
        (b"\xff\xfe{}", "is not UTF-8"),
        (b"[" * 100_000, "this is no JSON"),
    ],
)
def test_what_is_wrong_with_items(folder: Path, content: bytes, message: str) -> None:
    (folder / "items.jsonl").write_bytes(content)
    with pytest.raises(InvalidTaskError, match=message):
        load_task(folder / "sums.toml")


def test_a_line_separator_inside_a_text_ends_no_line(folder: Path) -> None:
    (folder / "items.jsonl").write_text('\ufeff{"q": "a\u2028b\x85c", "a": "1"}\r\n', encoding="utf-8")
    assert load_task(folder / "sums.toml").items == ({"q": "a\u2028b\x85c", "a": "1"},)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "select"}, "needs choices"),
        ({"kind": "select", "choices": []}, "needs choices"),
        ({"kind": "select", "choices": "{"}, "has no partner"),
        ({"kind": "perplexity", "num_shots": 1}, "takes whole texts"),
        ({"items": "x"}, "items='x' must be a list"),
        ({"items": [1]}, r"items\[0\] is 1"),
        ({"shots": {"q": 1}}, "must be a list"),
        ({"filters": []}, "one filter at least"),
        ({"filters": ["x"]}, r"filters\[0\] is 'x'"),
        ({"name": ""}, "needs a name"),
        ({"num_shots": True}, "num_shots=True"),
        ({"promt": "x"}, "did you mean 'prompt'"),
    ],
)
def test_what_a_task_refuses(options: dict[str, Any], message: str) -> None:
    fields = {"name": "t", "kind": "generate", "items": [{"q": "x", "a": "y"}], "prompt": "{q}", "target": "{a}"}
    with pytest.raises(InvalidTaskError, match=message):
        Task(**{**fields, **options})


def test_a_task_does_not_change_under_who_holds_it() -> None:
    items = [{"q": "x", "a": "y"}]
    task = Task(name="t", kind="generate", items=items, prompt="{q}", target="{a}", stop="\n")
    items.append({"q": "z", "a": "y"})
    assert len(task.items) == 1
    assert task.stop == ("\n",)


def test_names_that_are_no_task(tmp_path: Path) -> None:
    with pytest.raises(InvalidTaskError, match=r"there is no task 'gsm9k': give a \.toml file"):
        load_task("gsm9k", tmp_path)
    with pytest.raises(InvalidTaskError, match=r"needs its data: .* holds gsm8k/test\.jsonl"):
        load_task("gsm8k")
    with pytest.raises(InvalidTaskError, match=r"does not exist: it would hold bbh/navigate\.json"):
        load_task("bbh:navigate", tmp_path / "none")
    with pytest.raises(InvalidTaskError, match=r"neither bbh/navigate\.json nor navigate\.json"):
        load_task("bbh:navigate", tmp_path)
