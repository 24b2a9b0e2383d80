"""Which backend runs the ops. An explicit table; a backend is imported when it is chosen."""

from __future__ import annotations

from collections.abc import Callable

import torch

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


KERNELS: dict[str, Callable[[torch.device], Kernels]] = {
    "reference": _reference,
    "torch": _torch,
}
DEFAULT_KERNELS = "torch"
DEVICE_TYPES = ("cpu", "cuda")


def select_kernels(device: str | torch.device, name: str | None = None) -> Kernels:
    """The ops for a device: the backend called `name`, or the fastest one there.

    Args:
        device: "cpu", "cuda", "cuda:1", ..., or "auto": the first CUDA device, or the CPU where there is none.

    Raises:
        UnknownKernelsError: no such name.
        UnsupportedDeviceError: no such device, or one that no backend runs on.
    """
    checked = _check_device(device)
    chosen = DEFAULT_KERNELS if name is None else name
    if chosen not in KERNELS:
        raise UnknownKernelsError(f"kernels={name!r} is not known; the known ones are {', '.join(sorted(KERNELS))}")
    return KERNELS[chosen](checked)


def _check_device(device: str | torch.device) -> torch.device:
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        checked = torch.device(device)
    except RuntimeError as error:
        raise UnsupportedDeviceError(f"device={device!r} is not a device name; use 'auto', 'cpu' or 'cuda'") from error
    if checked.type not in DEVICE_TYPES:
        raise UnsupportedDeviceError(f"device={device!r} is not supported; use one of {', '.join(DEVICE_TYPES)}")
    if checked.type == "cuda" and not torch.cuda.is_available():
        raise UnsupportedDeviceError(
            f"device={device!r} was asked for, but this torch ({torch.__version__}) sees no CUDA device; "
            "use 'cpu', or install a CUDA build of torch and a driver for it"
        )
    return checked
