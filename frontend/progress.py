"""Progress: how far a batch is. One line that is rewritten on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from .batch_results import ItemTotals

TERMINAL_INTERVAL_S = 0.1
PLAIN_INTERVAL_S = 10.0


class Progress:
    """Counts finished items and shows them. Thread-safe.

    A notebook's stream is no terminal; nor is one whose environment says so (CI, TERM=dumb), where a line that is
    rewritten would be kept in all its states.
    """

    def __init__(
        self,
        name: str,
        total: int,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._name = name
        self._total = total
        self._stream: TextIO | None = stream if stream is not None else sys.stderr
        self._clock = clock
        self._lock = threading.Lock()
        self._started_at = clock()
        self._shown_at = self._started_at
        is_plain = bool(environment.get("CI")) or environment.get("TERM") == "dumb"
        self._is_terminal = not is_plain and self._has_terminal()
        self._line_len = 0
        self._num_done = 0
        self._num_resumed = 0
        self._num_failed = 0
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0
        self._num_new_tokens = 0
        self._first_error = ""

    def add(self, item: ItemTotals, *, is_resumed: bool = False) -> None:
        """One more item has ended, or was found in a journal: then it counts, but not towards the rates."""
        with self._lock:
            self._num_done += 1
            self._num_resumed += is_resumed
            self._num_failed += item.is_failed
            self._first_error = self._first_error or item.error
            self._num_prompt_tokens += item.num_prompt_tokens
            self._num_cached_tokens += item.num_cached_tokens
            self._num_new_tokens += 0 if is_resumed else item.num_generated_tokens
            interval_s = TERMINAL_INTERVAL_S if self._is_terminal else PLAIN_INTERVAL_S
            if self._clock() - self._shown_at >= interval_s:
                self._show()

    def close(self) -> None:
        """Show the final state, end the line, and say why the first item that failed did."""
        with self._lock:
            self._show()
            if self._is_terminal:
                self._write("\n")
            if self._first_error:
                self._write(f"{self._name}: the first failure: {self._first_error}\n")

    def _show(self) -> None:
        self._shown_at = self._clock()
        line = self.line()
        if self._is_terminal:
            self._write("\r" + line.ljust(self._line_len))
            self._line_len = len(line)
        else:
            self._write(line + "\n")

    def _has_terminal(self) -> bool:
        try:
            return self._stream is not None and self._stream.isatty()
        except Exception:  # closed
            self._stream = None
            return False

    def _write(self, text: str) -> None:
        """A stream that cannot be written to any more, whatever it says, is not worth a batch."""
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except Exception:
            self._stream = None

    def line(self) -> str:
        """Items done, resumed and failed, rates, share of prompt tokens that were cached, time left."""
        elapsed_s = max(self._clock() - self._started_at, 1e-9)
        num_new = self._num_done - self._num_resumed
        rate = num_new / elapsed_s
        resumed = f" ({self._num_resumed} from the journal)" if self._num_resumed else ""
        parts = [f"{self._name}: {self._num_done}/{self._total}{resumed}"]
        if self._num_failed:
            parts.append(f"{self._num_failed} failed")
        parts.append(f"{rate:.1f} items/s")
        parts.append(f"{self._num_new_tokens / elapsed_s:.0f} tokens/s")
        if self._num_prompt_tokens:
            parts.append(f"{100 * self._num_cached_tokens / self._num_prompt_tokens:.0f} % cached")
        if num_new and self._num_done < self._total:
            parts.append(f"{_duration((self._total - self._num_done) / rate)} left")
        return ", ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
