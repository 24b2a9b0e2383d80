"""CapturedStep: decoding of one batch size over buffers that stay where they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ...kernels.triton.kernels import TritonKernels
from ...kernels.triton.shared_runs import HeadShape
from ..batch import Batch, FlatBatch, ForwardBatch
from ..kv_cache import KVCache
from ..models.base import Model
from ..padding import pad_decodes
from .host_step import HostStep, fill_in_pending, host_step
from .step_graphs import StepGraphs
from .upload import pinned


class CapturedStep:
    """A step of `size` rows, one a sequence, from token ids to hidden states. Logits are left to the caller: they are
    wanted without the rows of padding, and a buffer of them for each size would be large.

    Making one runs it, with rows of padding only.

        host      token ids | positions | slots        plan
                     |  one copy, then pending tokens    |  one copy
        device    inputs int64 [3, size]               PlanBuffers     -> graph -> hidden [size, W]
    """

    def __init__(
        self, model: Model, kernels: TritonKernels, kv_cache: KVCache, shape: HeadShape, size: int, graphs: StepGraphs
    ) -> None:
        device = kernels.device
        self._vocab_size = model.config.vocab_size
        # Rows begin at multiples of 16 bytes, as Triton's kernels are compiled for.
        self._inputs = torch.zeros((3, size + size % 2), dtype=torch.int64, device=device)
        self._buffers = kernels.new_plan_buffers(size, kv_cache.num_physical_blocks, shape)
        flat = FlatBatch(Batch())
        pad_decodes(flat, (size,), kv_cache.padding_block_id)
        step = host_step(flat, [], kernels, shape, kv_cache.block_size)
        self._load(step)
        token_ids, positions, slots = self._inputs[:, :size]
        batch = ForwardBatch(
            token_ids=token_ids,
            positions=positions,
            logit_rows=torch.arange(size, device=device),
            attention=kernels.with_plan(replace(step.metadata, slots=slots), shape, self._buffers.plan),
        )
        self._replay = graphs.capture(lambda: model.forward(batch, kv_cache.layers))

    def run(self, step: HostStep, drawn_token_ids: Tensor | None = None) -> Tensor:
        """Hidden states [size, W]; the next call overwrites them. Mutates the KV cache and the buffers.

        Args:
            drawn_token_ids: where pending tokens are found on the device.

        Raises:
            PlanTooLargeError: the buffers do not hold this step's plan; nothing was changed.
        """
        self._load(step)
        if drawn_token_ids is not None:
            fill_in_pending(self._inputs[0, : step.num_rows], drawn_token_ids, self._vocab_size)
        return self._replay()

    def _load(self, step: HostStep) -> None:
        self._buffers.load(step.plan)
        host = pinned(np.stack((step.token_ids, step.positions, step.slots)), self._inputs.device)
        self._inputs[:, : step.num_rows].copy_(host, non_blocking=True)
