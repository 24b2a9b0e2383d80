"""The wheel holds the whole house, and what it holds works away from the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
ROOMS = ("frontend", "kernels", "radix", "runtime")
JUNK = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*_cache")


def packages_in_tree() -> dict[str, str]:
    """Package name to folder, for every folder that holds modules."""
    packages = {"ramet": "ramet", "ramet.cli": "ramet/cli"}
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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that neither leftovers of other builds get in nor ours stay behind."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    for name in ("ramet", *ROOMS):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=JUNK)
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(source)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    (built,) = target.glob("*.whl")
    return built


def test_the_wheel_holds_every_module_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    metadata = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    assert names - metadata == modules_in_tree() | {"ramet/py.typed"}
    assert any(name.endswith("/licenses/LICENSE") for name in metadata)
    assert "ramet/kernels/__init__.py" not in names


def test_the_wheel_names_the_command_and_the_requirements(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = [name for name in archive.namelist() if ".dist-info/" in name]
        texts = {name.split("/")[-1]: archive.read(name).decode() for name in metadata}
    assert "ramet = ramet.cli.main:main" in texts["entry_points.txt"]
    lines = texts["METADATA"].splitlines()
    for requirement in PYPROJECT["project"]["dependencies"]:
        assert f"Requires-Dist: {requirement}" in lines
    assert f"Version: {PYPROJECT['project']['version']}" in lines


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*command, str(wheel)], capture_output=True, timeout=120, check=True)
    return target


def run_installed(installed: Path, code: str, cwd: Path) -> str:
    """Run code with the installed copy ahead of everything else, away from the checkout; its output."""
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(installed)},
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
    code = f"""
import importlib, importlib.util, sys
for name in {names!r}:
    importlib.import_module(name)
files = [module.__file__ for name, module in sys.modules.items() if name.startswith("ramet") and module.__file__]
assert all(file.startswith({str(installed)!r}) for file in files), files
for room in {ROOMS!r}:
    assert importlib.util.find_spec(room) is None, f"{{room}} is importable at the top level"
print(len(files))
"""
    assert int(run_installed(installed, code, tmp_path)) >= len(names) - 4


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = """
import sys, ramet
from ramet import function, gen, select, system, user, assistant, SamplingParams
heavy = {"torch", "transformers", "numpy", "tokenizers", "gguf", "safetensors"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
