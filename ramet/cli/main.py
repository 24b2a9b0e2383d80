"""`ramet`: reads the command line, runs one command, turns its errors into one line and an exit status.

Exit status: 0 done, 1 the command found or met a fault, 2 it was asked for something impossible, 130 Ctrl-C, 143 a
server's SIGTERM before it served.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .. import __version__
from . import chat, demo, doctor, eval, figures, run, serve
from .command_parser import CommandParser
from .errors import is_deliberate, one_line
from .flags import flags_of, in_flags
from .interrupts import EXIT_INTERRUPTED, INTERRUPTED_LINE

EXIT_USAGE = 2


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand: how it is described, what it takes, what it does (returning the exit status)."""

    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    execute: Callable[[argparse.Namespace], int]


COMMANDS = {
    "demo": Command(
        "run a real program on the bundled model and show what the cache saved", demo.add_arguments, demo.execute
    ),
    "run": Command("run a program file with a model as its default backend", run.add_arguments, run.execute),
    "chat": Command("talk to a model", chat.add_arguments, chat.execute),
    "serve": Command(
        "serve a model over HTTP, with OpenAI's, Anthropic's and SGLang's endpoints", serve.add_arguments, serve.execute
    ),
    "eval": Command(
        "evaluate a model on a few-shot task, whose shots are computed once", eval.add_arguments, eval.execute
    ),
    "doctor": Command(
        "check this installation and say what to do about each problem", doctor.add_arguments, doctor.execute
    ),
    "figures": Command(
        "compute anew what the papers claim of the systems that ramet builds on",
        figures.add_arguments,
        figures.execute,
    ),
}


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="ramet", description="LLM programs that never compute the same prefix twice.")
    parser.add_argument("--version", action="version", version=f"ramet {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, command in COMMANDS.items():
        sentence = f"{command.summary[0].upper()}{command.summary[1:]}."
        subparser = subparsers.add_parser(name, help=command.summary, description=sentence)
        command.add_arguments(subparser)
        subparser.add_argument("--debug", action="store_true", help="show the whole traceback of an error")
        subparser.set_defaults(flags=flags_of(subparser))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: that of the process) and return the exit status.

    Raises:
        SystemExit: by argparse, for --help, --version and a command line it cannot read.
    """
    try:
        return _run(argv)
    except KeyboardInterrupt:
        sys.stderr.write(INTERRUPTED_LINE)
        return EXIT_INTERRUPTED


def _run(argv: Sequence[str] | None) -> int:
    _make_output_safe()
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return EXIT_USAGE
    try:
        return COMMANDS[args.command].execute(args)
    except BrokenPipeError:
        # The reader of our output has gone; the interpreter must not complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if args.debug or not is_deliberate(error):
            raise
        print(f"ramet: error: {in_flags(one_line(error), args.flags)}", file=sys.stderr)
        return EXIT_USAGE


def _make_output_safe() -> None:
    """A model may write any character, and input may hold bytes that are none: a replacement is shown or read."""
    for stream in (sys.stdout, sys.stderr, sys.stdin):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
