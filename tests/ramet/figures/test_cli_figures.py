"""`ramet figures` at the command line."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest

from ramet.cli.main import EXIT_USAGE, main
from ramet.figures.registry import FIGURES


def test_it_lists_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figures", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(FIGURES)


def test_it_prints_the_number_the_papers_number_and_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figures", "orca-steps"]) == 0
    printed = capsys.readouterr().out
    for text in ("11 steps request by request, 8 continuously", "Orca (OSDI 2022)", "scheduler over a cost model"):
        assert text in printed


def test_it_writes_json_a_plot_and_a_document(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("out.json", "out.png", "out.md")]
    arguments = [str(word) for pair in zip(("--json", "--plot", "--write"), files, strict=True) for word in pair]
    assert main(["figures", "orca-steps", *arguments]) == 0
    (figure,) = json.loads(files[0].read_text(encoding="utf-8"))["figures"]
    assert figure["rows"][1][:2] == ["continuous", 8]
    assert files[1].read_bytes().startswith(b"\x89PNG")
    assert "# Figures" in files[2].read_text(encoding="utf-8")
    assert (tmp_path / "out" / "orca-steps.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "there is no figure 'nothing'"),
        (["orca-steps", "--plot", "plot.gif"], "written as .png or .svg"),
        (["orca-steps", "--json", "no/such/dir.json"], "there is no directory"),
        (["orca-steps", "--write", "figures.txt"], "does not end in .md"),
    ],
)
def test_it_refuses_what_it_cannot_do(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figures", *arguments]) == EXIT_USAGE
    assert message in capsys.readouterr().err


def test_it_says_how_to_get_matplotlib(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real_import = builtins.__import__

    def without_matplotlib(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    assert main(["figures", "orca-steps", "--plot", str(tmp_path / "plot.png")]) == EXIT_USAGE
    assert "pip install '.[figures]'" in capsys.readouterr().err
