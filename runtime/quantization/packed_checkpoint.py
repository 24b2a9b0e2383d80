"""PackedCheckpoint: a directory whose linear layers are stored in a packed format, as a checkpoint of plain tensors.

A layer X of several parts (X.qweight, ...) is one tensor, X.weight, that is dequantised as it is read. Who can hold it
packed asks for `unpacked` instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..models.errors import ModelLoadError
from ..models.parameters import Piece
from ..weights.base import QuantizedRows
from ..weights.safetensors_dir import SafetensorsCheckpoint
from .packed_format import PackedFormat, UnpackedMatrix

_MAIN_PART = ".qweight"


class PackedCheckpoint:
    """Implements `weights.base.Checkpoint`.

    Raises:
        ModelLoadError: a layer lacks a part, or its parts do not fit together.
    """

    def __init__(self, stored: SafetensorsCheckpoint, packing: PackedFormat) -> None:
        self.path = stored.path
        self.config: Mapping[str, Any] = stored.config
        self.packing = packing
        self._stored = stored
        names = set(stored.tensor_names())
        self._parts: dict[str, dict[str, str]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for name in sorted(names):
            if name.endswith(_MAIN_PART):
                self._add(name.removesuffix(_MAIN_PART), names)
        self._plain_names = names - {part for parts in self._parts.values() for part in parts.values()}

    def _add(self, layer: str, names: set[str]) -> None:
        packing = self.packing
        weight = f"{layer}.weight"
        missing = [part for part in packing.parts if f"{layer}.{part}" not in names]
        if missing:
            raise ModelLoadError(f"{self.path}: {packing.name}: {layer} lacks {', '.join(missing)}")
        if weight in names:
            raise ModelLoadError(f"{self.path}: {packing.name}: {layer} is stored plain and quantised")
        present = [part for part in (*packing.parts, *packing.optional_parts) if f"{layer}.{part}" in names]
        self._parts[weight] = {part: f"{layer}.{part}" for part in present}
        try:
            self._shapes[weight] = packing.shape({part: self._stored.shape(f"{layer}.{part}") for part in present})
        except ValueError as error:
            raise ModelLoadError(f"{self.path}: {packing.name}: {layer}: {error}") from error

    @property
    def tokenizer_source(self) -> Path:
        return self._stored.tokenizer_source

    @property
    def chat_template(self) -> str | None:
        return self._stored.chat_template

    @property
    def identity(self) -> str:
        return self._stored.identity

    def tensor_names(self) -> Sequence[str]:
        return [*self._plain_names, *self._parts]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name] if name in self._shapes else self._stored.shape(name)

    def quantized_type(self, name: str) -> str | None:
        """None: none is stored in GGUF's blocks."""
        return None

    def quantized_rows(self, name: str) -> QuantizedRows:
        raise AssertionError(f"{name} is not stored in blocks")

    def read_into(self, name: str, out: Tensor, piece: Piece | None = None) -> None:
        """See `TensorSource.read_into`. A packed matrix takes 20 bytes a value while it is read."""
        if name not in self._parts:
            self._stored.read_into(name, out, piece)
        else:
            out.copy_(self.unpacked(name, out.device, piece).dequantize())

    def is_packed(self, name: str) -> bool:
        """Whether the tensor of this name is put together from parts."""
        return name in self._parts

    def packed_values(self) -> int:
        """Weights in all packed matrices."""
        return sum(num_outputs * num_inputs for num_outputs, num_inputs in self._shapes.values())

    def unpacked(self, name: str, device: torch.device, piece: Piece | None = None) -> UnpackedMatrix:
        """A packed matrix or a piece of it, as the checkpoint means it. Raises ModelLoadError when it is damaged."""
        parts = {part: self._stored.read(stored).to(device) for part, stored in self._parts[name].items()}
        for part, tensor in parts.items():
            is_sound = tensor.is_floating_point() if part == "scales" else tensor.dtype == torch.int32
            if not is_sound:
                raise ModelLoadError(f"{self.path}: {self._parts[name][part]} has type {tensor.dtype}")
        if not bool(parts["scales"].isfinite().all()):
            raise ModelLoadError(f"{self.path}: {self._parts[name]['scales']}: scales are not finite")
        try:
            matrix = self.packing.unpack(parts)
        except ValueError as error:
            raise ModelLoadError(f"{self.path}: {self.packing.name}: {name}: {error}") from error
        return matrix if piece is None else matrix.piece(piece)
