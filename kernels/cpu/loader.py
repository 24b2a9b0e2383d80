"""Loading the C++ library into the process: the best build that this machine runs and that can be had."""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch  # noqa: F401  before our library, which then uses torch's OpenMP and its threads

from .build import (
    PREBUILT_DIR,
    SOURCE_DIR,
    Announce,
    BuildPlan,
    LibraryFile,
    Origin,
    build_library,
    find_cached,
    find_prebuilt,
)
from .compiler import find_compiler
from .errors import BuildFailedError, CompilerNotFoundError, CpuLibraryError, LoadFailedError
from .isa import check_isa, supported_isas

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedLibrary:
    """A library in the process.

    Attributes:
        cdll: its functions. Calls release the GIL.
        isa: the instruction set it was built for.
        path: its file.
        origin: whether it came with the package, was compiled earlier, or was compiled now.
        has_openmp: whether its kernels can use more than one thread.
    """

    cdll: ctypes.CDLL
    isa: str
    path: Path
    origin: Origin
    has_openmp: bool


def load_cpu_library(
    isa: str | None,
    cache_dir: Path,
    compiler: str | None,
    announce: Announce,
    *,
    source_dir: Path = SOURCE_DIR,
    prebuilt_dir: Path = PREBUILT_DIR,
) -> LoadedLibrary:
    """Load the build for `isa`, or the best one: from the package, from the cache, or compiled now.

    Args:
        isa: a name of ISAS; None takes the first of `supported_isas` that can be had.
        cache_dir: the user's cache directory; may turn out not to be writable.
        compiler: a C++ compiler; None looks for one.
        announce: told what takes so long.
        source_dir, prebuilt_dir: the package's own, unless told otherwise.

    Raises:
        UnsupportedIsaError: `isa` is unknown or does not run here.
        CompilerNotFoundError: nothing is there and nothing can be compiled.
        BuildFailedError, CacheUnusableError, LoadFailedError: compiling, keeping or loading it failed.
    """
    if sys.platform == "win32":
        raise CpuLibraryError("the C++ kernels are not built on Windows: use WSL for full speed")
    plan = BuildPlan(cache_dir, compiler, source_dir, prebuilt_dir)
    names = supported_isas() if isa is None else (check_isa(isa).name,)
    failures: list[CpuLibraryError] = []
    for name in names:
        try:
            library = _load_isa(name, plan, announce)
        except CpuLibraryError as error:
            failures.append(error)
            continue
        for failure in failures:
            if isinstance(failure, BuildFailedError):
                logger.warning("the CPU kernels are those for %s, because of better ones %s", name, failure)
        return library
    raise failures[0]


def find_cpu_library(isa: str | None, cache_dir: Path, compiler: str | None) -> LibraryFile | None:
    """What `load_cpu_library` would load; None if it would compile first.

    Raises:
        UnsupportedIsaError: `isa` is unknown or does not run here.
        CompilerNotFoundError: nothing is there and nothing can be compiled.
        CacheUnusableError: no directory can be used.
    """
    plan = BuildPlan(cache_dir, compiler)
    for name in supported_isas() if isa is None else (check_isa(isa).name,):
        found = find_prebuilt(name, plan) or find_cached(name, plan)
        if found is not None:
            return found
        with suppress(CompilerNotFoundError):
            find_compiler(compiler)
            return None
    find_compiler(compiler)
    return None


def _load_isa(isa: str, plan: BuildPlan, announce: Announce) -> LoadedLibrary:
    """The first that the system loads. One compiled elsewhere may want a newer C library than this system has.

    Raises:
        CpuLibraryError: none loads.
    """
    refusal = ""
    try:
        for file in _candidates(isa, plan, announce):
            try:
                return _load(file)
            except OSError as error:
                refusal = f"{file.path}: {error}"
    except CompilerNotFoundError as error:
        if refusal:
            raise LoadFailedError(f"the CPU kernels cannot be loaded ({refusal}), and {error}") from error
        raise
    raise LoadFailedError(f"the CPU kernels for {isa} cannot be loaded: {refusal}")


def _candidates(isa: str, plan: BuildPlan, announce: Announce) -> Iterator[LibraryFile]:
    """Each is asked for only if those before it did not load."""
    prebuilt = find_prebuilt(isa, plan)
    if prebuilt is not None:
        yield prebuilt
    cached = find_cached(isa, plan)
    if cached is not None:
        yield cached
    built = build_library(isa, plan, announce, is_forced=cached is not None)
    if not built.has_openmp:
        logger.warning("the C++ compiler has no OpenMP: the CPU kernels run on one thread. g++ has it")
    yield built


def _load(file: LibraryFile) -> LoadedLibrary:
    """Raises OSError."""
    cdll = ctypes.CDLL(str(file.path))
    return LoadedLibrary(cdll, file.isa, file.path, file.origin, file.has_openmp)
