"""Memory: what large requests leave behind is given back to the system.

Refused requests end in exceptions, which hold on to frames in cycles; the collector looks at old ones rarely. And what
worker threads have freed stays with the C library, a heap for each thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys

_SWEEP_BYTES = 4 << 20
"""Of bodies. Up to some thirty times as much is left of them."""
_SWEEP_DELAY_S = 1.0
"""Whoever answers a request still holds it then."""


def settle() -> None:
    """What there is when a server starts stays: the collector need not look at it any more, which makes it quick."""
    gc.collect()
    gc.freeze()
    gc.collect()  # how many it saw last time tells it when to look again


def sweep() -> None:
    """Give back what nobody uses. A millisecond or so after `settle`; half a second of a large process without it."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl needs none
        if trim is not None:
            trim(0)


class Sweeper:
    """Sweeps when requests of some size have gone, once for those of a moment. On one event loop."""

    def __init__(self) -> None:
        self._num_bytes = 0
        self._is_due = False

    def note_gone(self, num_bytes: int) -> None:
        """A request with a body of this size has been answered."""
        self._num_bytes += num_bytes
        if self._num_bytes >= _SWEEP_BYTES and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(_SWEEP_DELAY_S, self._sweep)

    def _sweep(self) -> None:
        self._num_bytes = 0
        self._is_due = False
        asyncio.get_running_loop().run_in_executor(None, sweep)
