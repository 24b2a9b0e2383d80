"""Which backend runs the ops. An explicit table; a backend is imported when it is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .cuda_state import why_no_cuda, why_no_index
from .interface import Kernels


class UnknownKernelsError(ValueError):
    """No backend has this name. The message lists those that exist."""


class UnsupportedDeviceError(ValueError):
    """The device does not exist here, or no backend runs on it."""


def _reference(device: torch.device) -> Kernels:
    from .reference import ReferenceKernels

    return ReferenceKernels(device)


def _torch(device: torch.device) -> Kernels:
    from .torch_cpu.kernels import TorchKernels

    return TorchKernels(device)


def _torch_int8(device: torch.device) -> Kernels:
    from .torch_int8.kernels import TorchInt8Kernels

    return TorchInt8Kernels(device)


def _triton(device: torch.device) -> Kernels:
    from .triton.kernels import TritonKernels

    return TritonKernels(device)


@dataclass(frozen=True, slots=True)
class KernelsEntry:
    """An entry of KERNELS.

    Attributes:
        make: builds the backend.
        device_types: what it runs on.
        takes_quantized: `linear` also takes a `QuantizedMatrix`.
    """

    make: Callable[[torch.device], Kernels]
    device_types: tuple[str, ...]
    takes_quantized: bool = True


DEVICE_TYPES = ("cpu", "cuda")
KERNELS: dict[str, KernelsEntry] = {
    "reference": KernelsEntry(_reference, DEVICE_TYPES),
    "torch": KernelsEntry(_torch, DEVICE_TYPES),
    "torch_int8": KernelsEntry(_torch_int8, ("cpu",), takes_quantized=False),
    "triton": KernelsEntry(_triton, DEVICE_TYPES),
}
DEFAULT_KERNELS = "torch"


def why_unavailable(name: str, device: torch.device) -> str | None:
    """Why the backend of this name cannot run on a device that exists and is of its types; None if it can."""
    if name != "triton":
        return None
    from .triton.availability import why_unavailable as why_no_triton

    return why_no_triton(device)


def select_kernels(device: str | torch.device, name: str | None = None) -> Kernels:
    """The ops for a device: the backend called `name`, or the default one, which computes in fp32 on any device.

    Args:
        device: "cpu", "cuda", "cuda:1", ..., or "auto": the first CUDA device, or the CPU where there is none or the
            backend does not run on it.

    Raises:
        UnknownKernelsError: no such name.
        UnsupportedDeviceError: no such device, one that the backend does not run on, or something it needs is missing.
    """
    chosen = DEFAULT_KERNELS if name is None else name
    if chosen not in KERNELS:
        raise UnknownKernelsError(f"kernels={name!r} is not known; the known ones are {', '.join(sorted(KERNELS))}")
    return KERNELS[chosen].make(kernels_device(chosen, device))


def kernels_device(name: str, device: str | torch.device) -> torch.device:
    """The device that a name of a device means for the backend of this name. Raises UnsupportedDeviceError as
    `select_kernels` does."""
    checked = check_device(device, KERNELS[name].device_types)
    reason = why_unavailable(name, checked)
    if reason is not None:
        raise UnsupportedDeviceError(f"kernels={name!r} cannot run on device={str(checked)!r}: {reason}")
    return checked


def check_device(device: str | torch.device, device_types: Sequence[str] = DEVICE_TYPES) -> torch.device:
    """The device that a name means, among these types; "auto" as in `select_kernels`.

    Raises:
        UnsupportedDeviceError: no such device, or one of another type.
    """
    if not isinstance(device, str | torch.device):  # PyTorch would take an int for the index of some accelerator
        raise UnsupportedDeviceError(_not_a_name(device))
    if device == "auto":
        device = "cuda" if "cuda" in device_types and torch.cuda.is_available() else "cpu"
    try:
        checked = torch.device(device)
    except RuntimeError:
        raise UnsupportedDeviceError(_not_a_name(device)) from None  # PyTorch's own says less
    if checked.type not in device_types:
        hint = "; an AMD card is called 'cuda' too" if checked.type == "hip" else ""
        raise UnsupportedDeviceError(f"device={device!r} is not supported; use one of {', '.join(device_types)}{hint}")
    if checked.type == "cuda":
        _check_cuda(checked)
    elif checked.index:
        raise UnsupportedDeviceError(f"device={str(device)!r} does not exist: there is one CPU; use 'cpu'")
    return checked


def _not_a_name(device: object) -> str:
    return f"device={device!r} is not a device name; use 'auto', 'cpu', 'cuda', or one of several such as 'cuda:1'"


def _check_cuda(device: torch.device) -> None:
    if not torch.cuda.is_available():
        raise UnsupportedDeviceError(
            f"device={str(device)!r} was asked for, but this torch ({torch.__version__}) sees no CUDA device: "
            f"{why_no_cuda()}. Or use device='cpu'"
        )
    reason = why_no_index(device)
    if reason is not None:
        raise UnsupportedDeviceError(f"device={str(device)!r} is not among the CUDA devices here: {reason}")
