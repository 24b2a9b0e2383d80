"""The C++ sampler for tests: compiled from its own sources alone, for each instruction set when first asked for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache

import pytest

from ramet.kernels.cpu.build import SOURCE_DIR
from ramet.kernels.cpu.loader import load_cpu_library
from ramet.kernels.cpu.sampling import SamplingKernels

KernelsFor = Callable[[str | None, int], SamplingKernels]


@pytest.fixture(scope="session")
def sampling_kernels(tmp_path_factory: pytest.TempPathFactory) -> KernelsFor:
    """Kernels for (instruction set, number of threads); None is the best instruction set of this machine."""
    source_dir = tmp_path_factory.mktemp("sampling_src")
    for source in SOURCE_DIR.glob("sampling*"):
        shutil.copy(source, source_dir)
    cache_dir = tmp_path_factory.mktemp("sampling_cache")

    @cache
    def library(isa: str | None):
        return load_cpu_library(
            isa, cache_dir, None, lambda text: None, source_dir=source_dir, prebuilt_dir=cache_dir / "prebuilt"
        )

    return lambda isa, num_threads: SamplingKernels(library(isa).cdll, num_threads)
