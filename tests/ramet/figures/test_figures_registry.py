"""Every figure runs at quick scale and says all that a reader needs; the plots can be drawn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from ramet.figures.context import FigureContext
from ramet.figures.document import write_document
from ramet.figures.figure import Figure, FigureResult, Method
from ramet.figures.plotting import save_plots
from ramet.figures.registry import FIGURES
from ramet.figures.report import as_json, as_markdown, as_text

OF_THE_REAL_MODEL = [name for name, figure in FIGURES.items() if figure.method == "real model"]
SIMULATED = [name for name in FIGURES if name not in OF_THE_REAL_MODEL]


@pytest.fixture(scope="module")
def context() -> Iterator[FigureContext]:
    with FigureContext("quick") as context:
        yield context


def check_contract(figure: Figure, result: FigureResult, tmp_path: Path) -> None:
    assert figure.method in get_args(Method)
    assert figure.system
    assert figure.title
    assert figure.paper
    assert result.headline
    assert result.paper_value
    assert result.rows
    assert len({len(row) for row in result.rows} | {len(result.columns)}) == 1
    assert result.seconds > 0
    assert result.headline in as_markdown(figure, result, None)
    assert all(len(line) <= 80 for line in as_text(figure, result, 80).splitlines() if line.startswith("ramet "))
    assert json.loads(json.dumps(as_json(figure, result)))["headline"] == result.headline
    path = tmp_path / "plot.svg"
    assert save_plots([(figure, result)], path) == (result.plot is not None)
    assert path.exists() == (result.plot is not None)


@pytest.mark.parametrize("name", SIMULATED)
def test_simulated_figure_keeps_the_contract(name: str, context: FigureContext, tmp_path: Path) -> None:
    check_contract(FIGURES[name], FIGURES[name].measure(context), tmp_path)


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("name", OF_THE_REAL_MODEL)
def test_figure_of_the_real_model_keeps_the_contract(name: str, context: FigureContext, tmp_path: Path) -> None:
    check_contract(FIGURES[name], FIGURES[name].measure(context), tmp_path)


def test_a_simulated_figure_is_the_same_when_computed_again(context: FigureContext) -> None:
    figure = FIGURES["tensorrt-padding"]
    assert figure.measure(context).rows == figure.measure(context).rows


def test_a_document_is_the_same_when_written_again(context: FigureContext, tmp_path: Path) -> None:
    results = [(FIGURES["orca-steps"], FIGURES["orca-steps"].measure(context))]
    texts = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_document(results, tmp_path / folder / "figures.md")
        texts.append((tmp_path / folder / "figures" / "orca-steps.svg").read_bytes())
    assert texts[0] == texts[1]
    assert "(figures/orca-steps.svg)" in (tmp_path / "a" / "figures.md").read_text(encoding="utf-8")
