"""StepGraphs: how a step over fixed buffers is repeated. CUDA graphs on a GPU, plain calls where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

_NUM_WARM_UPS = 2
"""Runs before a capture: the first compiles kernels and lets cuBLAS allocate, neither of which can be captured."""


class StepGraphs(Protocol):
    """Captures steps one after another."""

    def capture(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """What computes the step again, reading the same inputs where they lie and returning the same tensor.

        Args:
            step: only launches work on the device; no copies from the host, no sizes that depend on data. It is run,
                with whatever its inputs hold.
        """
        ...


class EagerSteps:
    """Calls the step again: nothing is captured. For a CPU, and for finding faults."""

    def capture(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """See `StepGraphs.capture`."""
        return step


class CudaGraphs:
    """Graphs of one device. They share memory for what is computed on the way, so one runs at a time; capture the
    largest step first, and the others fit in."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None
        # One stream for all captures: memory of a pool is reused within a stream only.
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """See `StepGraphs.capture`. Costs some tenths of a second, and waits for the device."""
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(_NUM_WARM_UPS):
                step()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            output = step()
        self._pool = graph.pool()

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay


def step_graphs_for(device: torch.device) -> StepGraphs:
    """CUDA graphs where there is CUDA."""
    return CudaGraphs(device) if device.type == "cuda" else EagerSteps()
