"""GpuRunner: steps of a model over Triton kernels. Implements `runner.Runner` and `runner.BlockStorage`.

    prepare   lists on the host, the plan of attention included; reads the sequences, touches no buffer
    run       block copies, then a captured step if there is one of this size, else an eager one

Everything is enqueued on the current stream: `run` returns logits that the device may still be computing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ...kernels.triton.kernels import TritonKernels
from ...kernels.triton.plan_buffers import PlanTooLargeError, load_plan
from ...kernels.triton.shared_runs import HeadShape
from ...radix.block_table import BlockCopy
from ..batch import Batch, FlatBatch, ForwardBatch
from ..kv_cache import KVCache
from ..models.base import Model, ModelConfig
from ..padding import pad_decodes
from .captured_step import CapturedStep
from .host_step import HostStep, fill_in_pending, host_step
from .memory import is_out_of_memory
from .step_graphs import StepGraphs, step_graphs_for
from .upload import on_device, upload

logger = logging.getLogger(__name__)


class GpuRunner:
    """Runs a model of `runtime/models`. Not thread-safe: one step at a time; the next may be prepared meanwhile.

    Args:
        kernels: those that the model was built with.
        captured_batch_sizes: sizes of decoding steps that are captured, ascending; steps are padded up to them. The KV
            cache then has a block more than `num_blocks`.
        graphs: how they are captured; None takes CUDA graphs on a GPU.

    Attributes:
        can_run_ahead: True: a step is launched, not waited for, and its tokens may be pending.
        num_uncaptured: decoding steps of a captured size that ran without their graph, as their plan was too large.
    """

    def __init__(
        self,
        model: Model,
        kernels: TritonKernels,
        num_blocks: int,
        block_size: int,
        captured_batch_sizes: tuple[int, ...] = (),
        graphs: StepGraphs | None = None,
    ) -> None:
        self.model = model
        self.kernels = kernels
        self.captured_batch_sizes = captured_batch_sizes
        self.can_run_ahead = True
        self.num_uncaptured = 0
        self.kv_cache = KVCache(
            kernels, model.config, num_blocks, block_size, has_padding_block=bool(captured_batch_sizes)
        )
        self._shape = head_shape(model.config)
        self._captured: dict[int, CapturedStep] = {}
        with on_device(kernels.device), torch.inference_mode():
            model.prepare_positions(model.max_model_len)
            self._capture_all(graphs or step_graphs_for(kernels.device))

    def _capture_all(self, graphs: StepGraphs) -> None:
        for size in reversed(self.captured_batch_sizes):
            self._captured[size] = CapturedStep(self.model, self.kernels, self.kv_cache, self._shape, size, graphs)

    @property
    def vocab_size(self) -> int:
        return self.model.config.vocab_size

    @property
    def num_blocks(self) -> int:
        return self.kv_cache.num_blocks

    @property
    def block_size(self) -> int:
        return self.kv_cache.block_size

    @property
    def max_model_len(self) -> int:
        """Most tokens of one sequence."""
        return self.model.max_model_len

    @property
    def device(self) -> torch.device:
        return self.kernels.device

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers, keys and values."""
        return self.kv_cache.bytes_per_block

    def read_blocks(self, block_ids: Sequence[int]) -> Tensor:
        """See `runner.BlockStorage.read_blocks`."""
        with on_device(self.kernels.device):
            return self.kv_cache.read_blocks(block_ids)

    def write_blocks(self, block_ids: Sequence[int], data: Tensor) -> None:
        """See `runner.BlockStorage.write_blocks`."""
        with on_device(self.kernels.device):
            self.kv_cache.write_blocks(block_ids, data)

    def prepare(self, batch: Batch) -> Callable[[], Tensor]:
        """See `Runner.prepare`."""
        assert not batch.is_empty
        return self.prepare_flat(FlatBatch(batch), batch.block_copies, batch.drawn_token_ids)

    def prepare_flat(
        self, flat: FlatBatch, block_copies: list[BlockCopy], drawn_token_ids: Tensor | None = None
    ) -> Callable[[], Tensor]:
        """`prepare` from lists. Mutates `flat`: it is padded."""
        if self.captured_batch_sizes:
            pad_decodes(flat, self.captured_batch_sizes, self.kv_cache.padding_block_id)
        step = host_step(flat, block_copies, self.kernels, self._shape, self.block_size)
        return partial(self._run, step, drawn_token_ids if step.has_pending else None)

    def forward(self, batch: Batch) -> Tensor:
        """See `Runner.forward`.

        Raises:
            MemoryError: the device has no memory for the step.
        """
        return self.prepare(batch)()

    @torch.inference_mode()
    def _run(self, step: HostStep, drawn_token_ids: Tensor | None) -> Tensor:
        try:
            with on_device(self.kernels.device):
                self.kv_cache.copy(step.block_copies)
                return self._logits(step, self._hidden(step, drawn_token_ids))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise MemoryError(
                f"no device memory for a step of {step.num_rows} tokens: lower gpu_memory_utilization, "
                "max_num_batched_tokens or max_num_logit_rows"
            ) from error

    def _hidden(self, step: HostStep, drawn_token_ids: Tensor | None) -> Tensor:
        captured = self._captured.get(step.num_rows) if step.is_decode else None
        if captured is not None:
            try:
                return captured.run(step, drawn_token_ids)
            except PlanTooLargeError as error:
                self.num_uncaptured += 1
                logger.debug("a step of %d rows runs without its graph: %s", step.num_rows, error)
        device = self.kernels.device
        loaded = load_plan(step.plan, self._shape, device)
        arrays = (step.token_ids, step.positions, step.slots, step.logit_rows)
        token_ids, positions, slots, logit_rows = upload(arrays, device)
        if drawn_token_ids is not None:
            fill_in_pending(token_ids, drawn_token_ids, self.vocab_size)
        attention = self.kernels.with_plan(replace(step.metadata, slots=slots), self._shape, loaded)
        return self.model.forward(ForwardBatch(token_ids, positions, logit_rows, attention), self.kv_cache.layers)

    def _logits(self, step: HostStep, hidden: Tensor) -> Tensor:
        num_wanted = len(step.logit_rows)
        if step.wants_first_rows:
            return self.model.logits(hidden[:num_wanted])
        (logit_rows,) = upload([step.logit_rows], self.kernels.device)
        return self.model.logits(hidden.index_select(0, logit_rows))


def head_shape(config: ModelConfig) -> HeadShape:
    """What a plan of attention must know of a model."""
    return HeadShape(config.num_heads, config.num_kv_heads, config.head_dim)
