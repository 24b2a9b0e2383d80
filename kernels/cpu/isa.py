"""Which builds of the C++ library there are, and which of them this machine can run.

A build is one compilation of the same sources for one instruction set. The table names the compiler's flags and what
the processor must have for the result to run; nothing is compiled with -march=native, so a library can be shipped.
Flag names are those of /proc/cpuinfo on Linux; macOS' names are translated to them.
"""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from .errors import UnsupportedIsaError

_X86 = "x86_64"
_ARM = "aarch64"
_AVX512_FLAGS = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma", "-mf16c")
_AVX512_NEEDS = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "fma", "f16c"})
_AMX_FLAGS = ("-mamx-tile", "-mamx-int8", "-mamx-bf16", "-mavx512bf16")
_AMX_NEEDS = frozenset({"amx_tile", "amx_int8", "amx_bf16", "avx512_bf16"})

_ARCH_GET_XCOMP_SUPP = 0x1021
_SYS_ARCH_PRCTL = 158
_XFEATURE_XTILEDATA = 18


@dataclass(frozen=True, slots=True)
class Isa:
    """One build.

    Attributes:
        name: what a user says, and a part of the library's file name.
        machine: the processor family, as `machine_family` names it; None runs on any.
        compile_flags: what the compiler is given for it.
        cpu_flags: what the processor must have.
    """

    name: str
    machine: str | None
    compile_flags: tuple[str, ...]
    cpu_flags: frozenset[str]


ISAS: dict[str, Isa] = {
    isa.name: isa
    for isa in (
        Isa("amx", _X86, (*_AVX512_FLAGS, *_AMX_FLAGS), _AVX512_NEEDS | _AMX_NEEDS),
        Isa("avx512", _X86, _AVX512_FLAGS, _AVX512_NEEDS),
        Isa("avx2", _X86, ("-mavx2", "-mfma", "-mf16c"), frozenset({"avx2", "fma", "f16c"})),
        Isa("neon", _ARM, ("-march=armv8.2-a+dotprod+fp16",), frozenset({"asimddp", "asimdhp"})),
        Isa("portable", None, ("-O2",), frozenset()),  # -O3 takes GCC minutes over vectors it must take apart
    )
}
"""Fastest first among those of one machine."""


def isas_of_machine(machine: str) -> tuple[Isa, ...]:
    """The builds for a processor family, best first; what a wheel for it holds."""
    return tuple(isa for isa in ISAS.values() if isa.machine in (None, machine))


def supported_isas(machine: str | None = None, cpu_flags: Collection[str] | None = None) -> tuple[str, ...]:
    """Names of the builds that run on this machine (or on the one described), best first. Never empty."""
    if machine is None:
        machine = machine_family()
    if cpu_flags is None:
        cpu_flags = read_cpu_flags()
    return tuple(isa.name for isa in isas_of_machine(machine) if isa.cpu_flags <= frozenset(cpu_flags))


def check_isa(name: str, supported: Collection[str] | None = None) -> Isa:
    """The build called `name`, which must run here.

    Raises:
        UnsupportedIsaError: no such build, or the processor lacks what it needs.
    """
    if name not in list(ISAS):
        raise UnsupportedIsaError(f"RAMET_CPU_ISA={name!r} is unknown; choose one of {', '.join(ISAS)}")
    if supported is None:
        supported = supported_isas()
    if name not in supported:
        raise UnsupportedIsaError(
            f"RAMET_CPU_ISA={name!r} does not run on this processor; choose one of {', '.join(supported)} or none"
        )
    return ISAS[name]


def machine_family() -> str:
    """The processor family: "x86_64", "aarch64", or whatever the system calls another one."""
    name = platform.machine().lower()
    return {"amd64": _X86, "x64": _X86, "arm64": _ARM}.get(name, name)


def read_cpu_flags() -> frozenset[str]:
    """What the processor has and the system lets programs use; empty where the system does not say."""
    if sys.platform == "linux":
        return _linux_flags()
    if sys.platform == "darwin":
        return _macos_flags()
    return frozenset()


def _linux_flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    flags = flags_in_cpuinfo(text)
    amx = {flag for flag in flags if flag.startswith("amx")}
    return flags if not amx or _system_grants_amx() else flags - amx


def flags_in_cpuinfo(text: str) -> frozenset[str]:
    """The flags that every processor in the text of a /proc/cpuinfo has."""
    per_processor = [
        frozenset(value.split())
        for key, _, value in (line.partition(":") for line in text.splitlines())
        if key.strip() in ("flags", "Features")
    ]
    return frozenset.intersection(*per_processor) if per_processor else frozenset()


def _system_grants_amx() -> bool:
    """Tile registers are used by permission of the kernel; old kernels and sandboxes do not give it. Asks, changes
    nothing: the library itself requests the permission when it is first used."""
    features = ctypes.c_uint64(0)
    try:
        syscall = ctypes.CDLL(None).syscall
    except (OSError, AttributeError):
        return False
    result = syscall(ctypes.c_long(_SYS_ARCH_PRCTL), ctypes.c_long(_ARCH_GET_XCOMP_SUPP), ctypes.byref(features))
    return result == 0 and bool(features.value >> _XFEATURE_XTILEDATA & 1)


_MACOS_KEYS = {
    "hw.optional.avx2_0": "avx2",
    "hw.optional.fma": "fma",
    "hw.optional.f16c": "f16c",
    "hw.optional.avx512f": "avx512f",
    "hw.optional.avx512bw": "avx512bw",
    "hw.optional.avx512vl": "avx512vl",
    "hw.optional.avx512dq": "avx512dq",
    "hw.optional.avx512vnni": "avx512_vnni",
    "hw.optional.arm.FEAT_DotProd": "asimddp",
    "hw.optional.arm.FEAT_FP16": "asimdhp",
}


def _macos_flags() -> frozenset[str]:
    try:
        result = subprocess.run(
            ["/usr/sbin/sysctl", *_MACOS_KEYS], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    return flags_in_sysctl(result.stdout)


def flags_in_sysctl(text: str) -> frozenset[str]:
    """The flags in the output of sysctl: it prints `key: 1` for what there is and leaves out keys it does not know."""
    lines = (line.partition(":") for line in text.splitlines())
    return frozenset(_MACOS_KEYS[key] for key, _, value in lines if key in _MACOS_KEYS and value.strip() == "1")
