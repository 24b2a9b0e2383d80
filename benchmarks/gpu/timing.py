"""Timer: how long a call takes on the device, without what the host does to launch it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch

L2_BYTES = 64 << 20
"""A little more than the cache of an H200 holds: what is rotated through must be several times this."""

Call = Callable[[], object]


class Timer:
    """Times calls by CUDA events around replays of a graph of them; on a CPU by its clock.

    Args:
        rep_ms: device time to spend on a measurement.

    Attributes:
        compile_seconds: spent in first calls so far: Triton's and inductor's compilation, mostly.
    """

    def __init__(self, device: torch.device, rep_ms: float = 100.0) -> None:
        self._device = device
        self._rep_ms = rep_ms
        self.compile_seconds = 0.0

    def num_rotated(self, num_bytes: int) -> int:
        """How many inputs of so many bytes to rotate through, so that none is in the cache when its turn comes."""
        if self._device.type != "cuda":
            return 2
        return max(1, -(-4 * L2_BYTES // max(num_bytes, 1)))

    def warm_up(self, call: Call) -> None:
        """Call it once, whatever it has to compile, and count that apart."""
        start = time.perf_counter()
        call()
        self.synchronize()
        self.compile_seconds += time.perf_counter() - start

    def median_ms(self, calls: Sequence[Call], *, is_captured: bool = True) -> float:
        """Median milliseconds of one call. The calls do the same on different memory, and are made in turn.

        Args:
            is_captured: whether a CUDA graph of them is replayed; else they are launched one by one, which counts the
                host's time where that is the longer.
        """
        for call in calls:
            self.warm_up(call)
        if self._device.type != "cuda":
            return _host_ms(calls)
        replay = self._capture(calls) if is_captured else lambda: [call() for call in calls]
        return self._median_of(replay) / len(calls)

    def synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _capture(self, calls: Sequence[Call]) -> Call:
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for call in calls:
                call()
        self.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for call in calls:
                call()
        return graph.replay

    def _median_of(self, replay: Call) -> float:
        first = self._elapsed_ms(replay, 1)[0]
        first = min(first, self._elapsed_ms(replay, 1)[0])
        num_runs = int(min(200, max(5, self._rep_ms / max(first, 1e-3))))
        return statistics.median(self._elapsed_ms(replay, num_runs))

    def _elapsed_ms(self, replay: Call, num_runs: int) -> list[float]:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(num_runs + 1)]
        events[0].record()
        for event in events[1:]:
            replay()
            event.record()
        self.synchronize()
        return [before.elapsed_time(after) for before, after in pairwise(events)]


def _host_ms(calls: Sequence[Call]) -> float:
    times = []
    for call in calls:
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)
