"""Shared by the tests of the command line: a terminal that keeps what it shows."""

from __future__ import annotations

import io

import pytest

from ramet.cli.terminal import Terminal


class TtyStream(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def terminal(screen: io.StringIO) -> Terminal:
    return Terminal(screen)


@pytest.fixture
def tty() -> io.StringIO:
    return TtyStream()
