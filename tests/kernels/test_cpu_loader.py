"""Loading the C++ library: the best build that can be had, and a clear error where none can. Needs a real compiler,
except where marked otherwise; the sources are a few lines of the test's own."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from ramet.kernels.cpu.build import BuildPlan, build_library, find_cached, recipe_hash
from ramet.kernels.cpu.compiler import find_compiler
from ramet.kernels.cpu.errors import (
    BuildFailedError,
    CompilerNotFoundError,
    CpuLibraryError,
    LoadFailedError,
    UnsupportedIsaError,
)
from ramet.kernels.cpu.isa import ISAS, supported_isas
from ramet.kernels.cpu.loader import LoadedLibrary, load_cpu_library

SOURCE = """
#ifdef _OPENMP
#include <omp.h>
#endif
template <class T> T& shared_by_all() { static T value = 0; return value; }
int not_exported() { return ++shared_by_all<int>(); }
extern "C" int ramet_count() { return not_exported(); }
extern "C" int ramet_level() {
#if defined(__AMX_INT8__)
    return 3;
#elif defined(__AVX512VNNI__)
    return 2;
#elif defined(__AVX2__) || defined(__ARM_FEATURE_DOTPROD)
    return 1;
#else
    return 0;
#endif
}
extern "C" int ramet_team_size(int wanted) {
    int size = 0;
#pragma omp parallel num_threads(wanted) reduction(+ : size)
    size += 1;
    return size;
}
"""
LEVELS = {"amx": 3, "avx512": 2, "avx2": 1, "neon": 1, "portable": 0}


@pytest.fixture(scope="module")
def source_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("src")
    (directory / "level.cpp").write_text(SOURCE, encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def load(isa: str | None, cache_dir: Path, source_dir: Path, compiler: str | None = None) -> LoadedLibrary:
    return load_cpu_library(
        isa, cache_dir, compiler, lambda text: None, source_dir=source_dir, prebuilt_dir=cache_dir / "lib"
    )


@pytest.mark.compiler
@pytest.mark.parametrize("isa", supported_isas())
def test_every_build_this_machine_runs(isa: str, cache_dir: Path, source_dir: Path) -> None:
    library = load(isa, cache_dir, source_dir)
    assert (library.isa, library.cdll.ramet_level()) == (isa, LEVELS[isa])
    again = load(isa, cache_dir, source_dir)
    assert (again.path, again.origin) == (library.path, "cached")


@pytest.mark.compiler
def test_the_best_build_is_taken(cache_dir: Path, source_dir: Path) -> None:
    assert load(None, cache_dir, source_dir).isa == supported_isas()[0]


@pytest.mark.compiler
def test_builds_share_a_process_and_nothing_else(cache_dir: Path, source_dir: Path, tmp_path: Path) -> None:
    """Else the static variables of one, or a helper compiled for a better processor, would serve the other."""
    first = load("portable", cache_dir, source_dir)
    second = load(supported_isas()[0], cache_dir, source_dir)
    copy = tmp_path / "copy"
    shutil.copytree(source_dir, copy)
    (copy / "level.cpp").write_text(SOURCE + "// another text\n", encoding="utf-8")
    third = load("portable", cache_dir, copy)
    start = first.cdll.ramet_count()
    others = [second.cdll.ramet_count(), third.cdll.ramet_count()]
    assert first.cdll.ramet_count() == start + 1
    assert others[1] == 1
    assert not hasattr(first.cdll, "_Z12not_exportedv")


@pytest.mark.compiler
@pytest.mark.skipif(sys.platform != "linux", reason="reads the process's memory map")
def test_one_openmp_serves_torch_and_the_library(cache_dir: Path, source_dir: Path) -> None:
    library = load(None, cache_dir, source_dir)
    if library.has_openmp:
        assert library.cdll.ramet_team_size(2) == 2
    torch.ones(1 << 16).sum()
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    files = {line.split()[-1] for line in maps.splitlines() if "libgomp" in line or "libomp" in line}
    assert len(files) == 1, files


@pytest.mark.compiler
@pytest.mark.skipif(len(supported_isas()) < 2, reason="this processor runs one build only")
def test_a_compiler_too_old_for_the_best_build_gives_the_next(
    tmp_path: Path, source_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    best, second = supported_isas()[:2]
    (flag, *_) = set(ISAS[best].compile_flags) - set(ISAS[second].compile_flags)
    old = tmp_path / "old-c++"
    refuse = f'case " $* " in *" {flag} "*) echo "unknown option {flag}" >&2; exit 1;; esac'
    old.write_text(f'#!/bin/sh\n{refuse}\nexec {find_compiler()} "$@"\n', encoding="utf-8")
    old.chmod(0o755)
    with caplog.at_level(logging.WARNING):
        library = load(None, tmp_path / "cache", source_dir, str(old))
    assert library.isa == second
    assert f"unknown option {flag}" in caplog.text
    with pytest.raises(BuildFailedError, match="unknown option"):
        load(best, tmp_path / "cache", source_dir, str(old))


def place(directory: Path, isa: str, source_dir: Path, content: bytes) -> Path:
    """A file with a stamp that fits, whatever is in it."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"libramet_{isa}.so"
    path.write_bytes(content)
    stamp = {"recipe": recipe_hash(ISAS[isa], source_dir), "has_openmp": True, "sha256": sha256(content).hexdigest()}
    path.with_suffix(".json").write_text(json.dumps(stamp), encoding="utf-8")
    return path


@pytest.mark.compiler
def test_a_library_that_this_system_does_not_load_is_compiled_here(tmp_path: Path, source_dir: Path) -> None:
    """As one from a wheel that was built on a newer system, or from a home directory shared with one."""
    place(tmp_path / "lib", "portable", source_dir, b"not for this system")
    assert load("portable", tmp_path, source_dir).origin == "compiled"

    elsewhere = tmp_path / "elsewhere"
    plan = BuildPlan(elsewhere, None, source_dir, elsewhere / "lib")
    built = build_library("portable", plan, lambda text: None)
    place(built.path.parent, "portable", source_dir, b"nor is this")
    assert find_cached("portable", plan) is not None
    assert load("portable", elsewhere, source_dir).origin == "compiled"
    assert load("portable", elsewhere, source_dir).origin == "cached"


@pytest.mark.compiler
def test_a_mistake_in_the_sources_is_shown(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "bad.cpp").write_text("int mistake = no_such_name;\n", encoding="utf-8")
    with pytest.raises(BuildFailedError, match="no_such_name"):
        load(None, tmp_path, tmp_path / "src")


def test_without_a_compiler_the_reason_is_given(
    tmp_path: Path, source_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(CompilerNotFoundError, match=r"no C\+\+ compiler found"):
        load(None, tmp_path, source_dir)
    place(tmp_path / "lib", "portable", source_dir, b"does not load")
    with pytest.raises(LoadFailedError, match=r"cannot be loaded .*libramet_portable.so.*no C\+\+ compiler found"):
        load("portable", tmp_path, source_dir)


def test_a_forced_build_is_not_replaced_by_another(tmp_path: Path, source_dir: Path) -> None:
    with pytest.raises(UnsupportedIsaError, match="sse9"):
        load("sse9", tmp_path, source_dir)
    foreign = next(name for name in ISAS if name not in supported_isas())
    with pytest.raises(UnsupportedIsaError, match=f"RAMET_CPU_ISA='{foreign}' does not run on this processor"):
        load(foreign, tmp_path, source_dir)


def test_all_errors_have_one_base() -> None:
    for error in (BuildFailedError, CompilerNotFoundError, LoadFailedError, UnsupportedIsaError):
        assert issubclass(error, CpuLibraryError)
