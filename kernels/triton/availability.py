"""Whether Triton kernels can run on a device, and if not, why and what would help. Imports no Triton."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re

import torch

from ..cuda_state import first_line

MIN_TRITON = (3, 6)
"""pyproject.toml asks for the same."""

_DISTRIBUTIONS = ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm", "triton-windows")
MIN_CAPABILITY = (8, 0)
FP8_CAPABILITY = (8, 9)


def why_unavailable(device: torch.device) -> str | None:
    """Why the kernels cannot run on a device that exists; None if they can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed; in ramet's checkout, pip install '.[gpu]' (Linux only), or use other kernels"
    version = triton_version()
    if version is not None and _release(version) < MIN_TRITON:
        needed = ".".join(map(str, MIN_TRITON))
        return (
            f"Triton {version} is too old, the kernels need {needed}; install the torch that brings a newer one, or "
            "use other kernels"
        )
    if device.type == "cpu":
        if _is_interpreting():
            return _why_not_interpreted(version, _version_of("numpy"))
        return (
            "on a CPU Triton kernels run in its interpreter only, which is for tests; set TRITON_INTERPRET=1 before "
            "they are imported, or use other kernels"
        )
    if _is_interpreting():
        return "TRITON_INTERPRET=1 is set, so Triton kernels would be interpreted on the CPU; unset it"
    try:
        capability = torch.cuda.get_device_capability(device)
    except RuntimeError as error:  # another process has it for itself, a forked process, an error of the card
        return f"it cannot be used: {first_line(error)}"
    if torch.version.hip is not None:
        return None
    if capability < MIN_CAPABILITY:
        return (
            f"{torch.cuda.get_device_name(device)} has compute capability {capability[0]}.{capability[1]}, the kernels "
            f"need {MIN_CAPABILITY[0]}.{MIN_CAPABILITY[1]} (Ampere) or newer; use kernels='torch'"
        )
    return None


def triton_version() -> str | None:
    """The version of the Triton that is installed, None if no package says so."""
    return next((version for version in map(_version_of, _DISTRIBUTIONS) if version is not None), None)


def _version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:  # not installed, or copied to where Python finds it
        return None


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def why_no_fp8(device: torch.device) -> str | None:
    """Why keys and values cannot be kept as fp8 e4m3 on a device that exists; None if they can.

    Triton, from 3.6 to 3.9, refuses to compile the cast for cards before compute capability 8.9."""
    if device.type == "cpu":
        return None
    if torch.version.hip is not None:
        return "on AMD cards its conversion spills registers"
    capability = torch.cuda.get_device_capability(device)
    if capability < FP8_CAPABILITY:
        return (
            f"{torch.cuda.get_device_name(device)} has compute capability {capability[0]}.{capability[1]}, and fp8 "
            f"needs {FP8_CAPABILITY[0]}.{FP8_CAPABILITY[1]} (Ada, Hopper) or newer"
        )
    return None


def has_fp8(device: torch.device) -> bool:
    """Whether fp8 e4m3 can be kept on a device: see `why_no_fp8`."""
    return why_no_fp8(device) is None


def _why_not_interpreted(triton_version: str | None, numpy_version: str | None) -> str | None:
    """Triton's interpreter before 3.7 makes a number of an array of one element, which numpy 2.4 refuses. Compiled
    kernels do not mind."""
    if triton_version is None or numpy_version is None:
        return None
    if _release(triton_version) >= (3, 7) or _release(numpy_version) < (2, 4):
        return None
    return (
        f"the interpreter of Triton {triton_version} does not work with numpy {numpy_version}: take Triton 3.7 or "
        "newer, or numpy before 2.4 (on a GPU both are fine)"
    )


def _is_interpreting() -> bool:
    """As Triton reads its variable."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y", "t")
