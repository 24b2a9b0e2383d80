"""Compiles the CPU kernels into a wheel. Everything else about the package is in pyproject.toml.

A wheel holds one library per instruction set of the machine it is built on and is tagged for its platform; any Python
takes it, because the libraries know nothing of Python. Where there is no C++ compiler, and for instruction sets that
the compiler does not know, the wheel has the sources only and they are compiled on first use. An editable install
compiles nothing here.

The environment may say CXX, the compiler, and RAMET_WHEEL_ISAS, the instruction sets separated by commas: "avx2", or
"none" for a wheel of sources only.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

CPU_KERNELS = Path(__file__).parent / "kernels" / "cpu"
LIBRARY_DIR = Path("ramet", "kernels", "cpu", "lib")


def import_from_sources(name: str) -> types.ModuleType:
    """A module of kernels/cpu, under a package made for the purpose: the real ones around it need torch."""
    package = types.ModuleType("ramet_cpu_kernels")
    package.__path__ = [str(CPU_KERNELS)]
    sys.modules.setdefault(package.__name__, package)
    return importlib.import_module(f"{package.__name__}.{name}")


def compile_kernels(target: Path) -> list[str]:
    """Compile the builds that the machine's family has into `target`; the names of those that could be."""
    wanted = os.environ.get("RAMET_WHEEL_ISAS", "all").split(",")
    if wanted == ["none"]:
        return []
    build, compiler, errors, isa = map(import_from_sources, ("build", "compiler", "errors", "isa"))
    try:
        found = compiler.find_compiler(os.environ.get("CXX") or None)
    except errors.CompilerNotFoundError as error:
        warn(f"this wheel has no compiled CPU kernels: {error}")
        return []
    target.mkdir(parents=True, exist_ok=True)
    compiled = []
    for candidate in isa.isas_of_machine(isa.machine_family()):
        if wanted != ["all"] and candidate.name not in wanted:
            continue
        try:
            build.write_library(found, candidate, build.SOURCE_DIR, target)
            compiled.append(candidate.name)
        except errors.BuildFailedError as error:
            warn(f"this wheel has no CPU kernels for {candidate.name}: {error}")
    return compiled


def warn(text: str) -> None:
    print(f"WARNING: {text}", file=sys.stderr, flush=True)


class BuildPy(build_py):
    """Copies the modules, then compiles. `compiled` names what it built."""

    compiled: tuple[str, ...] = ()

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / LIBRARY_DIR
            for leftover in target.glob("*"):
                leftover.unlink()
            self.compiled = tuple(compile_kernels(target))


class BdistWheel(bdist_wheel):
    """Tags the wheel for this platform, and for every Python, if anything was compiled into it."""

    def get_tag(self) -> tuple[str, str, str]:
        if not self.get_finalized_command("build_py").compiled:
            return super().get_tag()
        self.root_is_pure = False
        return ("py3", "none", super().get_tag()[2])


setup(cmdclass={"build_py": BuildPy, "bdist_wheel": BdistWheel})
