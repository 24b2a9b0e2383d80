"""Tests of the GPU runner, on a CPU under Triton's interpreter. Without Triton there is nothing to test."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The interpreter's operations are small: handing them to a second thread takes longer."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)
