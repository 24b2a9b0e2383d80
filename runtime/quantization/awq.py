"""AWQ checkpoints (Lin et al. 2024), format "gemm", as AutoAWQ writes them.

    qweight  int32 [K, N / 8]       8 fields of 4 bits along the outputs
    qzeros   int32 [groups, N / 8]  the same
    scales   fp16  [groups, N]

The fields, lowest bits first, are outputs 0 2 4 6 1 3 5 7 of each eight.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .packed_format import (
    PackingSettings,
    Shape,
    UnpackedMatrix,
    consecutive_groups,
    main_shape,
    num_groups,
    unpack_fields,
)

FIELD_OF_OUTPUT = (0, 4, 1, 5, 2, 6, 3, 7)
"""Which field holds each of eight outputs."""


class AWQFormat:
    """Implements `PackedFormat`.

    Raises:
        ModelLoadError: a setting is not supported.
    """

    parts = ("qweight", "qzeros", "scales")
    optional_parts = ()
    bits = 4
    name = "AWQ 4 bit"

    def __init__(self, settings: PackingSettings) -> None:
        settings.choice(("bits", "w_bit"), (4,), 4)
        settings.choice(("version", "format"), ("gemm",), "gemm")
        settings.choice(("zero_point",), (True,), True)
        self._group_size = settings.group_size(("group_size", "q_group_size"))

    def shape(self, shapes: Mapping[str, Shape]) -> Shape:
        """See `PackedFormat.shape`."""
        num_inputs, num_columns = main_shape(shapes)
        num_outputs = num_columns * 8
        groups = num_groups(num_inputs, self._group_size)
        expected = {
            "qweight": (num_inputs, num_outputs // 8),
            "qzeros": (groups, num_outputs // 8),
            "scales": (groups, num_outputs),
        }
        for part, found in shapes.items():
            if found != expected[part]:
                raise ValueError(f"{part} has shape {list(found)}, which does not go with {expected}")
        return num_outputs, num_inputs

    def unpack(self, parts: Mapping[str, Tensor]) -> UnpackedMatrix:
        """See `PackedFormat.unpack`."""
        codes = _ordered(parts["qweight"]).t().contiguous()
        group_idx, group_len = consecutive_groups(codes.shape[1], self._group_size, codes.device)
        return UnpackedMatrix(
            bits=4,
            codes=codes,
            scales=parts["scales"].t(),
            zeros=_ordered(parts["qzeros"]).t().to(torch.int16),
            group_idx=group_idx,
            group_len=group_len,
        )


def _ordered(packed: Tensor) -> Tensor:
    """uint8 [R, 8 C] of int32 [R, C]."""
    return unpack_fields(packed, 4)[:, :, list(FIELD_OF_OUTPUT)].flatten(1)
