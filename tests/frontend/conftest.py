"""The bundled model with an empty cache, and a backend on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ramet import LLM, LocalBackend


@pytest.fixture
def llm(smollm2: LLM) -> LLM:
    smollm2.reset_prefix_cache()
    return smollm2


@pytest.fixture
def backend(llm: LLM) -> Iterator[LocalBackend]:
    with LocalBackend(llm) as backend:
        yield backend
