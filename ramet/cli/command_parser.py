"""CommandParser: a command line that cannot be read gets a short usage, what is wrong, and what was probably meant."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from ..suggestions import did_you_mean


class CommandParser(argparse.ArgumentParser):
    """argparse's, where a subcommand refuses itself what it does not know: it knows its own options."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:  # type: ignore[override]
        """Nothing unknown is ever returned.

        Raises:
            SystemExit: there is something that the command does not take, or a value that an option does not take.
        """
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._refusal(unknown))
        return found, []

    def error(self, message: str) -> NoReturn:
        """Print the usage without its options, which are many, and the message; exit with status 2."""
        usage = argparse.HelpFormatter(f"{self.prog} [OPTIONS]")
        usage.add_usage(None, [action for action in self._actions if not action.option_strings], [])
        self.exit(2, f"{usage.format_help()}{self.prog}: error: {message} ('{self.prog} --help' lists the options)\n")

    def _refusal(self, unknown: Sequence[str]) -> str:
        flags = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        if not flags:
            return f"{unknown[0]!r} is one value too many; an option takes one: give it again for another"
        meant = did_you_mean(flags[0].replace("_", "-"), self._option_string_actions)
        return f"there is no option {flags[0]}{meant.rstrip(';')}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            meant = did_you_mean(str(value), choices)
            raise argparse.ArgumentError(action, f"{value!r} is unknown{meant} choose one of {', '.join(choices)}")
