"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

INSTRUCTION_SETS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "asimd", "asimddp", "i8mm")


def available_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe_machine() -> str:
    """One line: processor, cores, caches, memory, instruction sets that matter here, system."""
    info = _cpu_info()
    name = info.get("model name", platform.processor() or platform.machine())
    if "model" in info:
        name += f" (family {info.get('cpu family', '?')}, model {info['model']})"
    parts = [name, f"{available_cores()} cores", *_caches(), f"{_memory_gib():.0f} GiB"]
    found = [flag for flag in INSTRUCTION_SETS if flag in info.get("flags", info.get("Features", "")).split()]
    return ", ".join([*parts, *([" ".join(found)] if found else []), platform.system()])


def _cpu_info() -> dict[str, str]:
    """The first processor's entries of /proc/cpuinfo; nothing elsewhere."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    block = path.read_text(encoding="utf-8").split("\n\n")[0]
    return {key.strip(): value.strip() for key, value in re.findall(r"^([^:\n]+):(.*)$", block, re.MULTILINE)}


def _caches() -> list[str]:
    caches = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, size = ((index / name).read_text(encoding="ascii").strip() for name in ("level", "size"))
        if level in ("2", "3"):
            caches.append(f"L{level} {size}")
    return caches


def _memory_gib() -> float:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (AttributeError, OSError, ValueError):  # not a POSIX system
        return float("nan")
