"""Which runner computes a model: an explicit table of names, and the order in which they are tried.

A name is what a user gives as `LLM(kernels=...)`. Each entry of RUNNERS loads the weights of a checkpoint in the form
its kernels want and returns a runner over its own KV cache. Where no name is given, those of PREFERRED for the device
are tried in order; one that cannot be had here says so with RunnerUnavailableError, and the next one is taken.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ..kernels.dispatch import KERNELS, check_device, select_kernels
from .config import EngineConfig, default_kv_cache_memory
from .errors import InvalidConfigError, RametError
from .kv_cache import KVCache
from .models.base import ModelConfig
from .models.parameters import ProgressCallback
from .runner import ModelRunner, Runner
from .weights.base import Checkpoint
from .weights.load import load_model

logger = logging.getLogger(__name__)


class RunnerUnavailableError(RametError, RuntimeError):
    """This runner cannot be had on this machine or for this model. The message says why and what would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSpec:
    """What a runner is built from.

    Attributes:
        checkpoint: the model on disk, opened; its weights are not read yet.
        config: the engine's options; the runner reads max_model_len, block_size and the size of the KV cache.
        device: "auto" or a torch device, as the user gave it.
        num_threads: CPU threads of the kernels.
        on_progress: called with (tensors done, tensors in all) while weights are read.
    """

    checkpoint: Checkpoint
    config: EngineConfig
    device: str
    num_threads: int
    on_progress: ProgressCallback | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRunner:
    """A runner with its weights, and what the engine must know of them.

    Attributes:
        kernels_name: its key in RUNNERS.
        max_model_len: most tokens of one sequence.
    """

    runner: Runner
    kernels_name: str
    model_config: ModelConfig
    max_model_len: int


def _kernels_runner(kernels_name: str, spec: RunnerSpec) -> LoadedRunner:
    """A ModelRunner over a backend of `kernels/dispatch.py`."""
    kernels = select_kernels(spec.device, kernels_name)
    model = load_model(spec.checkpoint, kernels, max_model_len=spec.config.max_model_len, on_progress=spec.on_progress)
    num_blocks = kv_cache_blocks(spec.config, model.config)
    try:
        runner = ModelRunner(model, kernels, num_blocks, spec.config.block_size)
    except (OSError, OverflowError, MemoryError) as error:
        raise kv_cache_too_large(num_blocks) from error
    return LoadedRunner(
        runner=runner, kernels_name=kernels_name, model_config=model.config, max_model_len=model.max_model_len
    )


@dataclass(frozen=True, slots=True)
class RunnerKind:
    """An entry of RUNNERS: how the runner is built, and the device types it runs on.

    `load` raises RunnerUnavailableError where the runner cannot be had.
    """

    load: Callable[[RunnerSpec], LoadedRunner]
    device_types: tuple[str, ...]


def _over_kernels(kernels_name: str) -> RunnerKind:
    return RunnerKind(partial(_kernels_runner, kernels_name), KERNELS[kernels_name].device_types)


RUNNERS: dict[str, RunnerKind] = {
    "torch": _over_kernels("torch"),
    "reference": _over_kernels("reference"),
}
PREFERRED: dict[str, tuple[str, ...]] = {
    "cpu": ("torch",),
    "cuda": ("torch",),
}
"""By device type, the fastest first."""


def runner_candidates(kernels_name: str | None, device: str) -> tuple[str, ...]:
    """The names to try in order: the one given, or those preferred on the device.

    Raises:
        InvalidConfigError: no such name, no such device, or the one does not run on the other.
    """
    if kernels_name is not None and kernels_name not in list(RUNNERS):
        raise InvalidConfigError(
            f"kernels={kernels_name!r} is unknown; choose one of {', '.join(sorted(RUNNERS))}, or None for the fastest"
        )
    try:
        if kernels_name is None:
            return PREFERRED[check_device(device).type]
        check_device(device, RUNNERS[kernels_name].device_types)
    except ValueError as error:
        named = "" if kernels_name is None else f"kernels={kernels_name!r}: "
        raise InvalidConfigError(f"{named}{error}") from error
    return (kernels_name,)


def build_runner(candidates: Sequence[str], spec: RunnerSpec) -> LoadedRunner:
    """Load the first of the candidates that can be had here; the ones passed over are logged as warnings.

    Raises:
        ModelLoadError: the weights are missing, damaged or of an unknown architecture.
        InvalidConfigError: the KV cache does not fit, or the runner does not go with the device.
        RunnerUnavailableError: none can be had; the message is that of the last one.
    """
    *first, last = candidates
    for kernels_name in first:
        try:
            return RUNNERS[kernels_name].load(spec)
        except RunnerUnavailableError as reason:
            logger.warning("kernels %r are not available: %s", kernels_name, reason)
    return RUNNERS[last].load(spec)


def kv_cache_blocks(config: EngineConfig, model_config: ModelConfig) -> int:
    """Blocks in the pool: `num_blocks`, or as many as the budget of bytes holds.

    Raises:
        InvalidConfigError: the budget holds none.
    """
    if config.num_blocks is not None:
        return config.num_blocks
    budget = config.kv_cache_memory or default_kv_cache_memory()
    return KVCache.num_blocks_in(budget, model_config, config.block_size)


def kv_cache_too_large(num_blocks: int) -> InvalidConfigError:
    """The error for a KV cache that the system refuses to reserve."""
    return InvalidConfigError(
        f"a KV cache of {num_blocks} blocks does not fit in memory: lower num_blocks or kv_cache_memory"
    )
