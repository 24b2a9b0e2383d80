"""What tests of several rooms share: the bundled model, loaded once, and what happens where there is no compiler."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ramet.kernels.cpu.compiler import find_compiler
from ramet.kernels.cpu.errors import CompilerNotFoundError

os.environ.setdefault("HF_HUB_OFFLINE", "1")


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
def smollm2() -> Iterator[object]:
    """An LLM over the bundled model, which the development environment has: without it the tests fail, on purpose.

    Its cache may hold anything: reset it where a test counts tokens.
    """
    from ramet import LLM

    with LLM("smollm2", check_invariants=True) as llm:
        yield llm
