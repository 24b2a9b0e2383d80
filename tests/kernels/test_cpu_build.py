"""The C++ library on disk: when it is compiled, when it is reused, and whose files are trusted.

A stand-in for the compiler writes a file where it is told to, so that nothing here needs a real one.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ramet.kernels.cpu import cache
from ramet.kernels.cpu.build import (
    BuildPlan,
    LibraryFile,
    build_library,
    find_cached,
    find_or_build,
    find_prebuilt,
    recipe_hash,
    write_library,
)
from ramet.kernels.cpu.cache import forget_oldest, private_directory
from ramet.kernels.cpu.compiler import find_compiler
from ramet.kernels.cpu.errors import BuildFailedError, CacheUnusableError, CompilerNotFoundError
from ramet.kernels.cpu.isa import ISAS

FAKE_COMPILER = """#!/bin/sh
# Logs its arguments; "compiles" by writing them to the file after -o.
if [ "$1" = --version ]; then echo "fake {version}"; exit 0; fi
echo "$@" >> "{log}"
for last; do :; done
{extra}
while [ $# -gt 1 ]; do
  if [ "$1" = -o ]; then echo "made by fake {version}" > "$2"; fi
  shift
done
"""


class Workshop:
    """Sources, a cache, and a compiler to fake."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "log"
        self.announced: list[str] = []
        self.sources = root / "src"
        self.sources.mkdir()
        (self.sources / "one.cpp").write_text("int one;\n", encoding="utf-8")
        (self.sources / "two.cpp").write_text('#include "two.h"\n', encoding="utf-8")
        (self.sources / "two.h").write_text("int two;\n", encoding="utf-8")
        self.set_compiler()

    def set_compiler(self, version: str = "1.0", extra: str = "") -> None:
        path = self.root / "fakec++"
        path.write_text(FAKE_COMPILER.format(version=version, log=self.log, extra=extra), encoding="utf-8")
        path.chmod(0o755)

    def plan(self, compiler: str | None = "fakec++") -> BuildPlan:
        named = str(self.root / compiler) if compiler else None
        return BuildPlan(self.root / "cache", named, self.sources, self.root / "lib")

    def build(self, isa: str = "avx2") -> LibraryFile:
        return find_or_build(isa, self.plan(), self.announced.append)

    def num_compiled(self) -> int:
        """How often a library was linked."""
        text = self.log.read_text(encoding="utf-8") if self.log.exists() else ""
        return sum("libramet_" in line for line in text.splitlines())


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def test_it_is_compiled_once_and_says_so(shop: Workshop) -> None:
    first, second = shop.build(), shop.build()
    assert (first.origin, second.origin) == ("compiled", "cached")
    assert first.path == second.path
    assert first.path.name == "libramet_avx2.so"
    assert first.path.is_relative_to(shop.root / "cache" / "kernels")
    assert first.has_openmp
    assert second.has_openmp
    assert shop.num_compiled() == 1
    assert len(shop.announced) == 1
    assert "Compiling the CPU kernels for avx2" in shop.announced[0]
    assert {path.name for path in first.path.parent.iterdir()} == {"libramet_avx2.so", "libramet_avx2.json"}


def test_every_source_is_compiled_with_the_flags_of_the_build(shop: Workshop) -> None:
    shop.build("avx512")
    lines = shop.log.read_text(encoding="utf-8").splitlines()
    compiled = [line for line in lines if " -c " in line]
    assert sorted(line.split(" -c ")[1].split("/")[-1].split(".")[0] for line in compiled) == ["one", "two"]
    for line in [*compiled, next(line for line in lines if "libramet_" in line)]:
        assert {"-O3", "-ffp-contract=off", "-fopenmp", "-mavx512vnni"} <= set(line.split())
        assert "-ffast-math" not in line
        assert "native" not in line


def test_each_instruction_set_has_its_own_library(shop: Workshop) -> None:
    assert len({shop.build(isa).path for isa in ISAS}) == len(ISAS)
    assert shop.num_compiled() == len(ISAS)


@pytest.mark.parametrize("name", ["one.cpp", "two.h", "three.cpp"])
def test_a_changed_or_new_source_is_compiled_anew(shop: Workshop, name: str) -> None:
    before = shop.build()
    (shop.sources / name).write_text("int changed;\n", encoding="utf-8")
    after = shop.build()
    assert after.origin == "compiled"
    assert after.path != before.path


def test_text_that_moves_between_files_changes_the_recipe(shop: Workshop) -> None:
    before = recipe_hash(ISAS["avx2"], shop.sources)
    (shop.sources / "two.h").rename(shop.sources / "zwei.h")
    assert recipe_hash(ISAS["avx2"], shop.sources) != before


def test_another_compiler_version_compiles_anew(shop: Workshop) -> None:
    before = shop.build()
    shop.set_compiler("2.0")
    assert shop.build().path != before.path
    shop.set_compiler("1.0")
    assert shop.build() == LibraryFile(before.path, "avx2", "cached", True)


def test_what_was_compiled_outlives_the_compiler(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shop.build().path
    monkeypatch.setenv("PATH", str(shop.root / "empty"))
    found = find_or_build("avx2", shop.plan(compiler=None), shop.announced.append)
    assert (found.path, found.origin) == (path, "cached")
    with pytest.raises(CompilerNotFoundError):
        find_or_build("portable", shop.plan(compiler=None), shop.announced.append)


def test_without_a_compiler_the_error_says_what_to_install(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(shop.root / "empty"))
    with pytest.raises(CompilerNotFoundError, match=r"no C\+\+ compiler found .*install .*g\+\+"):
        find_compiler()
    for name in ("no-such-compiler", "", str(shop.root)):
        with pytest.raises(CompilerNotFoundError, match=f"'{name}' cannot be run: correct or unset CXX"):
            find_compiler(name)


def test_a_compiler_with_an_open_quotation_cannot_be_run() -> None:
    with pytest.raises(CompilerNotFoundError, match="cannot be run: correct or unset CXX"):
        find_compiler('"')


def test_a_library_in_a_cache_that_cannot_be_written_to_is_used(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = shop.build()

    def refuse(path: Path) -> Path:
        raise CacheUnusableError(f"{path} cannot be written to (Read-only file system)")

    monkeypatch.setattr(cache, "private_directory", refuse)
    found = find_cached("avx2", shop.plan())
    assert found is not None
    assert found.path == built.path


def test_a_compiler_may_be_a_command_with_arguments(shop: Workshop) -> None:
    compiler = find_compiler(f"/usr/bin/env {shop.root / 'fakec++'}")
    assert compiler.command == ("/usr/bin/env", str(shop.root / "fakec++"))
    assert compiler.identity == "fake 1.0"


@pytest.mark.parametrize(
    "damage",
    [
        lambda library: library.write_bytes(b""),
        lambda library: library.write_bytes(library.read_bytes()[:-1]),
        lambda library: library.unlink(),
        lambda library: library.with_suffix(".json").unlink(),
        lambda library: library.with_suffix(".json").write_text("{", encoding="utf-8"),
        lambda library: library.with_suffix(".json").write_text("[]", encoding="utf-8"),
        lambda library: library.with_suffix(".json").write_bytes(b"\xff"),
        lambda library: library.chmod(0o777),
    ],
    ids=["empty", "cut", "gone", "no stamp", "half a stamp", "no object", "no text", "others may write"],
)
def test_a_damaged_library_is_compiled_anew(shop: Workshop, damage: Callable[[Path], object]) -> None:
    path = shop.build().path
    damage(path)
    assert shop.build() == LibraryFile(path, "avx2", "compiled", True)
    assert shop.build().origin == "cached"


def test_a_failing_compiler_leaves_its_last_lines_and_no_library(shop: Workshop) -> None:
    shop.set_compiler(extra='case "$*" in *two.cpp*) seq 100 >&2; echo "two.cpp:1: error: so it is" >&2; exit 1;; esac')
    with pytest.raises(BuildFailedError, match=r"two\.cpp:1: error: so it is$") as failure:
        shop.build()
    assert "fakec++" in str(failure.value)
    assert str(failure.value).count("\n") < 25
    assert find_cached("avx2", shop.plan()) is None
    (entry,) = (path for path in (shop.root / "cache" / "kernels").iterdir() if path.is_dir())
    assert list(entry.iterdir()) == []


def test_a_compiler_that_does_not_know_the_instruction_set(shop: Workshop) -> None:
    refusal = 'case "$*" in *-mamx-tile*) echo "unrecognized option -mamx-tile" >&2; exit 1;; esac'
    shop.set_compiler(extra=refusal)
    with pytest.raises(BuildFailedError, match="unrecognized option -mamx-tile"):
        shop.build("amx")
    assert shop.build("avx512").origin == "compiled"


def test_without_openmp_it_is_compiled_for_one_thread(shop: Workshop) -> None:
    shop.set_compiler(extra='case "$*" in *-fopenmp*) echo "no OpenMP" >&2; exit 1;; esac')
    assert not shop.build().has_openmp
    cached = shop.build()
    assert (cached.origin, cached.has_openmp) == ("cached", False)


def test_a_source_edited_during_the_build_is_compiled_again(shop: Workshop) -> None:
    edit = f'case "$*" in *libramet_*) [ -e {shop.root}/once ] || echo "int late;" >> {shop.sources}/one.cpp;; esac'
    shop.set_compiler(extra=f'{edit}\ncase "$*" in *libramet_*) touch {shop.root}/once;; esac')
    path = shop.build().path
    assert shop.num_compiled() == 2
    stamp = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    assert stamp["recipe"] == recipe_hash(ISAS["avx2"], shop.sources)
    shop.set_compiler(extra=f'case "$*" in *libramet_*) echo "int more;" >> {shop.sources}/one.cpp;; esac')
    with pytest.raises(BuildFailedError, match="change while they are compiled"):
        shop.build()


def test_no_sources(shop: Workshop) -> None:
    for path in shop.sources.iterdir():
        path.unlink()
    with pytest.raises(BuildFailedError, match="no C\\+\\+ sources in"):
        shop.build()


def test_the_library_of_the_package_comes_first_if_it_fits(shop: Workshop) -> None:
    shop.build()
    shipped = shop.root / "lib"
    shipped.mkdir()
    written = write_library(find_compiler(str(shop.root / "fakec++")), ISAS["avx2"], shop.sources, shipped)
    without_compiler = shop.plan(compiler="none")
    found = find_or_build("avx2", without_compiler, shop.announced.append)
    assert found == LibraryFile(written.path, "avx2", "prebuilt", True)
    (shop.sources / "one.cpp").write_text("int newer;\n", encoding="utf-8")
    assert find_prebuilt("avx2", without_compiler) is None
    assert shop.build().origin == "compiled"


def test_the_stamp_says_what_the_library_was_made_from(shop: Workshop) -> None:
    stamp = json.loads(shop.build().path.with_suffix(".json").read_text(encoding="utf-8"))
    assert stamp["compiler"] == "fake 1.0"
    assert stamp["recipe"] == recipe_hash(ISAS["avx2"], shop.sources)


def test_a_forced_build_replaces_what_is_there(shop: Workshop) -> None:
    path = shop.build().path
    assert build_library("avx2", shop.plan(), shop.announced.append).origin == "cached"
    forced = build_library("avx2", shop.plan(), shop.announced.append, is_forced=True)
    assert (forced.path, forced.origin) == (path, "compiled")


CONTENDER = """
import sys
from pathlib import Path
from ramet.kernels.cpu.build import BuildPlan, find_or_build
root = Path(sys.argv[1])
print(find_or_build("avx2", BuildPlan(root / "cache", str(root / "fakec++"), root / "src", root / "lib"), print).origin)
assert "torch" not in sys.modules
"""


def test_of_processes_that_start_together_one_compiles(shop: Workshop) -> None:
    shop.set_compiler(extra='case "$*" in *libramet_*) sleep 0.5;; esac')
    contenders = [
        subprocess.Popen([sys.executable, "-c", CONTENDER, str(shop.root)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    outputs = [contender.communicate(timeout=60)[0].splitlines() for contender in contenders]
    assert [contender.returncode for contender in contenders] == [0, 0, 0]
    assert sorted(lines[-1] for lines in outputs) == ["cached", "cached", "compiled"]
    assert shop.num_compiled() == 1


def test_the_cache_is_private(shop: Workshop) -> None:
    path = shop.build().path
    for directory in (path.parent, path.parent.parent):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_directory_that_others_may_write_to_is_closed_to_them(tmp_path: Path) -> None:
    open_directory = tmp_path / "open"
    open_directory.mkdir()
    open_directory.chmod(0o777)
    assert private_directory(open_directory) == open_directory
    assert stat.S_IMODE(open_directory.stat().st_mode) == 0o700


def test_directories_that_cannot_be_trusted_or_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for path, reason in [
        (tmp_path / "file", "cannot be written to"),
        (tmp_path / "file" / "below", "cannot be written to"),
        (tmp_path / "link", "is not a directory"),
    ]:
        with pytest.raises(CacheUnusableError, match=reason):
            private_directory(path)
    monkeypatch.setattr(cache, "_user_id", lambda: os.geteuid() + 1)
    with pytest.raises(CacheUnusableError, match="belongs to another user"):
        private_directory(tmp_path / "target")


def test_without_a_usable_cache_it_goes_to_a_temporary_directory(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (shop.root / "cache").write_bytes(b"a file where the directory should be")
    temporary = shop.root / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with caplog.at_level(logging.WARNING):
        first, second = shop.build(), shop.build()
    assert (first.origin, second.origin) == ("compiled", "cached")
    assert first.path.is_relative_to(temporary)
    assert stat.S_IMODE((temporary / f"ramet-{os.geteuid()}").stat().st_mode) == 0o700
    assert "RAMET_CACHE_DIR" in caplog.text
    (temporary / f"ramet-{os.geteuid()}").rename(temporary / "elsewhere")
    (temporary / f"ramet-{os.geteuid()}").symlink_to(temporary / "elsewhere")
    with pytest.raises(CacheUnusableError, match="cannot be kept anywhere"):
        shop.build()


def test_the_oldest_entries_are_forgotten(tmp_path: Path) -> None:
    for age in range(5):
        (tmp_path / str(age)).mkdir()
        os.utime(tmp_path / str(age), (1000 - age, 1000 - age))
    (tmp_path / "lock").write_bytes(b"")
    forget_oldest(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "lock"]
