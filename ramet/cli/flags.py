"""Flags: what options are called at the command line, for errors that call them as Python does."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

_OTHER_NAMES = {"num_threads": "threads", "enable_prefix_caching=False": "no_prefix_caching"}
"""What Python calls an option, where that is not what `args` calls it."""


def flags_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """The flag by which each option is given, by the option's name in Python."""
    flags = {
        action.dest: action.option_strings[0]
        for action in parser._actions
        if action.option_strings and action.dest != "help"
    }
    return flags | {other: flags[name] for other, name in _OTHER_NAMES.items() if name in flags}


def in_flags(message: str, flags: Mapping[str, str]) -> str:
    """The message of an error with flags for the names of options: `--max-n=0` for `max_n=0`.

    Names that are words of English, such as `host`, are taken for such unless a value follows.
    """
    names = sorted(flags, key=len, reverse=True)
    if not names:
        return message
    either = "|".join(re.escape(name) if "_" in name else f"{re.escape(name)}(?==)" for name in names)
    return re.sub(rf"(?<![\w./'\"-])(?:{either})(?!\w)", lambda found: flags[found[0]], message)
