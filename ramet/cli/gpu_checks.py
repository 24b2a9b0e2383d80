"""What `ramet doctor` says of GPUs: which there are, whether Triton's kernels run there, which kernels are taken."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .check import Check, format_bytes
from .engine_options import engine_options

if TYPE_CHECKING:
    import torch

_NO_DEVICE = "not tried, because the device or the kernels cannot be had"
DRIVER_FILE = Path("/proc/driver/nvidia/version")
"""Where Linux says which NVIDIA driver is loaded."""


def check_gpu(args: argparse.Namespace) -> Check:
    """The cards that torch sees, or why it sees none. A driver without a card that is seen is a warning."""
    import torch

    from ..kernels.cuda_state import why_no_cuda

    driver = nvidia_driver()
    if not torch.cuda.is_available():
        detail = f"torch {torch.__version__} sees none: {why_no_cuda().partition('; ')[0]}"
        if driver is None:
            return Check("gpu", "ok", detail)
        remedy = "install a torch for CUDA that this driver takes, or update the driver; until then a CPU computes"
        return Check("gpu", "warning", f"NVIDIA driver {driver} is loaded, but {detail}", remedy)
    cards = [_describe(idx) for idx in range(torch.cuda.device_count())]
    built_for = f"CUDA {torch.version.cuda}" if torch.version.hip is None else f"ROCm {torch.version.hip}"
    versions = f"driver {driver or 'unknown'}, torch {torch.__version__} for {built_for}"
    broken = [text for text, is_sound in cards if not is_sound]
    detail = "; ".join([*(text for text, _ in cards), versions])
    if broken:
        return Check("gpu", "warning", detail, "end what else uses it, or name another one with --device")
    return Check("gpu", "ok", detail)


def nvidia_driver() -> str | None:
    """The version of the NVIDIA driver that is loaded; None where there is none, or the system does not say."""
    try:
        match = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", DRIVER_FILE.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
    return match[1] if match else None


def _describe(idx: int) -> tuple[str, bool]:
    """A card in words, and whether it can be used."""
    import torch

    from ..kernels.cuda_state import first_line

    try:
        name = torch.cuda.get_device_name(idx)
        major, minor = torch.cuda.get_device_capability(idx)
        free, total = torch.cuda.mem_get_info(idx)
    except RuntimeError as error:
        return f"cuda:{idx} cannot be used: {first_line(error)}", False
    memory = f"{format_bytes(free)} of {format_bytes(total)} free"
    return f"cuda:{idx} {name}, compute capability {major}.{minor}, {memory}", True


def check_triton(args: argparse.Namespace) -> Check:
    """Whether Triton's kernels run on the device. With `quick` none is launched."""
    from ..kernels.dispatch import why_unavailable
    from ..kernels.triton.availability import triton_version, why_no_fp8

    version = triton_version() or "not installed"
    try:
        device, candidates = device_and_candidates(args)
    except ValueError:
        return Check("triton", "skipped", _NO_DEVICE)
    if device.type == "cpu" and candidates[0] != "triton":
        return Check("triton", "ok", f"{version}; the device is a CPU, where it is not used")
    reason = why_unavailable("triton", device)
    if reason is None and not args.quick:
        reason = _why_not_launched(device)
    if reason is not None:
        cause, _, remedy = reason.partition("; ")
        remedy = remedy or "put that right, or name other kernels"
        if len(candidates) > 1:
            remedy += "; until then torch computes, in fp32"
        return Check("triton", "warning", f"{version}; not used on {device}: {cause}", remedy)
    fp8_reason = why_no_fp8(device)
    caches = "kv_cache_dtype may be int8 or fp8" if fp8_reason is None else f"kv_cache_dtype may be int8 ({fp8_reason})"
    launched = "not tried" if args.quick else "launches"
    return Check("triton", "ok", f"{version}; {launched} on {device}; {caches}")


def _why_not_launched(device: torch.device) -> str | None:
    from ..kernels.cuda_state import first_line
    from ..kernels.triton.probe import why_not_launched
    from ..runtime.gpu.upload import on_device

    try:
        with on_device(device):
            return why_not_launched(device)
    except RuntimeError as error:
        return first_line(error)


def check_choice(args: argparse.Namespace) -> Check:
    """Which kernels are taken, which are passed over, and why the others are not tried."""
    from ..runtime.config import EngineConfig
    from ..runtime.runner_factory import RUNNERS, passed_over

    try:
        device, candidates = device_and_candidates(args)
    except ValueError:
        return Check("choice", "skipped", _NO_DEVICE)
    try:
        reasons = passed_over(candidates, EngineConfig(**engine_options(args)), device)
    except ValueError:
        return Check("choice", "skipped", "not tried, because the options are refused")
    able = [name for name in candidates if name not in reasons]
    told = [
        f"{name} is passed over, as said above" if name == "triton" else f"{name} is passed over: {reason}"
        for name, reason in reasons.items()
    ]
    others = [f"{name} ({_why_not_tried(name, device, args)})" for name in RUNNERS if name not in candidates]
    order = ", then ".join(able) if able else "none"
    detail = "; ".join([f"{order} on {device}", *told, f"not tried: {', '.join(others)}"])
    if not able:
        return Check("choice", "problem", detail, "give no --kernels (nor RAMET_KERNELS), or ones that run there")
    if any(name != "triton" for name in reasons):
        return Check("choice", "warning", detail, "leave out what slower kernels are taken for, or name them")
    return Check("choice", "ok", detail)


def check_options(args: argparse.Namespace) -> Check:
    """The engine takes the options, and so do the kernels that would be tried on the device. Raises what LLM raises."""
    from ..runtime.config import EngineConfig
    from ..runtime.runner_factory import passed_over

    options = engine_options(args)
    config = EngineConfig(**options)
    try:
        device, candidates = device_and_candidates(args)
    except ValueError:
        return Check("options", "skipped", _NO_DEVICE)
    passed_over(candidates, config, device)
    given = ", ".join(f"{name}={getattr(config, name)!r}" for name in options)
    return Check("options", "ok", given or "the defaults")


def _why_not_tried(name: str, device: torch.device, args: argparse.Namespace) -> str:
    from ..runtime.config import default_kernels
    from ..runtime.runner_factory import PREFERRED, RUNNERS

    if (args.kernels or default_kernels()) is not None:
        return "others were named"
    if device.type not in RUNNERS[name].device_types:
        return f"for {' and '.join(RUNNERS[name].device_types)}"
    if name not in PREFERRED[device.type]:
        return "only where it is named"
    if (args.tensor_parallel_size or 1) > 1 and not RUNNERS[name].can_be_parallel:
        return "not with tensor_parallel_size"
    return "slow on this processor"


def pool_on_gpu(args: argparse.Namespace) -> str | None:
    """How the cache is sized where it lies on a GPU, in words; None on a CPU, or where the options are wrong."""
    import torch

    from ..runtime.config import EngineConfig, kv_cache_memory_from_env

    try:
        device, _ = device_and_candidates(args)
    except ValueError:
        return None
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    asked = args.kv_cache_memory or kv_cache_memory_from_env()
    if asked:
        return f"{format_bytes(free)} free on {device}, cache of {format_bytes(asked)}"
    share = args.gpu_memory_utilization or EngineConfig().gpu_memory_utilization
    return (
        f"{format_bytes(free)} free on {device}; the cache takes what weights and steps leave of "
        f"gpu_memory_utilization={share}, {format_bytes(int(share * total))}"
    )


def device_and_candidates(args: argparse.Namespace) -> tuple[torch.device, Sequence[str]]:
    """The device that the options mean, and the kernels that are tried there in order. Raises what LLM raises."""
    from ..kernels.dispatch import check_device as resolve_device
    from ..runtime.config import default_kernels
    from ..runtime.runner_factory import RUNNERS, runner_candidates

    candidates = runner_candidates(args.kernels or default_kernels(), args.device, args.tensor_parallel_size or 1)
    return resolve_device(args.device, RUNNERS[candidates[0]].device_types), candidates
