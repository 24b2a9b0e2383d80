"""HostCopy: blocks on their way from a device to the host, for another thread to read."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class HostCopy:
    """Enqueues the copy; whoever reads it first waits for it.

    Args:
        blocks: uint8 [n, bytes], which nobody changes any more.

    Raises:
        RuntimeError: there is no memory for it.
    """

    def __init__(self, blocks: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if blocks.device.type == "cuda":
            host = torch.empty(blocks.shape, dtype=blocks.dtype, pin_memory=True)
            host.copy_(blocks, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(blocks.device))
            blocks = host
        self._blocks = blocks

    @property
    def num_bytes(self) -> int:
        return self._blocks.numel()

    def rows(self) -> NDArray[np.uint8]:
        """[n, bytes]. Waits for the device."""
        if self._event is not None:
            self._event.synchronize()
        rows: NDArray[np.uint8] = self._blocks.contiguous().numpy()
        return rows
