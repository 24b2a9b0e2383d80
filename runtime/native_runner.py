"""NativeRunner: a step in one call of the C++ kernels, over bf16 KV blocks.

Implements `runner.Runner` and `runner.BlockStorage`.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..kernels.cpu.library import NUM_PHASES, PHASES, Step
from ..kernels.cpu.memory import MemoryArena
from ..radix.block_table import BlockCopy
from .batch import Batch, FlatBatch
from .native_model import BLOCK_SIZE, NativeModel

_ELEMENT_BYTES = 2


class NativeRunner:
    """Runs a NativeModel. Not thread-safe: one step at a time.

    Logits do not depend on the batch, the chunks, what was cached, tile sharing or the number of threads, to the last
    bit.

    Args:
        num_blocks: blocks of the KV cache; memory is used as blocks are written.
        num_threads: threads of a step.
        is_sharing: let attention read blocks shared by several sequences once for all of them. A switch for
            measurements; results are the same.

    Raises:
        MemoryError: the KV cache cannot be reserved.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        model: NativeModel,
        num_blocks: int,
        num_threads: int,
        *,
        is_sharing: bool = True,
    ) -> None:
        config = model.config
        self.model = model
        self.num_threads = num_threads
        self.is_sharing = is_sharing
        self._library = library
        self._num_blocks = num_blocks
        self._block_elements = 2 * config.num_layers * config.num_kv_heads * config.head_dim * BLOCK_SIZE
        self._arena = MemoryArena(library)
        self._kv_data = self._arena.allocate(num_blocks * self.bytes_per_block)
        struct = model.struct(self._kv_data, self._block_elements)
        self._handle = library.ramet_model_new(ctypes.byref(struct))
        if not self._handle:
            raise MemoryError("no memory for the model")
        weakref.finalize(self, library.ramet_model_free, self._handle)

    @property
    def vocab_size(self) -> int:
        return self.model.config.vocab_size

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def block_size(self) -> int:
        return BLOCK_SIZE

    @property
    def captured_batch_sizes(self) -> tuple[int, ...]:
        return ()

    @property
    def can_run_ahead(self) -> bool:
        return False

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers, keys and values."""
        return self._block_elements * _ELEMENT_BYTES

    @property
    def max_model_len(self) -> int:
        """Most tokens of one sequence."""
        return self.model.max_model_len

    def prepare(self, batch: Batch) -> Callable[[], Tensor]:
        """See `Runner.prepare`."""
        assert not batch.is_empty
        return partial(self._run, batch.block_copies, StepArrays(batch))

    def forward(self, batch: Batch) -> Tensor:
        """See `Runner.forward`.

        Raises:
            MemoryError: no memory for the step; nothing was computed.
        """
        return self.prepare(batch)()

    def _run(self, block_copies: list[BlockCopy], step: StepArrays) -> Tensor:
        self._copy_blocks(block_copies)
        logits = torch.empty((step.num_logit_rows, self.vocab_size), dtype=torch.float32)
        cos, sin = self.model.rope.table(step.max_context_len)
        struct = step.struct()
        struct.cos, struct.sin, struct.logits = cos.data_ptr(), sin.data_ptr(), logits.data_ptr()
        struct.num_threads, struct.is_sharing = self.num_threads, self.is_sharing
        if self._library.ramet_model_step(self._handle, ctypes.byref(struct)):
            raise MemoryError(f"no memory for a step of {step.num_tokens} tokens: lower max_num_batched_tokens")
        return logits

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def read_blocks(self, block_ids: Sequence[int]) -> Tensor:
        """See `BlockStorage.read_blocks`."""
        return torch.from_numpy(self._blocks()[list(block_ids)])

    def write_blocks(self, block_ids: Sequence[int], data: Tensor) -> None:
        """See `BlockStorage.write_blocks`."""
        self._blocks()[list(block_ids)] = data.numpy()

    def _blocks(self) -> NDArray[np.uint8]:
        """The KV cache in place: [blocks, bytes of one]. Must not outlive the runner.

        An array and no tensor: torch would copy rows with all its threads, which wait for each other longer than one
        takes where other processes compute."""
        memory = (ctypes.c_uint8 * (self._num_blocks * self.bytes_per_block)).from_address(self._kv_data)
        blocks: NDArray[np.uint8] = np.ctypeslib.as_array(memory)
        return blocks.reshape(self._num_blocks, self.bytes_per_block)

    def phase_times(self) -> dict[str, float]:
        """Seconds spent in each phase of all steps so far, as one thread saw them."""
        times = (ctypes.c_double * NUM_PHASES)()
        self._library.ramet_model_times(self._handle, times)
        return dict(zip(PHASES, times, strict=False))

    def _copy_blocks(self, block_copies: list[BlockCopy]) -> None:
        if not block_copies:
            return
        sources = _int_array([copy.src_block_id for copy in block_copies])
        destinations = _int_array([copy.dst_block_id for copy in block_copies])
        if self._library.ramet_copy_blocks(
            self._kv_data, self._block_elements, sources.ctypes.data, destinations.ctypes.data, len(sources)
        ):
            raise MemoryError(f"no memory to copy {len(sources)} blocks")


class StepArrays:
    """A batch as the int32 arrays the library reads. Keeps them alive for the structure that points at them."""

    def __init__(self, batch: Batch) -> None:
        flat = FlatBatch(batch)
        self.num_tokens, self.num_sequences = len(flat.token_ids), len(flat.block_tables)
        self.num_logit_rows = len(flat.logit_rows)
        self.max_context_len = max(flat.context_lens)
        self._arrays = tuple(
            _int_array(values)
            for values in (
                flat.token_ids,
                flat.positions,
                flat.query_starts,
                list(chain.from_iterable(flat.block_tables)),
                [0, *accumulate(map(len, flat.block_tables))],
                flat.logit_rows,
            )
        )

    def struct(self) -> Step:
        """The library's structure, without tables, output and options."""
        token_ids, positions, query_starts, block_tables, block_table_starts, logit_rows = (
            array.ctypes.data for array in self._arrays
        )
        return Step(
            num_tokens=self.num_tokens,
            num_sequences=self.num_sequences,
            num_logit_rows=self.num_logit_rows,
            token_ids=token_ids,
            positions=positions,
            query_starts=query_starts,
            block_tables=block_tables,
            block_table_starts=block_table_starts,
            logit_rows=logit_rows,
        )


def _int_array(values: list[int]) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)
