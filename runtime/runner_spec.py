"""What every runner is built from, and what comes of it: shared by the entries of `runner_factory.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from .config import EngineConfig, default_kv_cache_memory
from .errors import InvalidConfigError, RametError
from .kv_cache import KVCache
from .models.base import ModelConfig
from .models.parameters import ProgressCallback
from .parallel.group import ALONE, Group
from .runner import BlockStorage, Runner
from .sampler import Sampler
from .weights.base import Checkpoint


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
        group: the ranks that compute the model together; this runner is that of one of them.
    """

    checkpoint: Checkpoint
    config: EngineConfig
    device: str
    num_threads: int
    on_progress: ProgressCallback | None = None
    group: Group = ALONE


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRunner:
    """A runner with its weights, and what the engine must know of them.

    Attributes:
        kernels_name: its key in RUNNERS.
        max_model_len: most tokens of one sequence.
        sampler: what goes best with the runner; None leaves the choice to the engine.
        blocks: moves blocks out of its pool and back; None where no single process could.
        numerics: what the bits of its results depend on beside the model, the options and the Python code: compiled
            libraries, devices, versions.
        close: ends what the runner has started beside this process; None: nothing. Idempotent.
    """

    runner: Runner
    kernels_name: str
    model_config: ModelConfig
    max_model_len: int
    sampler: Sampler | None = None
    blocks: BlockStorage | None = None
    numerics: Mapping[str, str] = field(default_factory=dict)
    close: Callable[[], None] | None = None


def kv_cache_blocks(config: EngineConfig, model_config: ModelConfig, dtype: torch.dtype = torch.float32) -> int:
    """Blocks in the pool: `num_blocks`, or as many as the budget of bytes holds with keys and values of `dtype`.

    Raises:
        InvalidConfigError: the budget holds none.
    """
    if config.num_blocks is not None:
        return config.num_blocks
    budget = config.kv_cache_memory or default_kv_cache_memory()
    return KVCache.num_blocks_in(budget, model_config, config.block_size, dtype)


def kv_cache_too_large(num_blocks: int, captured_batch_sizes: tuple[int, ...] = ()) -> InvalidConfigError:
    """The error for a KV cache that the system refuses to reserve, alone or with the graphs of captured steps."""
    graphs = f" and graphs for captured_batch_sizes={captured_batch_sizes}" if captured_batch_sizes else ""
    fewer = ", or give fewer captured_batch_sizes" if captured_batch_sizes else ""
    return InvalidConfigError(
        f"a KV cache of {num_blocks} blocks{graphs} does not fit in memory: lower num_blocks or kv_cache_memory (on "
        f"a GPU also gpu_memory_utilization){fewer}"
    )


def torch_numerics(device: torch.device, num_threads: int) -> dict[str, str]:
    """What the bits of torch's results depend on."""
    found = {"torch": str(torch.__version__)}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["device"] = f"{properties.name} {properties.major}.{properties.minor}"
    else:
        found["device"] = f"{torch.backends.cpu.get_cpu_capability()}, {num_threads} threads"
    return found
