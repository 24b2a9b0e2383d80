"""A GGUF file as a checkpoint: dequantised on the fly, in Hugging Face names and row order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..models.errors import ModelLoadError
from ..models.parameters import Piece
from .base import QuantizedRows, file_identity
from .dequantize import dequantize_rows
from .gguf_config import hf_config, hf_tensor_name
from .gguf_header import GGUFTensor, read_gguf_header

CHUNK_ELEMENTS = 1 << 19
"""Values dequantised at a time: the temporaries stay in the processor's cache and never double the memory."""

_ROPE_TENSORS = ("rope_freqs", "rope_factors_short", "rope_factors_long")
_MAX_ROPE_FACTORS = 1 << 16
_PLAIN_TYPES = ("F32", "F16", "BF16", "F64")


class GGUFCheckpoint:
    """Implements `base.Checkpoint` over a memory map; pages are read from disk as tensors are asked for.

    Raises:
        ModelLoadError: the file is not a sound GGUF file of a supported architecture.
    """

    def __init__(self, path: Path) -> None:
        header = read_gguf_header(path)
        num_parts = header.metadata.get("split.count", 1)
        if num_parts not in (0, 1):
            raise ModelLoadError(f"{path}: the model is split over {num_parts} files; merge them with llama-gguf-split")
        self.path = path
        self.metadata = header.metadata
        self._data: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r")
        self._tensors: dict[str, GGUFTensor] = {}
        for tensor in header.tensors.values():
            name = hf_tensor_name(tensor.name)
            if name is not None:
                self._tensors[name] = tensor
        factors = {
            name: self._read_factors(header.tensors[f"{name}.weight"])
            for name in _ROPE_TENSORS
            if f"{name}.weight" in header.tensors
        }
        self.config: Mapping[str, Any] = hf_config(header, str(path), factors)
        self._is_llama = header.metadata["general.architecture"] == "llama"

    @property
    def tokenizer_source(self) -> Path:
        return self.path

    @property
    def chat_template(self) -> str | None:
        template = self.metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    @property
    def identity(self) -> str:
        return file_identity(self.path)

    def tensor_names(self) -> Sequence[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def read_into(self, name: str, out: Tensor, piece: Piece | None = None) -> None:
        """See `TensorSource.read_into`. Cost: one pass over the bytes of the rows, about 3 ns a value; a piece of some
        columns costs as much as whole rows, for blocks are not cut."""
        tensor = self._tensors[name]
        rows = self._ordered_rows(name, self._data[tensor.offset : tensor.offset + tensor.num_bytes])
        if piece is not None and piece.dim == 0:
            rows = rows[piece.start : piece.stop]
        columns = tensor.shape[-1] if len(tensor.shape) > 1 else 1
        flat_out = out.view(rows.shape[0], -1)
        step = max(1, CHUNK_ELEMENTS // columns)
        try:
            for start in range(0, rows.shape[0], step):
                chunk, chunk_out = rows[start : start + step], flat_out[start : start + step]
                if piece is None or piece.dim == 0:
                    self._dequantize(tensor, chunk, chunk_out)
                else:
                    whole = torch.empty((len(chunk), columns))
                    self._dequantize(tensor, chunk, whole)
                    chunk_out.copy_(whole[:, piece.start : piece.stop])
        except NotImplementedError as error:
            raise ModelLoadError(
                f"{self.path}: tensor {tensor.name!r} has type {tensor.type.name}, which cannot be dequantised"
            ) from error

    def quantized_type(self, name: str) -> str | None:
        """See `Checkpoint.quantized_type`."""
        quantization = self._tensors[name].type
        return None if quantization.name in _PLAIN_TYPES else quantization.name

    def quantized_rows(self, name: str) -> QuantizedRows:
        """See `Checkpoint.quantized_rows`. Read, not mapped: pages of a map would stay in the process's memory."""
        tensor = self._tensors[name]
        data = np.fromfile(self.path, dtype=np.uint8, count=tensor.num_bytes, offset=tensor.offset)
        return QuantizedRows(tensor.type.name, np.ascontiguousarray(self._ordered_rows(name, data)))

    def _ordered_rows(self, name: str, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The bytes of a tensor as rows in Hugging Face order."""
        rows = self._rows(self._tensors[name], data)
        num_heads = self._num_interleaved_heads(name)
        return rows if num_heads is None else half_split_rows(rows, num_heads)

    @staticmethod
    def _dequantize(tensor: GGUFTensor, rows: NDArray[np.uint8], out: Tensor) -> None:
        if out.dtype == torch.float32:
            dequantize_rows(rows, tensor.type, out.numpy())
            return
        values = np.empty(out.shape, dtype=np.float32)
        dequantize_rows(rows, tensor.type, values)
        out.copy_(torch.from_numpy(values))

    def _rows(self, tensor: GGUFTensor, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """A tensor's bytes, one row per row of its matrix; a vector is a column."""
        num_rows = 1
        for size in tensor.shape[:-1] if len(tensor.shape) > 1 else tensor.shape:
            num_rows *= size
        if tensor.num_bytes % num_rows:
            raise ModelLoadError(f"{self.path}: the vector {tensor.name!r} is quantised as {tensor.type.name}")
        return data.reshape(num_rows, -1)

    def _read_factors(self, tensor: GGUFTensor) -> list[float]:
        if len(tensor.shape) != 1 or tensor.shape[0] > _MAX_ROPE_FACTORS or tensor.type.name != "F32":
            raise ModelLoadError(f"{self.path}: tensor {tensor.name!r} is not a vector of fp32 rope factors")
        factors = self._data[tensor.offset : tensor.offset + tensor.num_bytes].view("<f4")
        return [float(factor) for factor in factors]

    def _num_interleaved_heads(self, name: str) -> int | None:
        """Heads of a query or key projection of a llama file: its rows are ordered for pairs (2i, 2i + 1)."""
        if not self._is_llama:
            return None
        if ".q_proj." in name:
            return int(self.config["num_attention_heads"])
        return int(self.config["num_key_value_heads"]) if ".k_proj." in name else None


def half_split_rows(rows: NDArray[np.uint8], num_heads: int) -> NDArray[np.uint8]:
    """Reorder rows from rotary pairs (2i, 2i + 1) within a head to pairs (i, i + D/2)."""
    num_rows, row_bytes = rows.shape
    pairs = rows.reshape(num_heads, num_rows // num_heads // 2, 2, row_bytes)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(num_rows, row_bytes)
