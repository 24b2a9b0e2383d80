"""`ramet doctor`: checks an installation and says what to do about each problem."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from .check import Check
from .checks import run_checks
from .engine_options import add_engine_arguments
from .interrupts import exit_on_interrupt
from .terminal import Terminal

_INDENT = 18


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="do not load the model to generate a token")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    add_engine_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    terminal = Terminal()
    checks = []
    with exit_on_interrupt():
        for check in run_checks(args):
            checks.append(check)
            if not args.json:
                terminal.line(format_check(check, terminal))
    is_sound = all(check.status != "problem" for check in checks)
    if args.json:
        terminal.line(json.dumps({"ok": is_sound, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        terminal.line(_verdict(checks, terminal))
    return 0 if is_sound else 1


def format_check(check: Check, terminal: Terminal) -> str:
    """One finding as a line, and what to do about it as a second one."""
    marks = {
        "ok": terminal.good("ok  "),
        "warning": terminal.warn("warn"),
        "problem": terminal.bad("FAIL"),
        "skipped": terminal.dim("skip"),
    }
    detail = terminal.wrapped(check.detail, indent=_INDENT)
    line = f"{marks[check.status]}  {terminal.bold(check.name.ljust(_INDENT - 8))}  {detail}"
    remedy = terminal.wrapped(check.remedy, indent=_INDENT + 3)
    return f"{line}\n{' ' * _INDENT}-> {remedy}" if check.remedy else line


def _verdict(checks: Sequence[Check], terminal: Terminal) -> str:
    num_problems = sum(check.status == "problem" for check in checks)
    num_warnings = sum(check.status == "warning" for check in checks)
    if num_problems:
        return terminal.bad(f"\n{num_problems} of {len(checks)} checks failed: their lines say why, and what to do.")
    if num_warnings:
        return terminal.warn(f"\nIt works; {num_warnings} of {len(checks)} checks could be better.")
    return terminal.good(f"\nAll {len(checks)} checks passed.")
