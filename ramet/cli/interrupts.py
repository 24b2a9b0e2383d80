"""Ctrl-C while modules are imported or a model is opened, and while the process ends: it ends at once.

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
INTERRUPTED_LINE = "\nramet: interrupted\n"


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


def exit_on_interrupt_from_now_on() -> None:
    """All is done but for the end of the interpreter, where nobody would catch an exception."""
    signal.signal(signal.SIGINT, _exit)


def _exit(signal_number: int, frame: FrameType | None) -> None:
    with contextlib.suppress(Exception):  # the stream may be closed, or in the middle of a write
        sys.stdout.flush()
    os.write(2, INTERRUPTED_LINE.encode())
    os._exit(EXIT_INTERRUPTED)
