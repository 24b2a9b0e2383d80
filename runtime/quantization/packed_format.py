"""What a format of rounded weights must do, and what those that exist share.

A format stores a linear layer X as several tensors, X.qweight, X.qzeros, X.scales ..., in which several small integers
are fields of one int32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ...kernels.quantized.matrix import QuantizedMatrix, layout_problem, pack
from ..models.errors import ModelLoadError
from ..models.parameters import Piece

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UnpackedMatrix:
    """A matrix as the checkpoint means it: value[n, k] = (codes[n, k] - zeros[n, g]) * scales[n, g].

    Attributes:
        bits: 4 or 8.
        codes: uint8 [N, K].
        scales: floating [N, groups].
        zeros: int16 [N, groups].
        group_idx: int64 [K], each input's group g.
        group_len: inputs of a group, if groups are consecutive and equally long; None if they are not.
    """

    bits: int
    codes: Tensor
    scales: Tensor
    zeros: Tensor
    group_idx: Tensor
    group_len: int | None

    def piece(self, piece: Piece) -> UnpackedMatrix:
        """Some of its outputs, or some of its inputs, over the same memory."""
        if piece.dim == 0:
            codes, scales, zeros = (part[piece.start : piece.stop] for part in (self.codes, self.scales, self.zeros))
            return replace(self, codes=codes, scales=scales, zeros=zeros)
        codes, group_idx = self.codes[:, piece.start : piece.stop], self.group_idx[piece.start : piece.stop]
        first_group, last_group = int(group_idx.min()), int(group_idx.max())
        group_len = self.group_len
        if first_group == last_group:
            group_len = piece.stop - piece.start
        elif group_len is not None and (piece.start % group_len or piece.stop % group_len):
            group_len = None
        return replace(
            self,
            codes=codes,
            scales=self.scales[:, first_group : last_group + 1],
            zeros=self.zeros[:, first_group : last_group + 1],
            group_idx=group_idx - first_group,
            group_len=group_len,
        )

    def held(self) -> QuantizedMatrix | None:
        """The same values, exactly, in the form that kernels take; None if that form does not have them."""
        num_inputs = self.codes.shape[1]
        if self.group_len is None or layout_problem(self.bits, num_inputs, self.group_len) is not None:
            return None
        if self.bits == 4:
            return pack(4, self.codes, self.scales, self.zeros)
        codes, zeros = self.codes.bitwise_xor(128).view(torch.int8), self.zeros - 128
        return pack(8, codes, self.scales, zeros if bool(zeros.any()) else None)

    def dequantize(self) -> Tensor:
        """fp32 [N, K]."""
        levels = self.codes.float().sub_(self.zeros[:, self.group_idx])
        return levels.mul_(self.scales.float()[:, self.group_idx])


class PackedFormat(Protocol):
    """One format of one checkpoint: its settings are read, its tensors are not.

    Attributes:
        name: what it is called in messages, with the number of bits.
        bits: of a weight.
        parts: suffixes of the tensors a layer has.
        optional_parts: of those it may have.
    """

    @property
    def name(self) -> str: ...

    @property
    def bits(self) -> int: ...

    @property
    def parts(self) -> tuple[str, ...]: ...

    @property
    def optional_parts(self) -> tuple[str, ...]: ...

    def shape(self, shapes: Mapping[str, Shape]) -> Shape:
        """[N, K] of a matrix from the shapes of its parts. Raises ValueError where they do not fit together."""
        ...

    def unpack(self, parts: Mapping[str, Tensor]) -> UnpackedMatrix:
        """The matrix, on the device of its parts, whose shapes fit together. Raises ValueError on values that no
        checkpoint can have."""
        ...


class PackingSettings:
    """Typed access to `quantization_config`. Every method raises ModelLoadError on a bad value."""

    def __init__(self, raw: Mapping[str, Any], source: str) -> None:
        self.raw = raw
        self._source = source

    def fail(self, key: str, value: object, limit: str) -> ModelLoadError:
        return ModelLoadError(f"{self._source}: quantization_config: {key}={value!r} is not supported: {limit}")

    def choice(self, keys: tuple[str, ...], allowed: tuple[object, ...], default: object) -> Any:
        """The value of the first of these keys that is there; it must be allowed. Text counts in any case."""
        key, value = next(((key, self.raw[key]) for key in keys if self.raw.get(key) is not None), (keys[0], default))
        value = value.lower() if isinstance(value, str) else value
        for known in allowed:
            if value == known and isinstance(value, bool) == isinstance(known, bool):
                return known  # and not the 4.0 that some programs write for 4
        raise self.fail(key, value, f"it must be one of {list(allowed)}")

    def group_size(self, keys: tuple[str, ...]) -> int:
        """Inputs of a group, or -1: all of them."""
        value = next((self.raw[key] for key in keys if self.raw.get(key) is not None), 128)
        if isinstance(value, bool) or not isinstance(value, int) or not (value == -1 or 0 < value < 1 << 24):
            raise self.fail(keys[0], value, "it must be -1 or a positive integer")
        return value

    def refuse(self, key: str, why: str) -> None:
        """Refuse the checkpoint if this key is set."""
        if self.raw.get(key):
            raise self.fail(key, self.raw[key], why)


def main_shape(shapes: Mapping[str, Shape]) -> tuple[int, int]:
    """The two sizes of `qweight`. Raises ValueError if it is no matrix."""
    found = shapes["qweight"]
    if len(found) != 2:
        raise ValueError(f"qweight has shape {list(found)}, and must have two dimensions")
    return found[0], found[1]


def unpack_fields(packed: Tensor, bits: int) -> Tensor:
    """Fields of int32 [R, C], the lowest bits first: uint8 [R, C, 32 / bits]."""
    num_fields = 32 // bits
    fields = torch.empty((*packed.shape, num_fields), dtype=torch.uint8, device=packed.device)
    for idx in range(num_fields):
        fields[:, :, idx] = (packed >> (idx * bits)) & ((1 << bits) - 1)
    return fields


def num_groups(num_inputs: int, group_size: int) -> int:
    """How many groups there are; the last one may be shorter."""
    return 1 if group_size == -1 else -(-num_inputs // group_size)


def consecutive_groups(num_inputs: int, group_size: int, device: torch.device) -> tuple[Tensor, int | None]:
    """(group of each input, length of a group or None) where inputs are grouped as they come."""
    group_len = num_inputs if group_size == -1 else group_size
    return torch.arange(num_inputs, device=device) // group_len, None if num_inputs % group_len else group_len
