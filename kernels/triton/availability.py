"""Whether Triton kernels can run on a device, and if not, why and what would help. Imports no Triton."""

from __future__ import annotations

import importlib.util
import os
from importlib.metadata import PackageNotFoundError, version

import torch

MIN_CAPABILITY = (8, 0)
FP8_CAPABILITY = (8, 9)


def why_unavailable(device: torch.device) -> str | None:
    """Why the kernels cannot run on a device that exists; None if they can."""
    if importlib.util.find_spec("triton") is None:
        return 'Triton is not installed; pip install "ramet[gpu]" (Linux only), or use other kernels'
    if device.type == "cpu":
        if _is_interpreting():
            return _why_not_interpreted(_version("triton"), _version("numpy"))
        return (
            "on a CPU Triton kernels run in its interpreter only, which is for tests: set TRITON_INTERPRET=1 before "
            "they are imported, or use other kernels"
        )
    if _is_interpreting():
        return "TRITON_INTERPRET=1 is set, so Triton kernels would be interpreted on the CPU; unset it"
    if torch.version.hip is not None:
        return None
    capability = torch.cuda.get_device_capability(device)
    if capability < MIN_CAPABILITY:
        return (
            f"{torch.cuda.get_device_name(device)} has compute capability {capability[0]}.{capability[1]}, the kernels "
            f"need {MIN_CAPABILITY[0]}.{MIN_CAPABILITY[1]} (Ampere) or newer; use kernels='torch'"
        )
    return None


def has_fp8(device: torch.device) -> bool:
    """Whether the device converts fp8 e4m3 by itself; AMD's MI300 has another fp8 and would spill registers."""
    if device.type == "cpu":
        return True
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= FP8_CAPABILITY


def _why_not_interpreted(triton_version: str, numpy_version: str) -> str | None:
    """Triton's interpreter before 3.7 makes a number of an array of one element, which numpy 2.4 refuses. Compiled
    kernels do not mind."""
    if _numbers(triton_version) >= (3, 7) or _numbers(numpy_version) < (2, 4):
        return None
    return (
        f"the interpreter of Triton {triton_version} does not work with numpy {numpy_version}: take Triton 3.7 or "
        "newer, or numpy before 2.4 (on a GPU both are fine)"
    )


def _version(name: str) -> str:
    """Of an installed distribution; a high one if it came under another name, as builds of PyTorch may bring theirs."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "999.0"


def _numbers(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def _is_interpreting() -> bool:
    """As Triton reads its variable."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y", "t")
