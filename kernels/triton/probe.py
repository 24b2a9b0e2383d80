"""Whether Triton can launch a kernel at all. It compiles its launcher with a C compiler, its kernels with its own
assembler, and loads them with the driver: each may be missing or not fit the others, and says so only then."""

from __future__ import annotations

import torch

from ..cuda_state import first_line
from .argmax import argmax


def why_not_launched(device: torch.device) -> str | None:
    """Launch a small kernel that the sampler needs anyway, and look at its result. Why that failed; None if it did not.
    The device must be the current one. Costs a second or so where the kernel is not in Triton's cache.

    Raises:
        RuntimeError: not even three numbers can be put on the device.
    """
    logits = torch.tensor([[0.0, 2.0, 1.0]], device=device)
    try:
        token_ids, _ = argmax(logits)
        found = token_ids.tolist()
    except Exception as error:  # whatever a compiler, an assembler, a linker or a driver raises
        return f"{type(error).__name__}: {first_line(error)}"
    return None if found == [1] else f"a kernel that finds the largest of three numbers found number {found}"
