"""QuantizedMatrix: a matrix of small integers with a scale for each group of inputs; its layout and its value.

    value[n, k] = (code[n, k] - zero[n, k // G]) * scale[n, k // G]

    8 bits    one int8 a value, rows as they are
    4 bits    one byte for two values, in blocks of 32 inputs:

              byte       0     1    ...   15
              low half   k     k+1  ...   k+15
              high half  k+16  k+17 ...   k+31

so that a kernel reads 16 neighbours of the activations for either half, and never has to interleave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK_LEN = 32
"""Inputs that share 16 bytes of 4-bit codes."""

GROUP_MULTIPLES = {4: BLOCK_LEN, 8: 16}
"""By number of bits, what a group's length must be a multiple of: what a kernel multiplies at once."""


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """Implements `interface.LinearWeight`; made by `pack`.

    Attributes:
        bits: 4 or 8.
        group_len: inputs that share a scale, G; it divides the number of inputs.
        codes: int8 [N, K], or uint8 [N, K / 2].
        scales: fp32 [N, K / G], contiguous.
        zeros: int16 [N, K / G], contiguous; None where all are 0.
    """

    bits: int
    group_len: int
    codes: Tensor
    scales: Tensor
    zeros: Tensor | None

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.codes.shape[0], self.codes.shape[1] * 8 // self.bits))

    @property
    def num_bytes(self) -> int:
        """Memory of codes, scales and zeros."""
        parts = (self.codes, self.scales) if self.zeros is None else (self.codes, self.scales, self.zeros)
        return sum(part.numel() * part.element_size() for part in parts)

    def rows(self, start: int, end: int) -> QuantizedMatrix:
        """A range of outputs, over the same memory."""
        zeros = None if self.zeros is None else self.zeros[start:end]
        return QuantizedMatrix(self.bits, self.group_len, self.codes[start:end], self.scales[start:end], zeros)

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """The matrix [N, K], computed in fp32 and rounded once. Costs 8 bytes a value while it is made."""
        num_rows, num_groups = self.scales.shape
        values = self._levels().float().view(num_rows, num_groups, self.group_len)
        if self.zeros is not None:
            values = values.sub_(self.zeros[:, :, None])
        return values.mul_(self.scales[:, :, None]).view(num_rows, -1).to(dtype)

    def _levels(self) -> Tensor:
        if self.bits == 8:
            return self.codes
        blocks = self.codes.view(self.codes.shape[0], -1, BLOCK_LEN // 2)
        return torch.cat((blocks & 15, blocks >> 4), dim=2)


def layout_problem(bits: int, num_inputs: int, group_len: int) -> str | None:
    """Why a matrix with so many inputs and groups of this length has no QuantizedMatrix; None if it has."""
    multiple = GROUP_MULTIPLES[bits]
    if group_len % multiple:
        return f"groups of {group_len} inputs are not a multiple of {multiple}, as those of {bits}-bit weights must be"
    if num_inputs % group_len:
        return f"groups of {group_len} inputs do not divide the {num_inputs} that there are"
    return None


def pack(bits: int, codes: Tensor, scales: Tensor, zeros: Tensor | None) -> QuantizedMatrix:
    """A QuantizedMatrix of codes [N, K] (int8 for 8 bits, uint8 0 .. 15 for 4), scales [N, groups] and zeros
    [N, groups], all on one device. There is no `layout_problem`: assert."""
    num_inputs = codes.shape[1]
    group_len = num_inputs // scales.shape[1]
    assert layout_problem(bits, num_inputs, group_len) is None
    if bits == 4:
        assert codes.dtype == torch.uint8
        low, high = codes.view(codes.shape[0], -1, 2, BLOCK_LEN // 2).unbind(2)
        codes = (low | (high << 4)).flatten(1)
    else:
        assert codes.dtype == torch.int8
    packed_zeros = None if zeros is None else zeros.to(torch.int16).contiguous()
    return QuantizedMatrix(bits, group_len, codes.contiguous(), scales.float().contiguous(), packed_zeros)


def stack(parts: Sequence[QuantizedMatrix]) -> QuantizedMatrix:
    """Matrices of one layout as one, along the outputs."""
    first = parts[0]
    if len(parts) == 1:
        return first
    assert len({(part.bits, part.group_len, part.shape[1]) for part in parts}) == 1
    zeros = None
    if any(part.zeros is not None for part in parts):
        zeros = torch.cat([_zeros(part) for part in parts])
    return QuantizedMatrix(
        first.bits,
        first.group_len,
        torch.cat([part.codes for part in parts]),
        torch.cat([part.scales for part in parts]),
        zeros,
    )


def _zeros(part: QuantizedMatrix) -> Tensor:
    return torch.zeros_like(part.scales, dtype=torch.int16) if part.zeros is None else part.zeros
