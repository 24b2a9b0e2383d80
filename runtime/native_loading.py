"""Builds the NativeRunner of a checkpoint: the C++ library, the packed weights, the KV cache."""

from __future__ import annotations

import hashlib
import logging

import torch

from ..kernels.cpu.errors import CpuLibraryError, UnsupportedIsaError
from ..kernels.cpu.library import declare
from ..kernels.cpu.loader import LoadedLibrary, load_cpu_library
from ..kernels.cpu.memory import MemoryArena
from ..kernels.cpu.sampling import SamplingKernels
from .config import cache_dir, default_compiler, default_cpu_isa
from .errors import InvalidConfigError
from .kernel_options import why_options_unsupported
from .models.context_len import resolve_max_model_len
from .models.errors import ModelLoadError
from .native_model import NativeModel, unsupported_reason
from .native_runner import NativeRunner
from .runner_spec import LoadedRunner, RunnerSpec, RunnerUnavailableError, kv_cache_blocks, kv_cache_too_large
from .sampler_native import NativeSampler
from .weights.load import model_config

logger = logging.getLogger(__name__)


def load_native_runner(spec: RunnerSpec) -> LoadedRunner:
    """A NativeRunner over the checkpoint.

    Raises:
        RunnerUnavailableError: no library can be had, or it does not compute this model or these options.
        ModelLoadError: the weights are missing, damaged or too large for the memory.
        InvalidConfigError: the KV cache does not fit in memory, or RAMET_CPU_ISA is wrong.
    """
    config = model_config(spec.checkpoint)
    reason = unsupported_reason(config)
    if reason is not None:
        raise RunnerUnavailableError(f"the C++ kernels do not take this model: {reason}")
    reason = why_options_unsupported("cpu", spec.config)
    if reason is not None:
        raise RunnerUnavailableError(reason)
    library = _load_library()
    cdll = library.cdll
    num_threads = spec.num_threads if library.has_openmp else 1
    max_model_len = resolve_max_model_len(config, spec.config.max_model_len)
    try:
        model = NativeModel(
            cdll, MemoryArena(cdll), spec.checkpoint, config, max_model_len, num_threads, spec.on_progress
        )
    except MemoryError as error:
        raise ModelLoadError(f"{spec.checkpoint.path}: the weights do not fit in memory") from error
    num_blocks = kv_cache_blocks(spec.config, config, torch.bfloat16)
    try:
        runner = NativeRunner(cdll, model, num_blocks, num_threads)
    except (MemoryError, OverflowError) as error:
        raise kv_cache_too_large(num_blocks) from error
    return LoadedRunner(
        runner=runner,
        kernels_name="cpu",
        model_config=config,
        max_model_len=max_model_len,
        sampler=NativeSampler(SamplingKernels(cdll, num_threads)),
        blocks=runner,
        numerics={"library": f"{library.isa} {hashlib.sha256(library.path.read_bytes()).hexdigest()}"},
    )


def _load_library() -> LoadedLibrary:
    try:
        library = load_cpu_library(default_cpu_isa(), cache_dir(), default_compiler(), logger.warning)
        declare(library.cdll)
    except UnsupportedIsaError as error:
        raise InvalidConfigError(str(error)) from error
    except CpuLibraryError as error:
        raise RunnerUnavailableError(str(error)) from error
    return library
