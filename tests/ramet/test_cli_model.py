"""The commands on the bundled model, as a user starts them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ramet.cli.main import main

pytestmark = pytest.mark.model


def numbers_of_a_turn(line: str) -> tuple[int, int, int, int]:
    match = re.match(r"\[(\d+) prompt tokens: (\d+) cached, (\d+) computed; (\d+) generated", line)
    assert match is not None, line
    return int(match[1]), int(match[2]), int(match[3]), int(match[4])


def test_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--threads", "2"]) == 0
    shown = capsys.readouterr().out
    assert re.findall(r"category +(\w+)", shown)[:2] == ["payment", "delivery"]
    rows = [[int(number) for number in line.split()[-5:-1]] for line in shown.splitlines() if line.startswith("ticket")]
    assert len(rows) == 12
    for num_prompt, num_cached, num_computed, _ in rows:
        assert num_prompt == num_cached + num_computed
    first_select, second_select = rows[0], rows[6]
    assert first_select[1] == 0
    assert second_select[1] > 100  # the system message is that of the first ticket
    for num_prompt, num_cached, _, _ in rows[1:4]:  # branches share everything up to the fork
        assert num_prompt - num_cached <= 16
    assert re.search(r"[6-9]\d% of the prompt tokens were in the cache", shown)


def test_chat_over_a_pipe() -> None:
    command = [sys.executable, "-c", "import sys; from ramet.cli.main import main; sys.exit(main())", "chat"]
    result = subprocess.run(
        [
            *command,
            "--temperature",
            "0",
            "--max-tokens",
            "12",
            "--system",
            "You are a travel guide. Answer in one short sentence.",
        ],
        input="What is the capital of France?\nAnd of Italy?\n",
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "Paris" in result.stdout
    turns = [numbers_of_a_turn(line) for line in result.stdout.splitlines() if line.startswith("[")]
    assert len(turns) == 2
    (first_prompt, _, _, first_generated), (second_prompt, cached, computed, _) = turns
    # Everything of the first turn is found again, but for its last token, which was never computed.
    assert cached >= first_prompt + first_generated - 1
    assert computed == second_prompt - cached


def test_run_with_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        "from ramet import function, gen\n"
        "@function\n"
        "def count(s):\n"
        "    s += '1, 2, 3, 4, 5, 6,' + gen('more', max_tokens=4, temperature=0)\n"
        "print(count.run()['more'])\n",
        encoding="utf-8",
    )
    assert main(["run", "--report", "--max-model-len", "64", str(path)]) == 0
    captured = capsys.readouterr()
    assert "7" in captured.out
    assert "gen " in captured.err
    assert re.search(r"ramet: 1 call, \d+ prompt tokens: 0 from the cache", captured.err)


def test_an_impossible_engine_option_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "program.py"
    path.write_text("import ramet\nramet.get_default_backend().info()\n", encoding="utf-8")
    assert main(["run", "--schedule-policy", "no-such-policy", str(path)]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("ramet: error: ")
    assert "no-such-policy" in errors
    assert errors.count("\n") == 1
