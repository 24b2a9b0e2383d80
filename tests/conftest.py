"""What tests of several rooms share: the bundled model, loaded once."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def smollm2() -> Iterator[object]:
    """An LLM over the bundled model, which the development environment has: without it the tests fail, on purpose.

    Its cache may hold anything: reset it where a test counts tokens.
    """
    from ramet import LLM

    with LLM("smollm2", check_invariants=True) as llm:
        yield llm
