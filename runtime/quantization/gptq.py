"""GPTQ checkpoints (Frantar et al. 2023), as AutoGPTQ and GPTQModel write them.

    qweight  int32 [K / F, N]       F = 32 / bits fields down the inputs, the lowest bits first
    qzeros   int32 [groups, N / F]  fields along the outputs; format "gptq" stores zero - 1, "gptq_v2" the zero
    scales   fp16  [groups, N]
    g_idx    int32 [K]              each input's group; there are checkpoints without

With desc_act, groups are not consecutive.
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


class GPTQFormat:
    """Implements `PackedFormat`.

    Raises:
        ModelLoadError: a setting is not supported.
    """

    parts = ("qweight", "qzeros", "scales")
    optional_parts = ("g_idx",)

    def __init__(self, settings: PackingSettings) -> None:
        self.bits: int = settings.choice(("bits",), (4, 8), None)
        self.name = f"GPTQ {self.bits} bit"
        self._group_size = settings.group_size(("group_size",))
        self._is_symmetric: bool = settings.choice(("sym",), (True, False), True)
        format_name = settings.choice(("checkpoint_format", "format"), ("gptq", "gptq_v2"), "gptq")
        self._zero_offset = 1 if format_name == "gptq" else 0
        settings.refuse("dynamic", "layers with settings of their own are not supported")

    def shape(self, shapes: Mapping[str, Shape]) -> Shape:
        """See `PackedFormat.shape`."""
        num_fields = 32 // self.bits
        num_rows, num_outputs = main_shape(shapes)
        num_inputs = num_rows * num_fields
        groups = num_groups(num_inputs, self._group_size)
        expected = {
            "qweight": (num_inputs // num_fields, num_outputs),
            "qzeros": (groups, num_outputs // num_fields),
            "scales": (groups, num_outputs),
            "g_idx": (num_inputs,),
        }
        for part, found in shapes.items():
            if found != expected[part] or num_outputs % num_fields:
                raise ValueError(f"{part} has shape {list(found)}, which does not go with {expected}")
        return num_outputs, num_inputs

    def unpack(self, parts: Mapping[str, Tensor]) -> UnpackedMatrix:
        """See `PackedFormat.unpack`."""
        codes = unpack_fields(parts["qweight"].t(), self.bits).flatten(1)
        group_idx, group_len = consecutive_groups(codes.shape[1], self._group_size, codes.device)
        if "g_idx" in parts:
            stored_idx = parts["g_idx"].long()
            if not torch.equal(stored_idx, group_idx):
                if int(stored_idx.min()) < 0 or int(stored_idx.max()) >= parts["scales"].shape[0]:
                    raise ValueError(f"g_idx names groups beyond the {parts['scales'].shape[0]} there are")
                group_idx, group_len = stored_idx, None
        return UnpackedMatrix(
            bits=self.bits,
            codes=codes,
            scales=parts["scales"].t(),
            zeros=self._zeros(parts["qzeros"]).t(),
            group_idx=group_idx,
            group_len=group_len,
        )

    def _zeros(self, packed: Tensor) -> Tensor:
        """int16 [groups, N]. Symmetric ones are known to be in the middle: there are checkpoints of the second format
        that name the first."""
        stored = unpack_fields(packed, self.bits).flatten(1).to(torch.int16)
        if self._is_symmetric and bool((stored == 1 << (self.bits - 1)).all()):
            return stored
        return stored + self._zero_offset
