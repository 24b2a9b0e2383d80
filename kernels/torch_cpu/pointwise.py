"""Norms, rotary embedding and gated activation: memory-bound ops, written for few passes and few dispatches."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `interface.Kernels.rms_norm`."""
    x32 = x.float()
    inverse = x32.square().sum(-1, keepdim=True).div_(x.shape[-1]).add_(eps).rsqrt_()
    return (x32 * inverse).mul_(weight).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """See `interface.Kernels.layer_norm`."""
    return F.layer_norm(x.float(), weight.shape, weight.float(), bias.float(), eps).to(x.dtype)


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """See `interface.Kernels.rotary`."""
    half = cos.shape[1]
    cos, sin = cos.unsqueeze(1).to(x.dtype), sin.unsqueeze(1).to(x.dtype)
    if x.stride(-1) != 1:
        x = x.contiguous()
    first, second = x[..., :half], x[..., half : 2 * half]
    rotated = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    torch.mul(first, cos, out=rotated[..., :half]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=rotated[..., half : 2 * half]).addcmul_(first, sin)
    if 2 * half < x.shape[-1]:
        rotated[..., 2 * half :] = x[..., 2 * half :]
    return rotated


def silu_mul(gate_up: Tensor) -> Tensor:
    """See `interface.Kernels.silu_mul`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
