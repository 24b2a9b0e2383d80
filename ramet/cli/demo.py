"""`ramet demo`: a program of several calls on a real model, streamed, with a report of what the cache saved."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from ..counted import counted
from .engine_options import add_engine_arguments, open_backend
from .report import CallRow, Totals, format_table
from .terminal import Terminal
from .wrapped_writer import WrappedWriter

if TYPE_CHECKING:
    from ..frontend.backend import Backend
    from ..frontend.state import ProgramState

_LABEL_WIDTH = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    start = time.monotonic()
    terminal = Terminal()
    terminal.line(terminal.bold("ramet demo") + ": sorts support tickets, drafts three answers, picks one")
    with open_backend(args) as backend:
        llm = backend.llm
        load_s = time.monotonic() - start
        threads = counted(llm.num_threads, "thread")
        ready = f"{llm.model_name} on {llm.kernels_name} kernels, {threads}; ready after {load_s:.1f} s"
        terminal.line(terminal.dim(terminal.wrapped(ready)))
        run_demo(backend, terminal, start)
    return 0


def run_demo(backend: Backend, terminal: Terminal, start: float) -> None:
    """Run the program on each ticket and print the report.

    Args:
        start: when the command began, on the monotonic clock.
    """
    from .demo_program import TICKETS, triage

    show = Follower(terminal)
    rows: list[CallRow] = []
    programs_start = time.monotonic()
    for number, ticket in enumerate(TICKETS, start=1):
        terminal.line()
        terminal.write(terminal.accent(f"Ticket {number}".ljust(_LABEL_WIDTH)))
        _write_wrapped(terminal, ticket)
        state = triage.run(ticket=ticket, show=show.follow, backend=backend)
        rows.extend(call_rows(state, f"ticket {number}: "))
    totals = Totals.of(rows, time.monotonic() - programs_start)
    terminal.line("\n" + terminal.bold("What the prefix cache saved (tokens)"))
    terminal.line(format_table(rows, totals, terminal))
    terminal.line(
        f"\n{terminal.good(f'{totals.hit_rate:.0%}')} of the prompt tokens were in the cache: "
        f"{totals.num_cached_tokens:,} of {totals.num_prompt_tokens:,}."
    )
    terminal.line(f"{totals.num_generated_tokens:,} tokens were generated, {totals.tokens_per_s:.1f} a second.")
    if show.first_output_at is not None:
        terminal.line(terminal.dim(f"The first answer came {show.first_output_at - start:.1f} s after the start."))


def call_rows(state: ProgramState, prefix: str) -> list[CallRow]:
    """The finished calls of a run, in the order the program asked for them."""
    rows = []
    for call in state.calls():
        if call.meta is not None:
            branch = "".join(f" {idx + 1}" for idx in call.branch)
            rows.append(
                CallRow(
                    label=f"{prefix}{call.kind} {call.name or ''}{branch}",
                    num_prompt_tokens=call.meta.num_prompt_tokens,
                    num_cached_tokens=call.meta.num_cached_tokens,
                    num_generated_tokens=call.meta.num_generated_tokens,
                    duration_s=call.meta.duration_s,
                )
            )
    return rows


class Follower:
    """Shows variables of a program on the terminal while they are being computed.

    Attributes:
        first_output_at: when the first text came, on the monotonic clock.
    """

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self.first_output_at: float | None = None

    def follow(self, label: str, state: ProgramState, name: str) -> None:
        """Write a variable's text as it comes. Raises what reading the variable raises."""
        self._terminal.write(self._terminal.accent(f"  {label}".ljust(_LABEL_WIDTH)))
        writer = WrappedWriter(self._terminal, _LABEL_WIDTH)
        for piece in state.text_iter(name):
            if self.first_output_at is None:
                self.first_output_at = time.monotonic()
            writer.write(piece)
        writer.close()


def _write_wrapped(terminal: Terminal, text: str) -> None:
    writer = WrappedWriter(terminal, _LABEL_WIDTH)
    writer.write(text)
    writer.close()
