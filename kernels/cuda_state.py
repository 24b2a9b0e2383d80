"""What stands between PyTorch and a GPU, in words. "cuda" is also PyTorch's name for AMD cards (ROCm)."""

from __future__ import annotations

import os

import torch

_MAX_QUOTED = 300


def why_no_cuda() -> str:
    """Why torch sees no CUDA device, and what would help. To be asked only where `torch.cuda.is_available()` is False:
    it starts CUDA."""
    if torch.version.cuda is None and torch.version.hip is None:
        return "it was built for CPUs only; install a build of torch for CUDA (or ROCm), and a driver for it"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        reason = first_line(error)
    else:
        reason = "CUDA starts, and has no device"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        reason += f" (CUDA_VISIBLE_DEVICES={hidden!r} says which ones are shown)"
    built_for = f"CUDA {torch.version.cuda}" if torch.version.hip is None else f"ROCm {torch.version.hip}"
    return f"it was built for {built_for} and says: {reason}"


def why_no_index(device: torch.device) -> str | None:
    """Why there is no CUDA device of this index; None if there is, or the name has no index."""
    if device.index is None:
        return None
    count = torch.cuda.device_count()
    if device.index < count:
        return None
    names = [torch.cuda.get_device_name(idx) for idx in range(count)]
    shown = ", ".join(f"cuda:{idx} ({name})" for idx, name in enumerate(names))
    reason = f"there {'is one' if count == 1 else f'are {count}'}: {shown}"
    if any("MIG" in name for name in names):
        reason += "; a process sees one MIG instance, the one that CUDA_VISIBLE_DEVICES names by its UUID"
    return reason


def first_line(error: BaseException) -> str:
    """The first line of an error of PyTorch or Triton that is not blank, shortened; its type if there is none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:_MAX_QUOTED] if lines else type(error).__name__
