"""What tests of several rooms share: the bundled model, loaded once, and what happens where there is no compiler."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest
from hypothesis import settings

from ramet.kernels.cpu.compiler import find_compiler
from ramet.kernels.cpu.errors import CompilerNotFoundError
from ramet.kernels.cpu.library import declare

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Triton reads it when a kernel is decorated, so it must be set before any of them is imported.
os.environ.setdefault("TRITON_INTERPRET", "1")
settings.register_profile("untimed", deadline=None)  # a busy machine is no failure
settings.load_profile("untimed")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked `compiler` are skipped where there is none, but fail where one is required: in CI."""
    if item.get_closest_marker("compiler") is None:
        return
    try:
        find_compiler(os.environ.get("CXX") or None)
    except CompilerNotFoundError as error:
        if os.environ.get("RAMET_TESTS_REQUIRE_COMPILER") == "1":
            pytest.fail(f"{error}; or set RAMET_TESTS_REQUIRE_COMPILER=0")
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def cpu_library_of() -> Callable[[str | None], ctypes.CDLL]:
    """The C++ library, declared, for an instruction set (None: the best one here). Compiled at most once, and kept
    where the package keeps it. For tests marked `compiler`."""
    from ramet.kernels.cpu.loader import load_cpu_library
    from ramet.runtime.config import cache_dir, default_compiler

    @cache
    def load(isa: str | None) -> ctypes.CDLL:
        cdll = load_cpu_library(isa, cache_dir(), default_compiler(), print).cdll
        declare(cdll)
        return cdll

    return load


@pytest.fixture(scope="session")
def smollm2() -> Iterator[object]:
    """An LLM over the bundled model, which the development environment has: without it the tests fail, on purpose.

    Its cache may hold anything: reset it where a test counts tokens.
    """
    from ramet import LLM

    with LLM("smollm2", check_invariants=True) as llm:
        yield llm


@pytest.fixture
def products_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter multiplies tiles by np.matmul, and what some BLAS make of a row depends on its place in the
    tile. Here it does not, as on a GPU."""
    monkeypatch.setattr(np, "matmul", lambda a, b, dtype: np.einsum("ij,jk->ik", a, b, dtype=dtype))
