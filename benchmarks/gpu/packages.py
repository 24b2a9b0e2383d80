"""What is installed, and stand-ins for packages that ramet names when it is imported and that no part here calls.

A GPU machine may have torch, Triton and transformers and no way to get more. The engine reads GGUF files and compiles
grammars with libraries of their own, which random weights and free texts do not need.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ClassVar
from unittest.mock import MagicMock

NEEDED = ("torch", "triton", "transformers", "tokenizers", "safetensors", "numpy", "tqdm", "jinja2")
"""What the parts compute with, and what comes along with those."""

UNCALLED = ("gguf", "llguidance", "interegular", "outlines_core")


class StandInModule(ModuleType):
    """A module that has every name; what a name stands for does nothing."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}")


class _StandInLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StandInModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _StandInFinder(MetaPathFinder):
    """Finds packages of these names and everything below them."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.split(".", maxsplit=1)[0] not in self._names:
            return None
        return ModuleSpec(name, _StandInLoader(), is_package=True)


def missing_packages(names: Sequence[str] = UNCALLED) -> list[str]:
    """Those of these names that are not installed. Imports none of them."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def why_not_installed() -> str | None:
    """Which of NEEDED are missing or cannot be imported, and what to do; None if all are there. Imports torch."""
    missing = missing_packages(NEEDED)
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        return f"{', '.join(missing)} {verb} not installed: run pip install {' '.join(missing)}"
    try:
        importlib.import_module("torch")
    except (ImportError, OSError) as error:  # a library that its build needs is not there
        return f"torch {version_of('torch')} cannot be imported: {error}; install another build of it"
    return None


@contextmanager
def stand_ins() -> Iterator[None]:
    """Import ramet inside: what is missing is there meanwhile. Others, such as transformers, do not see it later."""
    missing = missing_packages()
    finder = _StandInFinder(missing)
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name, module in sys.modules.items() if isinstance(module, StandInModule)]:
            del sys.modules[name]


def version_of(package: str) -> str:
    """Its version, or "missing", or "of an unknown version" where it has none of that name, as builds of Triton."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing" if importlib.util.find_spec(package) is None else "of an unknown version"
