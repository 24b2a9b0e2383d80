"""The wheel holds the whole house, and what it holds works away from the checkout."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from ramet.kernels.cpu.compiler import find_compiler
from ramet.kernels.cpu.errors import CompilerNotFoundError
from ramet.kernels.cpu.isa import isas_of_machine, machine_family, supported_isas

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
ROOMS = ("frontend", "kernels", "radix", "runtime")
PAGE = {
    f"ramet/runtime/server/web/{path.name}"
    for path in (ROOT / "runtime/server/web").iterdir()
    if path.suffix in (".html", ".css", ".js", ".svg")
}
OTHER_FILES = PAGE | {
    "ramet/py.typed",
    "ramet/frontend/trace/page.css",
    "ramet/frontend/trace/page.js",
    "ramet/kernels/aot_budgets.json",
    "ramet/runtime/server/grpc/ramet.proto",
    "ramet/runtime/server/grpc/ramet_pb2.pyi",
}
JUNK = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*_cache")


def packages_in_tree() -> dict[str, str]:
    """Package name to folder, for every folder that holds modules."""
    packages = {"ramet": "ramet", **{f"ramet.{name}": f"ramet/{name}" for name in ("cli", "eval", "figures")}}
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            folder = path.parent.relative_to(ROOT)
            packages["ramet." + ".".join(folder.parts)] = folder.as_posix()
    return packages


def modules_in_tree() -> set[str]:
    """The path in the wheel of every module."""
    return {
        "/".join([*package.split("."), path.name])
        for package, folder in packages_in_tree().items()
        for path in (ROOT / folder).glob("*.py")
    }


def test_the_packages_listed_are_those_in_the_tree() -> None:
    setuptools = PYPROJECT["tool"]["setuptools"]
    assert sorted(setuptools["packages"]) == sorted(packages_in_tree())
    assert setuptools["package-dir"] == packages_in_tree()


def test_the_links_inside_the_package_lead_to_the_rooms() -> None:
    for room in ROOMS:
        link = ROOT / "ramet" / room
        assert link.is_symlink()
        assert os.readlink(link) == f"../{room}"


def compiled_isas() -> list[str]:
    """What is compiled into the wheel of these tests: one build, which takes a quarter of the time of all."""
    try:
        find_compiler(os.environ.get("CXX") or None)
    except CompilerNotFoundError:
        return []
    return [supported_isas()[0]]


def kernels_in_wheel(isas: Iterable[str]) -> set[str]:
    """The path in the wheel of the C++ sources and of what was compiled from them."""
    sources = {path.name for pattern in ("*.cpp", "*.h") for path in (ROOT / "kernels" / "cpu" / "src").glob(pattern)}
    libraries = {f"libramet_{isa}.{ending}" for isa in isas for ending in ("so", "json")}
    return {f"ramet/kernels/cpu/src/{name}" for name in sources} | {
        f"ramet/kernels/cpu/lib/{name}" for name in libraries
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, so that neither leftovers of other builds get in nor ours stay behind."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    for name in ("ramet", *ROOMS):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=JUNK)
    return copy


def build_package(source: Path, target: Path, kind: str, **environment: str) -> tuple[Path, str]:
    """The file that was built, and what the build printed."""
    command = [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", str(target), str(source)]
    result = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=280, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (built,) = target.iterdir()
    return built, result.stdout + result.stderr


def names_in_wheel(wheel: Path) -> tuple[set[str], set[str]]:
    """Names of the package's files, and of the metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    metadata = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    return names - metadata, metadata


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    isas = ",".join(compiled_isas()) or "none"
    return build_package(source, tmp_path_factory.mktemp("wheel"), "wheel", RAMET_WHEEL_ISAS=isas)[0]


def test_the_wheel_holds_every_module_and_nothing_else(wheel: Path) -> None:
    names, metadata = names_in_wheel(wheel)
    assert names == modules_in_tree() | OTHER_FILES | kernels_in_wheel(compiled_isas())
    assert any(name.endswith("/licenses/LICENSE") for name in metadata)
    assert "ramet/kernels/__init__.py" not in names


@pytest.mark.compiler
def test_a_wheel_with_compiled_kernels_is_for_this_platform_and_any_python(wheel: Path) -> None:
    assert wheel.name.split("-")[2:4] == ["py3", "none"]
    assert not wheel.name.endswith("-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/WHEEL"))
        assert "Root-Is-Purelib: false" in archive.read(name).decode()


def test_without_a_compiler_the_wheel_has_the_sources_and_says_so(wheel: Path, source: Path, tmp_path: Path) -> None:
    """Built after `wheel` in the same place, whose libraries must not get in."""
    pure, printed = build_package(source, tmp_path, "wheel", CXX="no-such-compiler")
    assert pure.name.endswith("-py3-none-any.whl")
    assert names_in_wheel(pure)[0] == modules_in_tree() | OTHER_FILES | kernels_in_wheel([])
    assert "WARNING: this wheel has no compiled CPU kernels" in printed


@pytest.mark.slow
@pytest.mark.compiler
def test_a_wheel_holds_a_build_for_every_processor_of_the_family(source: Path, tmp_path: Path) -> None:
    full, printed = build_package(source, tmp_path, "wheel")
    assert "WARNING" not in printed
    names = names_in_wheel(full)[0]
    assert kernels_in_wheel(isa.name for isa in isas_of_machine(machine_family())) <= names


def test_the_source_distribution_holds_all_that_a_wheel_is_made_from(source: Path, tmp_path: Path) -> None:
    built, _ = build_package(source, tmp_path, "sdist")
    with tarfile.open(built) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    modules = {
        f"{folder}/{path.name}" for folder in packages_in_tree().values() for path in (ROOT / folder).glob("*.py")
    }
    sources = {name.removeprefix("ramet/") for name in kernels_in_wheel([])}
    data_files = {name if name == "ramet/py.typed" else name.removeprefix("ramet/") for name in OTHER_FILES}
    assert modules | sources | data_files | {"setup.py", "pyproject.toml"} <= names
    assert not any("kernels/cpu/lib/" in name for name in names)


def test_the_wheel_names_the_command_and_the_requirements(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = [name for name in archive.namelist() if ".dist-info/" in name]
        texts = {name.split("/")[-1]: archive.read(name).decode() for name in metadata}
    assert "ramet = ramet.cli.entry:main" in texts["entry_points.txt"]
    lines = texts["METADATA"].splitlines()
    named = {Requirement(line.removeprefix("Requires-Dist: ")) for line in lines if line.startswith("Requires-Dist: ")}
    assert named >= {Requirement(requirement) for requirement in PYPROJECT["project"]["dependencies"]}
    assert f"Version: {PYPROJECT['project']['version']}" in lines


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*command, str(wheel)], capture_output=True, timeout=120, check=True)
    return target


def run_installed(installed: Path, code: str, cwd: Path, **environment: str) -> str:
    """Run code with the installed copy ahead of everything else, away from the checkout; its output."""
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(installed), **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_program_runs_from_the_installed_wheel(installed: Path, tmp_path: Path) -> None:
    code = """
import pathlib, ramet
from ramet import MockBackend, function, gen
@function
def ask(s, question):
    s += question + gen("answer")
print(pathlib.Path(ramet.__file__).parent.parent)
print(ask.run("Is it?", backend=MockBackend("yes"))["answer"])
"""
    assert run_installed(installed, code, tmp_path).splitlines() == [str(installed), "yes"]


def test_every_module_of_the_wheel_can_be_imported(installed: Path, tmp_path: Path) -> None:
    names = sorted(path.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for path in modules_in_tree())
    if importlib.util.find_spec("triton") is None:  # there is none for macOS and Windows
        names = [name for name in names if not name.startswith(("ramet.kernels.triton.", "ramet.kernels.aot_variants"))]
    code = f"""
import importlib, importlib.util, sys
for name in {names!r}:
    importlib.import_module(name)
files = [module.__file__ for name, module in sys.modules.items() if name.startswith("ramet") and module.__file__]
assert all(file.startswith({str(installed)!r}) for file in files), files
for room in {ROOMS!r}:
    found = importlib.util.find_spec(room)  # an editable install of the checkout has it, as a folder on the path
    places = [] if found is None else list(found.submodule_search_locations)
    assert not any(place.startswith({str(installed)!r}) for place in places), f"{{room}} is at the top level"
print(len(files))
"""
    assert int(run_installed(installed, code, tmp_path)) >= len(names) - 4


def test_the_installed_wheel_finds_the_files_of_the_page(installed: Path, tmp_path: Path) -> None:
    code = "from ramet.runtime.server.web.files import web_files; print(*web_files())"
    found = run_installed(installed, code, tmp_path).split()
    assert {f"ramet/runtime/server/web/{name}" for name in found} == PAGE


@pytest.mark.compiler
def test_the_kernels_of_the_wheel_need_no_compiler(installed: Path, tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from ramet.kernels.cpu.loader import load_cpu_library
library = load_cpu_library(None, Path({str(tmp_path)!r}) / "cache", None, print)
print(library.isa, library.origin, library.path.is_relative_to({str(installed)!r}))
"""
    printed = run_installed(installed, code, tmp_path, PATH=str(tmp_path))
    assert printed.split() == [*compiled_isas(), "prebuilt", "True"]
    assert not (tmp_path / "cache").exists()


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = """
import sys, ramet
from ramet import function, gen, select, system, user, assistant, SamplingParams
heavy = {"torch", "triton", "transformers", "numpy", "tokenizers", "gguf", "safetensors"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
