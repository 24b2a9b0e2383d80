"""The system's C++ compiler: finding it, asking what it can do, and running it over the sources.

Imports the standard library only: the wheel is built with it, where there is no torch.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .errors import BuildFailedError, CompilerNotFoundError
from .isa import Isa

COMPILER_NAMES = ("c++", "g++", "clang++")
BASE_FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-ffp-contract=off", "-fPIC")
"""Never -ffast-math: it reorders sums, and loading such a library changes how the whole process treats denormals."""
OPENMP_FLAG = "-fopenmp"

_TIMEOUT_S = 600
_NUM_ERROR_LINES = 20
_PROBE = 'extern "C" int ramet_probe() { return 1; }\n'
_OPENMP_PROBE = '#include <omp.h>\nextern "C" int ramet_probe() { return omp_get_max_threads(); }\n'


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler that answered.

    Attributes:
        command: the program and what always goes with it.
        identity: what it says of its version; a part of the key under which its output is cached.
    """

    command: tuple[str, ...]
    identity: str

    def __str__(self) -> str:
        return " ".join(self.command)


def find_compiler(name: str | None = None) -> Compiler:
    """The compiler called `name` (a program, a path, or a command with arguments), or the first the system has.

    Raises:
        CompilerNotFoundError: none is there, or the one named cannot be run.
    """
    if name is not None:
        try:
            found = _ask(shlex.split(name))
        except ValueError:  # a quotation without its end
            found = None
        if found is None:
            raise CompilerNotFoundError(f"the C++ compiler {name!r} cannot be run: correct or unset CXX")
        return found
    for candidate in COMPILER_NAMES:
        found = _ask([candidate])
        if found is not None:
            return found
    raise CompilerNotFoundError(
        f"no C++ compiler found ({', '.join(COMPILER_NAMES)}): install one, such as the package g++ (Linux) or the "
        "Xcode command line tools (macOS), or name one in CXX"
    )


def _ask(command: Sequence[str]) -> Compiler | None:
    """The compiler behind a command, if it answers. On macOS there may be a stub that only offers to install one."""
    program = shutil.which(command[0]) if command else None
    if program is None:
        return None
    full = (program, *command[1:])
    try:
        result = _run([*full, "--version"], timeout_s=60)
    except OSError:
        return None
    return Compiler(full, result.stdout.strip()) if result.returncode == 0 else None


def compile_library(compiler: Compiler, isa: Isa, source_dir: Path, output: Path) -> bool:
    """Compile every .cpp file of `source_dir` and link them into the shared library `output`, exporting `ramet_*`.

    Files are compiled in parallel, one process each. Writes `output` and nothing else. Takes seconds.

    Returns:
        Whether it was built with OpenMP; without, the kernels run on one thread.

    Raises:
        BuildFailedError: the compiler refused the instruction set or the sources.
    """
    sources = sorted(source_dir.glob("*.cpp"))
    if not sources:
        raise BuildFailedError(f"there are no C++ sources in {source_dir}: install ramet again")
    with tempfile.TemporaryDirectory(prefix="build-", dir=output.parent) as scratch:
        directory = Path(scratch)
        has_openmp = _probe(compiler, isa, directory)
        flags = [*BASE_FLAGS, *isa.compile_flags, *([OPENMP_FLAG] if has_openmp else [])]
        objects = [directory / f"{source.stem}.o" for source in sources]
        commands = [
            [*compiler.command, *flags, "-c", str(source), "-o", str(object_file)]
            for source, object_file in zip(sources, objects, strict=True)
        ]
        with ThreadPoolExecutor(max_workers=min(len(commands), os.cpu_count() or 1)) as pool:
            list(pool.map(_check, commands))
        linked = directory / output.name
        _check([*compiler.command, *flags, "-shared", *_export_flags(directory), *map(str, objects), "-o", str(linked)])
        linked.replace(output)
    return has_openmp


def _probe(compiler: Compiler, isa: Isa, directory: Path) -> bool:
    """Whether OpenMP works with the flags of the build.

    Raises:
        BuildFailedError: the flags are refused even without it.
    """
    plain, with_openmp = directory / "probe.cpp", directory / "probe_openmp.cpp"
    plain.write_text(_PROBE, encoding="ascii")
    with_openmp.write_text(_OPENMP_PROBE, encoding="ascii")
    flags = [*compiler.command, *BASE_FLAGS, *isa.compile_flags, "-shared", "-o", str(directory / "probe.so")]
    if _run([*flags, OPENMP_FLAG, str(with_openmp)]).returncode == 0:
        return True
    _check([*flags, str(plain)])
    return False


def _export_flags(directory: Path) -> list[str]:
    """Keep everything but the C interface inside: builds for several instruction sets can share a process."""
    if sys.platform == "darwin":
        return ["-Wl,-exported_symbol,_ramet_*"]
    script = directory / "exports.map"
    script.write_text("{ global: ramet_*; local: *; };\n", encoding="ascii")
    return [f"-Wl,--version-script={script}"]


def _check(command: list[str]) -> None:
    result = _run(command)
    if result.returncode != 0:
        lines = (result.stderr.strip() or result.stdout.strip() or "no output").splitlines()[-_NUM_ERROR_LINES:]
        raise BuildFailedError(
            "\n".join([f"the C++ compiler failed ({result.returncode}): {shlex.join(command)}", *lines])
        )


def _run(command: list[str], timeout_s: int = _TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"gave no result in {timeout_s} s")
