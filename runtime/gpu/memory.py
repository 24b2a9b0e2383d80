"""How large the pool of KV blocks may be on a GPU: what is left of its memory.

    total * gpu_memory_utilization
    |------ used before: weights, and other processes ------|-- activations --|-- graphs --|======= pool =======|

Activations are measured by a trial step; what graphs take is reckoned from their buffers.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ...kernels.triton.plan import PlanRules
from ...kernels.triton.plan_buffers import PlanCapacity
from ...kernels.triton.shared_runs import HeadShape
from ..errors import InvalidConfigError

MIB = 1 << 20
GIB = 1 << 30
BYTES_A_GRAPH = 32 * MIB
"""Of a captured step beside its buffers: the graph itself, and what it shares with no other."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of a device.

    Attributes:
        total: all there are.
        used: taken when the pool is made, by whomever.
        activations: what the largest step takes at its peak.
        graphs: what captured steps will take.
    """

    total: int
    used: int
    activations: int
    graphs: int


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is lacking: PyTorch's allocator has a type for it, cuBLAS, Triton and the
    driver say it in their text."""
    texts = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in texts)
    )


def pool_bytes(use: MemoryUse, utilization: float) -> int:
    """Bytes for the pool.

    Raises:
        InvalidConfigError: nothing is left; the message says for what the memory goes and what to change.
    """
    left = int(use.total * utilization) - use.used - use.activations - use.graphs
    if left <= 0:
        raise InvalidConfigError(
            f"no device memory is left for a KV cache: gpu_memory_utilization={utilization} of "
            f"{_gib(use.total)} GiB is {_gib(int(use.total * utilization))} GiB, {_gib(use.used)} GiB are in use (the "
            f"weights and other programs), a step takes {_gib(use.activations)} GiB and graphs {_gib(use.graphs)} GiB. "
            "Raise gpu_memory_utilization, lower max_num_batched_tokens or max_num_logit_rows, give fewer "
            "captured_batch_sizes, or take a smaller model"
        )
    return left


def graphs_bytes(sizes: Sequence[int], shape: HeadShape, rules: PlanRules) -> int:
    """What captured steps of these sizes take, but for their lists of blocks, which are small."""
    num_parts = sum(PlanCapacity.for_decodes(size, 0, shape, rules).num_parts for size in sizes)
    return num_parts * shape.num_heads * (shape.head_dim + 1) * 4 + len(sizes) * BYTES_A_GRAPH


def measure(device: torch.device, trial_step: Callable[[], object], graphs: int) -> MemoryUse:
    """The use of a CUDA device, with a step of the largest size as the measure of activations. Waits for the device
    and gives unused memory of PyTorch's allocator back."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    trial_step()
    torch.cuda.synchronize(device)
    activations = torch.cuda.max_memory_allocated(device) - before
    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return MemoryUse(total=total, used=total - free, activations=activations, graphs=graphs)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f}"
