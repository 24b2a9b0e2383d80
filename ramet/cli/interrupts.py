"""Ctrl-C, and for a server SIGTERM, while modules are imported or a model is opened, and while the process ends: it
ends at once.

An exception in the middle of an import is swallowed by some packages and leaves others half imported, so none is raised
then; nothing is running yet that would need to be put away.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
INTERRUPTED_LINE = "\nramet: interrupted\n"
TERMINATED_LINE = "\nramet: terminated\n"
_ENDS = {signal.SIGINT: (EXIT_INTERRUPTED, INTERRUPTED_LINE), signal.SIGTERM: (EXIT_TERMINATED, TERMINATED_LINE)}
"""Exit status and last line, as if the signal had ended the process."""


@contextmanager
def exit_on_interrupt(is_opening: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """In this block Ctrl-C ends the process with status 130 while `is_opening()`, and else does what it always does.

    Only the main thread can arrange that: in another one, or where Ctrl-C does not mean KeyboardInterrupt already, the
    block changes nothing.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def handle(signal_number: int, frame: FrameType | None) -> None:
        if is_opening():
            _exit(signal_number, frame)
        signal.default_int_handler(signal_number, frame)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def exit_on_signals(put_away: Callable[[], None] = lambda: None) -> Iterator[None]:
    """In this block Ctrl-C ends the process with status 130, and SIGTERM with 143, after `put_away`.

    Signals that the process ignores stay ignored. In another thread than the main one the block changes nothing.
    """

    def handle(signal_number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(Exception):
            put_away()
        _exit(signal_number, frame)

    is_main = threading.current_thread() is threading.main_thread()
    heard = [number for number in _ENDS if is_main and signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_on_interrupt_from_now_on() -> None:
    """All is done but for the end of the interpreter, where nobody would catch an exception."""
    signal.signal(signal.SIGINT, _exit)


def _exit(signal_number: int, frame: FrameType | None) -> None:
    with contextlib.suppress(Exception):  # the stream may be closed, or in the middle of a write
        sys.stdout.flush()
    status, line = _ENDS[signal.Signals(signal_number)]
    with contextlib.suppress(OSError):
        os.write(2, line.encode())
    os._exit(status)
