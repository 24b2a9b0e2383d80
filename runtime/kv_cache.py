"""KVCache: the keys and values of all layers, in blocks. Which block holds what is the prefix cache's business."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..kernels.interface import Kernels
from ..kernels.kv_dtypes import row_bytes
from ..radix.prefix_cache import BlockCopy
from .errors import InvalidConfigError
from .models.base import ModelConfig


class KVCache:
    """Storage for `num_blocks` blocks of `block_size` token slots in every layer.

    On a CPU the memory is only reserved: blocks cost nothing until they are written.

    Args:
        has_padding_block: hold one block more, which belongs to no pool, for what rows of padding write.

    Attributes:
        num_physical_blocks: all there are, one for padding included.
        layers: one (key, value) pair a layer, in the layout of the kernels that made it.
    """

    def __init__(
        self,
        kernels: Kernels,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        *,
        has_padding_block: bool = False,
    ) -> None:
        """Raises:
        InvalidConfigError: a size is less than one.
        """
        for name, value in (("num_blocks", num_blocks), ("block_size", block_size)):
            if value < 1:
                raise InvalidConfigError(f"{name}={value} is not allowed: it must be at least 1")
        self._kernels = kernels
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_physical_blocks = num_blocks + has_padding_block
        self.layers: list[tuple[Tensor, Tensor]] = [
            kernels.new_kv_cache(self.num_physical_blocks, block_size, config.num_kv_heads, config.head_dim)
            for _ in range(config.num_layers)
        ]

    @property
    def padding_block_id(self) -> int:
        """The block for rows of padding: the one behind those of the pool."""
        assert self.num_physical_blocks > self.num_blocks
        return self.num_blocks

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers, keys and values."""
        num_bytes = sum(cache.numel() * cache.element_size() for layer in self.layers for cache in layer)
        return num_bytes // self.num_physical_blocks

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Copy blocks in every layer; all reads happen before any write, so a source may be a destination too.

        Whole blocks are copied: slots beyond a copy's num_tokens hold nothing that anyone reads."""
        if not copies:
            return
        src_block_ids = [copy.src_block_id for copy in copies]
        dst_block_ids = [copy.dst_block_id for copy in copies]
        assert len(set(dst_block_ids)) == len(dst_block_ids)
        for layer in self.layers:
            for cache in layer:
                self._kernels.copy_blocks(cache, src_block_ids, dst_block_ids)

    @torch.inference_mode()
    def read_blocks(self, block_ids: Sequence[int]) -> Tensor:
        """A copy of blocks: uint8 [n, bytes_per_block] on the cache's device; layer after layer, keys before values."""
        parts = self._as_bytes()
        indices = self._indices(block_ids)
        return torch.cat([part.index_select(0, indices) for part in parts], dim=1)

    @torch.inference_mode()
    def write_blocks(self, block_ids: Sequence[int], data: Tensor) -> None:
        """Put back what `read_blocks` has returned, from any device, into these blocks, all distinct."""
        parts = self._as_bytes()
        indices = self._indices(block_ids)
        columns = torch.split(data.to(indices.device, non_blocking=True), [part.shape[1] for part in parts], dim=1)
        for part, column in zip(parts, columns, strict=True):
            part.index_copy_(0, indices, column)

    def _indices(self, block_ids: Sequence[int]) -> Tensor:
        device = self._kernels.device
        host = torch.tensor(block_ids, dtype=torch.int64, pin_memory=device.type == "cuda")
        return host.to(device, non_blocking=True)

    def _as_bytes(self) -> list[Tensor]:
        """Every layer's keys and values as uint8 [blocks, bytes], in place: the first dimension is that of blocks in
        the layouts of all kernels."""
        return [cache.view(self.num_physical_blocks, -1).view(torch.uint8) for layer in self.layers for cache in layer]

    @staticmethod
    def num_blocks_in(num_bytes: int, config: ModelConfig, block_size: int, dtype: torch.dtype = torch.float32) -> int:
        """How many blocks a budget of bytes holds, over all layers, keys and values. What `bytes_per_block` of a cache
        with rows of `dtype` is counts, the scales of quantised ones too.

        Raises:
            InvalidConfigError: not even one.
        """
        bytes_per_token = 2 * config.num_layers * config.num_kv_heads * row_bytes(config.head_dim, dtype)
        bytes_per_block = bytes_per_token * block_size
        if num_bytes < bytes_per_block:
            raise InvalidConfigError(
                f"a KV cache of {num_bytes} bytes is too small: one block of {block_size} tokens of this model takes "
                f"{bytes_per_block} bytes; give it more memory"
            )
        return num_bytes // bytes_per_block
