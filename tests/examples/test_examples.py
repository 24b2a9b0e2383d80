"""Every example runs on the bundled model, prints what it promises and finds its shared text in the cache."""

from __future__ import annotations

import ast
import importlib
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet import LocalBackend, MockBackend
from ramet.cli.recording_backend import RecordingBackend
from ramet.cli.run import run_program

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DOCS = EXAMPLES.parent / "docs" / "examples.md"
MAX_LINES = 80

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def local_backend() -> Iterator[LocalBackend]:
    with LocalBackend("smollm2") as backend:
        yield backend


class Runner:
    """Runs an example as `ramet run` does and keeps what it printed."""

    def __init__(self, backend: LocalBackend, capsys: pytest.CaptureFixture[str]) -> None:
        self.backend = RecordingBackend(lambda: backend)
        self._capsys = capsys
        backend.flush_cache()

    def run(self, name: str, *arguments: str) -> list[str]:
        status = run_program(EXAMPLES / name, arguments, self.backend)
        captured = self._capsys.readouterr()
        assert status == 0, captured.err
        return captured.out.splitlines()


@pytest.fixture
def runner(local_backend: LocalBackend, capsys: pytest.CaptureFixture[str]) -> Runner:
    return Runner(local_backend, capsys)


def test_every_example_is_short_and_tested() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    files = sorted(EXAMPLES.glob("*.py"))
    assert len(files) >= 6
    for file in files:
        assert f'"{file.name}"' in source, f"{file.name} has no test"
        assert file.read_text(encoding="utf-8").count("\n") <= MAX_LINES


def test_agent_with_tools(runner: Runner) -> None:
    lines = runner.run("agent_with_tools.py", "How tall is Big Ben?")
    assert lines[0] == "Question: How tall is Big Ben?"
    assert lines[1].startswith("Thought: ")
    assert any(line.startswith("Action: ") for line in lines)
    assert any(line.startswith("Answer: ") for line in lines)
    rows = runner.backend.rows()
    assert rows[0].num_cached_tokens == 0
    # Every step continues the text of the one before: only what was added is computed.
    for before, after in itertools.pairwise(rows):
        assert after.num_cached_tokens >= before.num_prompt_tokens - 1


def test_multi_turn_chat(runner: Runner) -> None:
    lines = runner.run("multi_turn_chat.py")
    assert sum(line.startswith("> ") for line in lines) == 4
    assert "Paris" in "\n".join(lines)
    counts = [re.findall(r"\d+", line) for line in lines if line.startswith("[")]
    assert len(counts) == 4
    assert all(int(num_cached) > 2 * int(num_computed) for num_cached, num_computed in counts[1:])


def test_tool_calls(runner: Runner) -> None:
    lines = runner.run("tool_calls.py")
    assert [line for line in lines if line.startswith("  ")] == [
        "  get_temperature(city='Cairo')",
        "  get_temperature(city='Oslo')",
        "  multiply(a=127, b=45)",
    ]
    text = "\n".join(lines)
    assert all(answer in text for answer in ("34 degrees", "7 degrees", "5715"))
    rows = runner.backend.rows()
    assert len(rows) == 6
    # Every call goes on from the tokens of the one before, its own tokens among them.
    for before, after in itertools.pairwise(rows):
        assert after.num_cached_tokens >= before.num_prompt_tokens


def test_async_agents(runner: Runner) -> None:
    lines = runner.run("async_agents.py")
    assert [line.partition(" (")[0] for line in lines[:6]] == ["apple", "hammer", "violin", "salmon", "rose", "truck"]
    assert lines[0].startswith("apple (food): the apple is")
    kind, use = (re.fullmatch(r"(?:kind|use): (\d+) of (\d+) tokens cached", line) for line in lines[6:])
    assert kind is not None
    assert use is not None
    # What the first call of the last agent computed, its second one finds in the cache.
    assert int(use[1]) >= int(kind[2])
    assert runner.backend.totals().hit_rate > 0.5


def test_resumable_batch(runner: Runner, tmp_path: Path) -> None:
    journal = str(tmp_path / "topics.jsonl")
    first = runner.run("resumable_batch.py", journal)
    num_calls = len(runner.backend.rows())
    assert [line.split()[0] for line in first[:2] + first[3:4]] == ["service", "food", "price"]
    assert "there is no review" in first[2]
    assert first[4] == "0 of 4 from the journal"
    assert runner.run("resumable_batch.py", journal) == [*first[:4], "3 of 4 from the journal"]
    assert len(runner.backend.rows()) == num_calls == 3


def test_few_shot_eval(runner: Runner) -> None:
    lines = runner.run("few_shot_eval.py")
    assert sum(line.startswith(("right: ", "wrong: ")) for line in lines) == 4
    assert re.fullmatch(r"accuracy \d+% of 4", lines[-2])
    totals = runner.backend.totals()
    assert f"{totals.num_cached_tokens:,} of {totals.num_prompt_tokens:,}" in lines[-1]
    assert totals.hit_rate > 0.5


def test_few_shot_eval_of_a_file(runner: Runner, tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    items = [{"question": f"What is {n} + {n}?", "answer": f"#### {2 * n}"} for n in range(1, 4)]
    path.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
    lines = runner.run("few_shot_eval.py", str(path), "--limit", "2", "--max-tokens", "8")
    assert lines[-2].endswith(" of 2")
    assert len(runner.backend.rows()) == 2


def test_tree_of_thought(runner: Runner) -> None:
    lines = runner.run("tree_of_thought.py")
    assert sum(line.startswith("plan (") for line in lines) == 3
    assert any(line.startswith("chosen:") for line in lines)
    rows = runner.backend.rows()
    assert len(rows) == 9  # three plans, three verdicts, three answers
    assert runner.backend.totals().hit_rate > 0.5


def test_llm_judge(runner: Runner) -> None:
    lines = runner.run("llm_judge.py")
    assert [line.split(":")[0] for line in lines[:3]] == ["- clarity", "- evidence", "- style"]
    assert any(re.fullmatch(r"overall: (poor|fair|good|excellent)", line) for line in lines)
    assert runner.backend.totals().hit_rate > 0.5


def test_extract_character_of_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    """What it does with the answers, whatever model they come from."""
    record = {"name": "Bo", "age": 7, "place": "Rome", "is_adult": False, "role": "none", "owns": []}
    mock = MockBackend([json.dumps(record), "Bo, 7, of Rome", "7"])
    assert run_program(EXAMPLES / "extract_character.py", ("Bo, 7, is in Rome.",), RecordingBackend(lambda: mock)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Bo, 7, is in Rome."
    assert lines[1:9] == [f"{key:>10}: {value!r}" for key, value in record.items()] + [
        "  in short: Bo, 7, of Rome",
        " next year: 8",
    ]
    schema = json.loads(mock.requests[0].call.sampling_params.json_schema)  # type: ignore[union-attr, arg-type]
    assert list(record) == schema["required"] == list(schema["properties"])


def test_watch_the_scheduler(tmp_path: Path) -> None:
    """On its own, as it loads a model itself."""
    path = tmp_path / "steps.svg"
    command = [sys.executable, str(EXAMPLES / "watch_the_scheduler.py"), str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    cached = dict(re.findall(r"^(\w+) .*\((\d+) of \d+ tokens cached\)$", result.stdout, re.MULTILINE))
    assert cached == {"cloud": "0", "blood": "25", "lemons": "25", "story": "0", "search": "0"}
    assert "preemptions             0" in result.stdout
    assert "<svg" in path.read_text(encoding="utf-8")


def test_vllm_quickstart() -> None:
    """On its own, as it loads a model itself."""
    command = [sys.executable, str(EXAMPLES / "vllm_quickstart.py")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["Prompt", "Output"] * 4
    assert lines[4] == "Prompt: 'The capital of France is'"


@pytest.mark.compiler
@pytest.mark.parametrize("name", ["tree_of_thought.py", "vllm_quickstart.py"])
def test_what_is_seeded_prints_what_the_docs_say(name: str) -> None:
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, timeout=120, check=True
    )
    assert f"$ python examples/{name}\n{result.stdout}```\n" in DOCS.read_text(encoding="utf-8")


def test_ray_serve_takes_from_ramet_what_there_is() -> None:
    """Everywhere, as Ray is in no requirements file."""
    tree = ast.parse((EXAMPLES / "ray_serve.py").read_text(encoding="utf-8"))
    taken = [
        (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("ramet")
        for alias in node.names
    ]
    assert ("ramet.runtime.server.app", "build_app") in taken
    assert [each for each in taken if not hasattr(importlib.import_module(each[0]), each[1])] == []


def test_ray_serve_knows_its_options() -> None:
    """Imports Ray, ramet's server and the deployment; no cluster is started, which takes a minute."""
    pytest.importorskip("ray.serve", reason="Ray is not installed: pip install 'ray[serve]==2.60.*'")
    command = [sys.executable, str(EXAMPLES / "ray_serve.py"), "--help"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert "--replicas" in result.stdout


def test_first_program_is_the_one_in_the_readme(runner: Runner) -> None:
    readme = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    code = (EXAMPLES / "first_program.py").read_text(encoding="utf-8").split('"""\n\n', 1)[1]
    assert f"```python\n{code}```" in readme
    lines = runner.run("first_program.py")
    assert [line.split()[0] for line in lines[::2]] == ["Africa", "Europe", "Asia"]
    for line in lines[1::2]:
        assert line in readme
