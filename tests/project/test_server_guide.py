"""The server's guide is right: its programs run against a server and print what it says."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
from pathlib import Path

import pytest

from ramet import LLM
from ramet.cli.main import build_parser
from ramet.runtime.server.config import ServerConfig
from ramet.runtime.server.listener import BackgroundServer

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "server.md").read_text(encoding="utf-8")
PROGRAMS = {
    heading.strip(): "\n".join(re.findall(r"^```python\n(.*?)^```$", body, re.MULTILINE | re.DOTALL))
    for heading, _, body in (section.partition("\n") for section in TEXT.split("\n## ")[1:])
    if "```python" in body
}
URL = "http://127.0.0.1:8000"
FLAGS: dict[str, str] = build_parser().parse_args(["serve"]).flags
NAMED_FLAGS = {
    flag for line in re.findall(r"`--.*?`|^ramet serve .*", TEXT, re.M) for flag in re.findall(r"--[\w-]+", line)
}


def test_all_programs_are_found() -> None:
    assert list(PROGRAMS) == ["OpenAI's client", "Anthropic's client", "SGLang's clients"]
    assert sum(map(len, PROGRAMS.values())) > 1000


def test_the_flags_are_those_of_the_command() -> None:
    assert NAMED_FLAGS - set(FLAGS.values()) == set()


def test_every_limit_can_be_found() -> None:
    names = [field.name for field in dataclasses.fields(ServerConfig)]
    limits = {FLAGS[name] for name in names if name.startswith("max_") or name.endswith("_timeout_s")}
    assert limits - NAMED_FLAGS == set()


def check_program(heading: str, server: BackgroundServer) -> None:
    promised = [line.removeprefix("#>").removeprefix(" ") for line in re.findall(r"^#>.*", PROGRAMS[heading], re.M)]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(PROGRAMS[heading].replace(URL, server.url), "program.py", "exec"), {"__name__": "__main__"})
    assert [line.rstrip() for line in printed.getvalue().splitlines()] == promised != []


@pytest.mark.model
@pytest.mark.compiler
@pytest.mark.parametrize("heading", PROGRAMS)
def test_a_program_prints_what_the_guide_says(heading: str, smollm2: LLM) -> None:
    smollm2.reset_prefix_cache()
    with BackgroundServer(smollm2, ServerConfig(port=0)) as server:
        check_program(heading, server)


@pytest.mark.model
@pytest.mark.compiler
def test_so_they_do_one_after_the_other(smollm2: LLM) -> None:
    smollm2.reset_prefix_cache()
    with BackgroundServer(smollm2, ServerConfig(port=0)) as server:
        for heading in PROGRAMS:
            check_program(heading, server)
