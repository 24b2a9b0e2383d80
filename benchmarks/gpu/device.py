"""Part 0: what everything ran on."""

from __future__ import annotations

import platform
import shutil
import subprocess

import torch

from .bench import Bench
from .packages import missing_packages, version_of
from .results import Record

_PACKAGES = ("torch", "triton", "transformers", "numpy")
_QUERY = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu,memory.used,memory.total"


def describe(bench: Bench, record: Record) -> None:
    record.row(what="Python", value=f"{platform.python_version()}, {platform.machine()}")
    for package in _PACKAGES:
        record.row(what=package, value=version_of(package))
    record.row(what="dtype", value=str(bench.dtype).removeprefix("torch."))
    if bench.is_cuda:
        _describe_gpu(bench.device, record)
    else:
        record.row(what="device", value="none: Triton's interpreter on a CPU")
    if missing_packages():
        record.note(f"Not installed, and not called by any part: {', '.join(missing_packages())}.")


def _describe_gpu(device: torch.device, record: Record) -> None:
    properties = torch.cuda.get_device_properties(device)
    record.row(what="device", value=f"{properties.name}, {properties.multi_processor_count} multiprocessors")
    record.row(what="memory", value=f"{properties.total_memory / 2**30:.1f} GiB")
    record.row(what="compute capability", value=f"{properties.major}.{properties.minor}")
    record.row(what="CUDA", value=str(torch.version.cuda))
    if shutil.which("nvidia-smi") is None:
        record.note("There is no nvidia-smi, so clocks are not known.")
        return
    with record.guard("nvidia-smi"):
        command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
        for name, value in zip(_QUERY.split(","), answer.splitlines()[0].split(", "), strict=True):
            record.row(what=name, value=value)
