"""One shared library per instruction set: shipped in the wheel, kept in the user's cache, or compiled now.

Beside each library lies a stamp, a JSON file that says what it was made from and what its bytes are. A library is used
only if its stamp fits the sources and flags at hand (so an upgrade never meets an old library) and its own bytes (so
an interrupted write or a damaged disk leads to a new build, not to a crash). In the cache:

    <cache_dir>/kernels/                       0700, of this user
        lock                                   one builder at a time
        <sources + flags + compiler>/          one entry per combination, the latest 16 are kept
            libramet_avx512.so
            libramet_avx512.json

Imports the standard library only: the wheel is built with it, where there is no torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .cache import forget_oldest, is_own_file, library_cache, one_builder, readable_caches
from .compiler import BASE_FLAGS, Compiler, compile_library, find_compiler
from .errors import BuildFailedError, CompilerNotFoundError
from .isa import ISAS, Isa

Announce = Callable[[str], None]
Origin = Literal["prebuilt", "cached", "compiled"]

SOURCE_DIR = Path(__file__).parent / "src"
PREBUILT_DIR = Path(__file__).parent / "lib"

_STAMP_FORMAT = 1
_NUM_CACHED = 16
_NUM_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class LibraryFile:
    """A library on disk that fits the sources.

    Attributes:
        path: the shared library.
        isa: the instruction set it was built for.
        origin: whether it came with the package, was compiled earlier, or was compiled now.
        has_openmp: whether its kernels can use more than one thread.
    """

    path: Path
    isa: str
    origin: Origin
    has_openmp: bool


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """Where the sources, the libraries of the package and those of the user are.

    Attributes:
        cache_dir: the user's cache directory; libraries go to its folder `kernels`.
        compiler: the name of a C++ compiler; None looks for one.
        source_dir: the C++ sources.
        prebuilt_dir: libraries that came with the package; need not exist.
    """

    cache_dir: Path
    compiler: str | None = None
    source_dir: Path = SOURCE_DIR
    prebuilt_dir: Path = PREBUILT_DIR


def recipe_hash(isa: Isa, source_dir: Path = SOURCE_DIR) -> str:
    """A digest of all that a build is made from, but for the compiler: names and texts of the sources, and flags."""
    digest = hashlib.sha256()
    for source in sorted(path for path in source_dir.glob("*") if path.suffix in (".cpp", ".h")):
        text = source.read_bytes()
        digest.update(f"{source.name} {len(text)}\n".encode())
        digest.update(text)
    digest.update(json.dumps([_STAMP_FORMAT, isa.name, *BASE_FLAGS, *isa.compile_flags]).encode())
    return digest.hexdigest()


def find_prebuilt(isa: str, plan: BuildPlan) -> LibraryFile | None:
    """The library that came with the package, if there is one that fits the sources."""
    recipe = recipe_hash(ISAS[isa], plan.source_dir)
    return _read_library(plan.prebuilt_dir, ISAS[isa], recipe, "prebuilt")


def find_cached(isa: str, plan: BuildPlan) -> LibraryFile | None:
    """A library compiled earlier: by the compiler at hand or, where there is none any more, by any."""
    recipe = recipe_hash(ISAS[isa], plan.source_dir)
    for directory in readable_caches(plan.cache_dir):
        try:
            entries = [_entry(directory, recipe, find_compiler(plan.compiler))]
        except CompilerNotFoundError:
            entries = sorted(path.parent for path in directory.glob(f"*/{_library_name(isa)}"))
        for entry in entries:
            library = _read_library(entry, ISAS[isa], recipe, "cached")
            if library is not None and is_own_file(library.path):
                return library
    return None


def build_library(isa: str, plan: BuildPlan, announce: Announce, *, is_forced: bool = False) -> LibraryFile:
    """Compile the sources into the cache, unless another process has just done so.

    Args:
        announce: told what takes so long.
        is_forced: compile even if there is a library that seems right.

    Raises:
        CompilerNotFoundError: there is no compiler.
        BuildFailedError: the compiler refused, or the result could not be written.
        CacheUnusableError: no directory can be used.
    """
    compiler = find_compiler(plan.compiler)
    directory = library_cache(plan.cache_dir)
    try:
        with one_builder(directory, lambda: announce("Waiting for another process that compiles the CPU kernels...")):
            found = None if is_forced else find_cached(isa, plan)
            if found is not None:
                return found
            announce(f"Compiling the CPU kernels for {isa} with {compiler} (once; 10 to 60 seconds)...")
            entry = _entry(directory, recipe_hash(ISAS[isa], plan.source_dir), compiler)
            entry.mkdir(mode=0o700, exist_ok=True)
            library = write_library(compiler, ISAS[isa], plan.source_dir, entry)
            forget_oldest(directory, _NUM_CACHED)
            return library
    except OSError as error:
        raise BuildFailedError(f"the CPU kernels could not be written to {directory}: {error}") from error


def find_or_build(isa: str, plan: BuildPlan, announce: Announce) -> LibraryFile:
    """The library of the package, or the cached one, or a new one.

    Raises:
        CpuLibraryError: see `build_library`.
    """
    return find_prebuilt(isa, plan) or find_cached(isa, plan) or build_library(isa, plan, announce)


def write_library(compiler: Compiler, isa: Isa, source_dir: Path, directory: Path) -> LibraryFile:
    """Compile into `directory`: the library, then its stamp; each appears whole or not at all.

    Raises:
        BuildFailedError: the compiler refused.
        OSError: the directory cannot be written to.
    """
    path = directory / _library_name(isa.name)
    recipe, has_openmp = _compile_unchanged(compiler, isa, source_dir, path)
    path.chmod(0o755)
    stamp = {
        "recipe": recipe,
        "compiler": compiler.identity.partition("\n")[0],
        "has_openmp": has_openmp,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    _write_text(_stamp_path(path), json.dumps(stamp, indent=1) + "\n")
    return LibraryFile(path, isa.name, "compiled", has_openmp)


def _compile_unchanged(compiler: Compiler, isa: Isa, source_dir: Path, path: Path) -> tuple[str, bool]:
    """Compile again if a source was edited meanwhile, or its digest would name another text. Digest, and OpenMP."""
    for _ in range(_NUM_ATTEMPTS):
        recipe = recipe_hash(isa, source_dir)
        has_openmp = compile_library(compiler, isa, source_dir, path)
        if recipe_hash(isa, source_dir) == recipe:
            return recipe, has_openmp
    raise BuildFailedError(f"the C++ sources in {source_dir} change while they are compiled: try again")


def _read_library(directory: Path, isa: Isa, recipe: str, origin: Origin) -> LibraryFile | None:
    path = directory / _library_name(isa.name)
    try:
        stamp = json.loads(_stamp_path(path).read_text(encoding="utf-8"))
        fits = isinstance(stamp, dict) and stamp.get("recipe") == recipe
        is_whole = fits and stamp.get("sha256") == hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError):
        return None
    return LibraryFile(path, isa.name, origin, bool(stamp.get("has_openmp"))) if is_whole else None


def _entry(directory: Path, recipe: str, compiler: Compiler) -> Path:
    key = json.dumps([recipe, *compiler.command, compiler.identity])
    return directory / hashlib.sha256(key.encode()).hexdigest()[:32]


def _library_name(isa: str) -> str:
    return f"libramet_{isa}.so"


def _stamp_path(library: Path) -> Path:
    return library.with_suffix(".json")


def _write_text(path: Path, text: str) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    Path(name).chmod(0o644)
    Path(name).replace(path)
