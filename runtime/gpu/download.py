"""Download: a tensor on its way to the host, while the device goes on with what is launched behind it."""

from __future__ import annotations

import torch
from torch import Tensor


class Download:
    """Copies a tensor to the host on the current stream. The tensor may change afterwards.

    The host's side is pinned memory of PyTorch's caching allocator, and an event stands behind the copy: who waits for
    it waits for nothing that is launched later.
    """

    def __init__(self, tensor: Tensor) -> None:
        if tensor.device.type != "cuda":
            self._host, self._copied = tensor.clone(), None
            return
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._host.copy_(tensor, non_blocking=True)
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._copied.record()

    def wait(self) -> Tensor:
        """The tensor on the host, once it is there."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._host
