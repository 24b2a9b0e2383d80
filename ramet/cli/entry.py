"""The command `ramet`, as a process: Ctrl-C gives one line and status 130 from here to its end, also while the rest is
imported. What this module imports itself must be little."""

from __future__ import annotations

from .interrupts import exit_on_interrupt, exit_on_interrupt_from_now_on


def main() -> int:
    """Run the process's command line; the exit status."""
    with exit_on_interrupt():
        from .main import main as run_command_line
    try:
        return run_command_line()
    finally:
        exit_on_interrupt_from_now_on()
