"""`ramet demo`, without its model: what it shows, and that its programs share what they can."""

from __future__ import annotations

import io
import re
import time

import pytest

from ramet.cli.demo import run_demo
from ramet.cli.demo_program import CATEGORIES, DESK, TICKETS
from ramet.cli.terminal import Terminal
from ramet.frontend.backends.mock import MockBackend


def test_the_demo_shows_every_call_and_what_the_cache_saved(screen: io.StringIO, terminal: Terminal) -> None:
    backend = MockBackend(lambda call, prompt: "We are sorry" if call.sampling_params.is_greedy else "Draft text.")
    run_demo(backend, terminal, start=time.monotonic())
    shown = screen.getvalue()
    for ticket in TICKETS:
        assert ticket[:40] in shown
    assert shown.count("Draft text.") == 6
    assert shown.count("We are sorry") == 2
    assert any(category in shown for category in CATEGORIES)
    table = [line for line in shown.splitlines() if re.match(r"ticket \d: ", line)]
    assert [line.split()[2] for line in table] == ["select", "gen", "gen", "gen", "select", "gen"] * 2
    sums = next(line for line in shown.splitlines() if line.startswith("all ")).split()
    num_prompt, num_cached = (int(number.replace(",", "")) for number in sums[1:3])
    assert num_prompt == sum(len(request.call.prompt_token_ids) for request in backend.requests)
    assert num_cached == sum(request.num_cached_tokens for request in backend.requests)
    assert f"{num_cached / num_prompt:.0%} of the prompt tokens were in the cache" in shown


def test_its_lines_fit_a_terminal_of_80_columns(tty: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    run_demo(MockBackend("many words " * 20), Terminal(tty), start=time.monotonic())
    assert max(map(len, tty.getvalue().splitlines())) == 80


def test_the_second_ticket_finds_the_system_message_in_the_cache(terminal: Terminal) -> None:
    backend = MockBackend("ok")
    run_demo(backend, terminal, start=time.monotonic())
    second_start = backend.requests[6]
    assert TICKETS[1] in second_start.prompt
    assert second_start.num_cached_tokens > len(DESK)
