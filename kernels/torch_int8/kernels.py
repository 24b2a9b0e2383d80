"""TorchInt8Kernels: weights and activations of the matrix products in int8, everything else as in `torch_cpu`."""

from __future__ import annotations

import torch
from torch import Tensor

from ..interface import LinearWeight
from ..torch_cpu.kernels import TorchKernels
from .capability import exact_weight_levels
from .linear import int8_linear
from .weight import Int8Weight, lookup_rows, quantize_weight


class TorchInt8Kernels:
    """Where the C++ library cannot be had: a quarter of the memory of fp32, and faster where the CPU has VNNI."""

    name = "torch_int8"

    def __init__(self, device: torch.device) -> None:
        assert device.type == "cpu"
        self.device = device
        fp32 = TorchKernels(device)
        self.new_kv_cache = fp32.new_kv_cache
        self.prepare_attention = fp32.prepare_attention
        self.copy_blocks = fp32.copy_blocks
        self.store_kv = fp32.store_kv
        self.attention = fp32.attention
        self.rms_norm = fp32.rms_norm
        self.layer_norm = fp32.layer_norm
        self.rotary = fp32.rotary
        self.add_rms_norm = fp32.add_rms_norm
        self.rotary_store = fp32.rotary_store
        self.silu_mul = fp32.silu_mul

    def prepare_weight(self, weight: Tensor) -> Int8Weight:
        return quantize_weight(weight, exact_weight_levels())

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None = None) -> Tensor:
        assert isinstance(weight, Int8Weight)
        return int8_linear(x, weight, bias)

    def embedding(self, token_ids: Tensor, weight: LinearWeight) -> Tensor:
        assert isinstance(weight, Int8Weight)
        return lookup_rows(token_ids, weight)
