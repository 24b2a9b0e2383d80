"""Runner: what computes a step. The engine knows only this protocol; ModelRunner computes the step in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from ..kernels.attention_plan import build_attention_metadata
from ..kernels.interface import Kernels
from ..radix.block_table import BlockCopy
from .batch import Batch, FlatBatch, ForwardBatch
from .kv_cache import KVCache
from .models.base import Model
from .padding import pad_decodes


class Runner(Protocol):
    """Computes one step. A native runner may do all of it in a single call.

    Attributes:
        vocab_size: logits a row.
        num_blocks, block_size: the size of its KV cache; block ids are 0 .. num_blocks - 1.
        captured_batch_sizes: what it pads decoding steps up to, ascending; empty if it does not.
        can_run_ahead: running a step only launches it, on a device that computes by itself; and tokens of a batch may
            be pending: known to the device alone, in `Batch.drawn_token_ids`.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def block_size(self) -> int: ...

    @property
    def captured_batch_sizes(self) -> tuple[int, ...]: ...

    @property
    def can_run_ahead(self) -> bool: ...

    def prepare(self, batch: Batch) -> Callable[[], Tensor]:
        """Read all that the step needs from the batch; from then on its sequences may go on, end or lose their blocks.

        Returns:
            The step. It may run on another thread, once, and before the next one is run.
        """
        ...

    def forward(self, batch: Batch) -> Tensor:
        """Copy `batch.block_copies`, compute the scheduled tokens, and write their keys and values to their blocks:
        prepare, and run.

        Returns:
            fp32 logits [R, vocab_size]: for each scheduled sequence in order, the rows of its last num_logit_rows
            tokens.
        """
        ...


class BlockStorage(Protocol):
    """The memory of a pool: what moves blocks out of it and back. Runners that hold their whole cache are one.

    Data of a block is a row of bytes, in a layout of the runner's own: keys and values of all layers. On a device,
    reads and writes are enqueued on the current stream, where steps are, so they come in the order of the calls.
    """

    @property
    def bytes_per_block(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def read_blocks(self, block_ids: Sequence[int]) -> Tensor:
        """A copy of their data: uint8 [n, bytes_per_block], on the device. O(bytes)."""
        ...

    def write_blocks(self, block_ids: Sequence[int], data: Tensor) -> None:
        """Replace the data of distinct blocks, which no step in flight reads, by uint8 [n, bytes_per_block], from any
        device. O(bytes)."""
        ...


class ModelRunner:
    """Runs a model of `runtime/models` with the ops of a `Kernels` over its own KV cache.

    Not thread-safe: one step at a time.

    Args:
        captured_batch_sizes: steps that only decode are padded up to the next of these (see `padding.py`); ascending.
            The KV cache then has a block more than `num_blocks`.
    """

    def __init__(
        self,
        model: Model,
        kernels: Kernels,
        num_blocks: int,
        block_size: int,
        captured_batch_sizes: tuple[int, ...] = (),
    ) -> None:
        self.model = model
        self.kernels = kernels
        self.captured_batch_sizes = captured_batch_sizes
        self.can_run_ahead = False
        self.kv_cache = KVCache(
            kernels, model.config, num_blocks, block_size, has_padding_block=bool(captured_batch_sizes)
        )

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
        """See `BlockStorage.read_blocks`."""
        return self.kv_cache.read_blocks(block_ids)

    def write_blocks(self, block_ids: Sequence[int], data: Tensor) -> None:
        """See `BlockStorage.write_blocks`."""
        self.kv_cache.write_blocks(block_ids, data)

    def prepare(self, batch: Batch) -> Callable[[], Tensor]:
        """See `Runner.prepare`."""
        assert not batch.is_empty
        return self.prepare_flat(FlatBatch(batch), batch.block_copies)

    def prepare_flat(self, flat: FlatBatch, block_copies: list[BlockCopy]) -> Callable[[], Tensor]:
        """`prepare` from lists. Mutates `flat`: it is padded."""
        return partial(self._run, block_copies, self._tensors(flat))

    def forward(self, batch: Batch) -> Tensor:
        """See `Runner.forward`."""
        return self.prepare(batch)()

    @torch.inference_mode()
    def _run(self, block_copies: list[BlockCopy], forward_batch: ForwardBatch) -> Tensor:
        self.kv_cache.copy(block_copies)
        hidden = self.model.forward(forward_batch, self.kv_cache.layers)
        if len(forward_batch.logit_rows) < hidden.shape[0]:
            hidden = hidden.index_select(0, forward_batch.logit_rows)
        return self.model.logits(hidden)

    def tensors(self, batch: Batch) -> ForwardBatch:
        """The tensors of a step. Reads the sequences' token ids and block tables; mutates nothing."""
        return self._tensors(FlatBatch(batch))

    @torch.inference_mode()
    def _tensors(self, flat: FlatBatch) -> ForwardBatch:
        if self.captured_batch_sizes:
            pad_decodes(flat, self.captured_batch_sizes, self.kv_cache.padding_block_id)
        device = self.kernels.device
        metadata = build_attention_metadata(
            flat.block_tables, flat.query_starts, flat.context_lens, self.block_size, device
        )
        return ForwardBatch(
            token_ids=torch.tensor(flat.token_ids, dtype=torch.int64, device=device),
            positions=torch.tensor(flat.positions, dtype=torch.int64, device=device),
            logit_rows=torch.tensor(flat.logit_rows, dtype=torch.int64, device=device),
            attention=self.kernels.prepare_attention(metadata),
        )
