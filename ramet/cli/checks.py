"""The checks of `ramet doctor`. Each looks at one thing and never raises: what it meets is a finding."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .check import Check, format_bytes
from .engine_options import open_backend
from .errors import cause_and_remedy, is_deliberate, one_line
from .gpu_checks import check_choice, check_gpu, check_options, check_triton, device_and_candidates, pool_on_gpu

MIN_PYTHON = (3, 11)
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)(?:\[.*?\])?\s*\(?(?P<versions>[^;)]*)\)?\s*(?P<marker>;.*)?")
_VERSION = re.compile(r"\s*(?P<order>>=|<)\s*(?P<version>[0-9.]+)\s*")
_DEBUG = "run again with --debug for the whole error"


def run_checks(args: argparse.Namespace) -> Iterator[Check]:
    """The findings, one by one as they are made. `args` holds the engine options and `quick`.

    Once there is a problem, no generation is tried: it would only meet the same one.
    """
    checks: list[tuple[str, Callable[[argparse.Namespace], Check], str]] = [
        ("python", check_python, "install Python 3.11 or newer"),
        ("packages", check_packages, "run pip install . in ramet's checkout"),
        ("device", check_device, ""),
        ("options", check_options, ""),
        ("gpu", check_gpu, ""),
        ("triton", check_triton, ""),
        ("choice", check_choice, ""),
        ("kernels", check_cpu_kernels, "correct or unset RAMET_CPU_ISA"),
        ("threads", check_threads, "unset RAMET_NUM_THREADS or set it to a positive integer"),
        ("cache dir", check_cache_dir, "set RAMET_CACHE_DIR to a directory you can write to"),
        ("model", check_model, ""),
        ("memory", check_memory, "unset RAMET_KV_CACHE_MEMORY or write it so"),
    ]
    if not args.quick:
        checks.append(("generation", check_generation, ""))
    has_problem = False
    for name, check, remedy in checks:
        if name == "generation" and has_problem:
            yield Check(name, "skipped", "not tried, because a check before it failed")
            continue
        try:
            finding = check(args)
        except Exception as error:
            if args.debug:
                raise
            finding = finding_of(name, error, remedy)
        has_problem = has_problem or finding.status == "problem"
        yield finding


def finding_of(name: str, error: Exception, remedy: str = "") -> Check:
    """The finding that an error is. What to do: `remedy`, or else what the error says itself."""
    if isinstance(error, ModuleNotFoundError):
        return Check(name, "problem", str(error), "do what is said of the packages")
    if not is_deliberate(error):
        return Check(name, "problem", f"{type(error).__name__}: {error}", remedy or _DEBUG)
    if remedy:
        return Check(name, "problem", one_line(error), remedy)
    return Check(name, "problem", *cause_and_remedy(error))


def check_python(args: argparse.Namespace) -> Check:
    version = platform.python_version()
    if sys.version_info < MIN_PYTHON:
        return Check("python", "problem", version, "install Python 3.11 or newer")
    return Check("python", "ok", f"{version} on {platform.system()} {platform.machine()}")


def check_packages(args: argparse.Namespace) -> Check:
    """Every package that ours requires is installed in a version it accepts."""
    found, wanted = [], []
    for requirement in importlib.metadata.requires("ramet") or []:
        match = _REQUIREMENT.fullmatch(requirement)
        if match is None or match["marker"]:
            continue
        name, versions = match["name"], match["versions"].replace(" ", "")
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            wanted.append(f"{name}{versions} (missing)")
            continue
        found.append(f"{name} {version}")
        if not _is_accepted(version, versions):
            wanted.append(f"{name}{versions} (found {version})")
    if wanted:
        names = " ".join(f'"{item.split(" ")[0]}"' for item in wanted)
        return Check("packages", "problem", "needs " + ", ".join(wanted), f"run pip install --upgrade {names}")
    return Check("packages", "ok", ", ".join(found))


def _is_accepted(version: str, versions: str) -> bool:
    """Whether a version is among "<2,>=1.9". Other orders than these two are taken to hold."""
    bounds = [match for match in map(_VERSION.fullmatch, versions.split(",")) if match is not None]
    found = _release(version)
    return all((found >= _release(one["version"])) == (one["order"] == ">=") for one in bounds)


def _release(version: str) -> tuple[int, ...]:
    numbers = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in numbers[0].split(".")) if numbers else (0,)


def check_device(args: argparse.Namespace) -> Check:
    import torch

    device, candidates = device_and_candidates(args)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return Check("device", "ok", f"{device} ({gpu}); kernels by preference: {', '.join(candidates)}")


def check_cpu_kernels(args: argparse.Namespace) -> Check:
    """The C++ library: which build, where it is from, what compiles it. With `quick` nothing is compiled."""
    from ..kernels.cpu.build import LibraryFile
    from ..kernels.cpu.errors import CpuLibraryError, UnsupportedIsaError
    from ..kernels.cpu.loader import LoadedLibrary, find_cpu_library, load_cpu_library
    from ..runtime.config import cache_dir, default_compiler, default_cpu_isa

    isa, compiler = default_cpu_isa(), default_compiler()
    library: LibraryFile | LoadedLibrary | None
    try:
        if args.quick:
            library = find_cpu_library(isa, cache_dir(), compiler)
        else:
            library = load_cpu_library(isa, cache_dir(), compiler, lambda text: print(text, file=sys.stderr))
    except UnsupportedIsaError:
        raise
    except CpuLibraryError as error:
        detail = f"no C++ library, so a CPU computes with {fallback_kernels()}, more slowly"
        return Check("kernels", "warning", detail, str(error))
    compiled_by = _describe_compiler(compiler)
    if library is None:
        return Check("kernels", "ok", f"to be compiled on first use; {compiled_by}")
    detail = f"{library.isa}, {library.origin}; {compiled_by}"
    if not library.has_openmp:
        remedy = f"install g++, which has OpenMP, and delete {library.path.parent}"
        return Check("kernels", "warning", f"{detail}; without OpenMP, so on one thread only", remedy)
    return Check("kernels", "ok", f"{detail}; OpenMP")


def fallback_kernels() -> str:
    """What a CPU computes with where the C++ library cannot be had."""
    from ..runtime.runner_factory import runner_candidates

    return next(name for name in runner_candidates(None, "cpu") if name != "cpu")


def _describe_compiler(name: str | None) -> str:
    from ..kernels.cpu.compiler import find_compiler
    from ..kernels.cpu.errors import CompilerNotFoundError

    try:
        return f"compiler {find_compiler(name)}"
    except CompilerNotFoundError:
        return "no C++ compiler"


def check_threads(args: argparse.Namespace) -> Check:
    from ..runtime.config import default_num_threads

    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    num_threads = args.threads or default_num_threads()
    detail = f"{num_threads} for {num_cores} cores"
    if num_threads > num_cores:
        return Check("threads", "warning", detail, f"more threads than cores slow each other down: use {num_cores}")
    return Check("threads", "ok", detail)


def check_cache_dir(args: argparse.Namespace) -> Check:
    from ..runtime.config import cache_dir

    directory = cache_dir()
    converted = list((directory / "tokenizers").glob("*.json"))
    num_bytes = sum(file.stat().st_size for file in converted)
    detail = f"{directory}: {len(converted)} converted tokenizers ({format_bytes(num_bytes)})"
    if not _can_write(directory):
        remedy = "set RAMET_CACHE_DIR to a directory you can write to; without one some models start slowly each time"
        return Check("cache dir", "warning", f"{directory} cannot be written to", remedy)
    return Check("cache dir", "ok", detail)


def _can_write(directory: Path) -> bool:
    """Whether the directory, or the nearest ancestor that exists, lets us write."""
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    return existing.is_dir() and os.access(existing, os.W_OK)


def check_model(args: argparse.Namespace) -> Check:
    from ..runtime.config import default_model
    from ..runtime.models.errors import ModelLoadError
    from ..runtime.weights.resolve import resolve_model, resolve_path

    name = args.model or default_model()
    try:
        path = resolve_path(name)
        resolve_model(path)
    except ModelLoadError as error:
        return Check("model", "problem", f"{name} cannot be opened", one_line(error))
    return Check("model", "ok", f"{name}: {path} ({format_bytes(_size_of(path))})")


def check_memory(args: argparse.Namespace) -> Check:
    """The cache at its largest fits in what is free now. Its pages are only taken as they are used."""
    from ..runtime.config import default_kv_cache_memory

    on_gpu = pool_on_gpu(args)
    if on_gpu is not None:
        return Check("memory", "ok", on_gpu)
    num_bytes = args.kv_cache_memory or default_kv_cache_memory()
    free = free_memory()
    if free is None:
        return Check("memory", "ok", f"cache up to {format_bytes(num_bytes)}; free memory is not known on this system")
    detail = f"{format_bytes(free)} free, cache up to {format_bytes(num_bytes)}"
    if num_bytes > free:
        return Check("memory", "warning", detail, f"set RAMET_KV_CACHE_MEMORY to less than {free // 2} (bytes)")
    return Check("memory", "ok", detail)


def check_generation(args: argparse.Namespace) -> Check:
    from ..sampling_params import SamplingParams

    start = time.monotonic()
    with open_backend(args) as backend:
        loaded = time.monotonic()
        output = backend.llm.generate("The sky is", SamplingParams(max_tokens=1, temperature=0.0))[0]
    if output.error is not None:
        raise output.error
    generate_s = time.monotonic() - loaded
    return Check(
        "generation", "ok", f"loaded in {loaded - start:.1f} s, {output.outputs[0].text!r} after {generate_s:.2f} s"
    )


def free_memory() -> int | None:
    """Bytes that can be taken without swapping; None where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return None
    return None


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.is_file() else sum(file.stat().st_size for file in path.glob("*.safetensors"))
