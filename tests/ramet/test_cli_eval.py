"""`ramet eval`: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramet import __version__
from ramet.cli.main import main

TASK = """
kind = "multiple_choice"
data = "capitals.jsonl"
prompt = "Country: {country}\\nCapital:"
choices = "{options}"
target = "{capital}"
num_shots = 2
"""
ITEMS = [
    {"country": "France", "options": ["Lyon", "Paris"], "capital": "Paris"},
    {"country": "Italy", "options": ["Rome", "Milan"], "capital": "Rome"},
    {"country": "Japan", "options": ["Osaka", "Tokyo"], "capital": "Tokyo"},
    {"country": "Spain", "options": ["Madrid", "Seville"], "capital": "Madrid"},
]


@pytest.fixture
def task(tmp_path: Path) -> str:
    (tmp_path / "capitals.jsonl").write_text("".join(json.dumps(item) + "\n" for item in ITEMS), encoding="utf-8")
    (tmp_path / "capitals.toml").write_text(TASK, encoding="utf-8")
    return str(tmp_path / "capitals.toml")


def test_a_dry_run_prints_the_table(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", task, "--dry-run", "--no-progress"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0] == "capitals: multiple_choice, 4 items, 2 shots (fixed, seed 0), model mock"
    assert lines[2].split() == ["metric", "value", "stderr", "95", "%", "interval"]
    assert [line.split()[0] for line in lines[3:5]] == ["acc", "acc_norm"]
    assert "prompt tokens from the cache" in lines[-1]
    assert captured.err == ""


def test_progress_goes_to_stderr(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", task, "--dry-run"]) == 0
    assert capsys.readouterr().err.startswith("capitals: 4/4")


def test_results_summary_and_resuming(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.jsonl"
    arguments = ["eval", task, "--dry-run", "--no-progress", "--output", str(output)]
    assert main([*arguments, "--limit", "3"]) == 0
    assert main(arguments) == 2
    assert "exists: go on with it by --resume" in capsys.readouterr().err
    assert main([*arguments, "--resume", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary == json.loads((tmp_path / "out.summary.json").read_text(encoding="utf-8"))
    assert (summary["num_items"], summary["num_resumed"], summary["num_failed"]) == (4, 3, 0)
    assert summary["metrics"]["acc"]["num_items"] == 4
    assert (summary["limit"], summary["ramet_version"], summary["num_shots"]) == (None, __version__, 2)
    assert "max_tokens" not in summary  # of a multiple choice it plays no part
    assert [json.loads(line)["idx"] for line in output.read_text(encoding="utf-8").splitlines()] == [0, 1, 2, 3]


def test_show_prints_prompts_choices_and_target(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", task, "--dry-run", "--show", "1", "--chat", "text", "--num-shots", "1"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("--- chat template and tokens are those of a mock")
    assert "\n--- item 0: " in shown
    assert "Country: France\nCapital:" in shown
    assert shown.count("Capital:") == 2
    assert "--- target: 'Paris'" in shown


def test_a_task_made_of_options(tmp_path: Path, task: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(Path(task).with_suffix(".jsonl"))
    options = ["--kind", "generate", "--prompt", r"{country}\n=", "--target", "{capital}", "--answer-regex", "o(k)"]
    more = ["--stop", r"\n", "--stop", ";", "--max-tokens", "3", "--shots", data, "--num-shots", "1"]
    output = tmp_path / "out.jsonl"
    assert main(["eval", data, "--dry-run", "--no-progress", *options, *more, "--output", str(output)]) == 0
    line = json.loads(output.read_text(encoding="utf-8").splitlines()[0])
    assert line["prompt"].endswith("\n\nFrance\n=")
    assert line["answers"] == {"exact_match": "k"}
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.toml"], "none.toml cannot be read"),
        (
            ["ITEMS"],
            "does not say its kind: multiple_choice, select, generate, perplexity; as kind = ..., or with --kind",
        ),
        (["gsm8k"], "needs its data"),
        (["TASK", "--resume"], "name it with --output"),
        (["TASK", "--output", "none/out.jsonl"], "there is no directory"),
        (["TASK", "--output", "."], "is a directory"),
        (["TASK", "--system", "Be brief."], "needs a chat"),
        (["TASK", "--num-shots", "9"], "--num-shots=9 is not possible"),
        (["TASK", "--kind", "guess"], "kind='guess' is not allowed"),
        (["TASK", "--kind", "generate"], "takes no choices"),
        (["TASK", "--answer-regex", "("], "is no regular expression"),
    ],
)
def test_what_cannot_be_is_one_line(
    arguments: list[str], message: str, task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"TASK": task, "ITEMS": str(Path(task).with_suffix(".jsonl"))}
    arguments = [names.get(argument, argument) for argument in arguments]
    assert main(["eval", *arguments, "--dry-run"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("ramet: error: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--num-shots", "-1"], ["--limit", "0"], ["--chat", "on"], ["--show", "x"]])
def test_what_the_command_line_cannot_read(arguments: list[str], task: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["eval", task, *arguments])
    assert caught.value.code == 2


@pytest.mark.model
def test_on_the_bundled_model(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", task, "--no-progress", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["model"] == "smollm2"
    assert summary["metrics"]["acc"]["value"] >= 0.5


@pytest.mark.model
def test_a_failed_item_makes_the_status_one(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(task).with_suffix(".jsonl")
    long_item = {**ITEMS[0], "country": "word " * 300}
    path.write_text("".join(json.dumps(item) + "\n" for item in [*ITEMS, long_item]), encoding="utf-8")
    assert main(["eval", task, "--no-progress", "--num-shots", "0", "--max-model-len", "128"]) == 1
    assert "1 item failed and counted in no metric; the first, item 4: ContextLimitError" in capsys.readouterr().out
