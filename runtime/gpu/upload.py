"""Upload: many small arrays to a device in one asynchronous copy."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT = 16
"""Bytes. Triton compiles loads of addresses divisible by it once, and they are wide."""

_TORCH_DTYPES: dict[str, torch.dtype] = {
    "int32": torch.int32,
    "int64": torch.int64,
    "float32": torch.float32,
    "float64": torch.float64,
}


def upload(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[Tensor]:
    """The arrays as tensors on the device, in one copy on the current stream.

    The host's side is pinned memory of PyTorch's caching allocator, which reuses it only when the copy is done: the
    caller need not wait. The tensors are views of one piece of memory.
    """
    starts = [0]
    for array in arrays:
        starts.append(-(-(starts[-1] + array.nbytes) // _ALIGNMENT) * _ALIGNMENT)
    host = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    host_bytes = host.numpy()
    for array, start in zip(arrays, starts, strict=False):
        host_bytes[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    sent = host.to(device, non_blocking=True)
    return [
        sent[start : start + array.nbytes].view(_TORCH_DTYPES[array.dtype.name]).view(array.shape)
        for array, start in zip(arrays, starts, strict=False)
    ]


def pinned(array: NDArray[Any], device: torch.device) -> Tensor:
    """The array as a tensor on the host from which an asynchronous copy to the device can be made."""
    values = torch.from_numpy(array)
    return values.pin_memory() if device.type == "cuda" else values


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Triton launches on the current CUDA device: make it this one for the duration."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
