"""Which options of an engine go with which kernels and device: what can be told before a model is opened."""

from __future__ import annotations

import torch

from ..kernels.triton.availability import why_no_fp8
from .config import EngineConfig
from .errors import InvalidConfigError
from .native_model import BLOCK_SIZE
from .quantization.linear_reader import check_quantization

KV_CODES = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "int8": torch.int8}
"""By the value of `EngineConfig.kv_cache_dtype`: codes with a scale for each row."""


def check_kernel_options(kernels_name: str, config: EngineConfig) -> None:
    """Raises InvalidConfigError if an option is for other kernels than these."""
    if kernels_name != "triton":
        for name, value in (("kv_cache_dtype", config.kv_cache_dtype), ("dtype", config.dtype)):
            if value != "auto":
                raise InvalidConfigError(
                    f"{name}={value!r} goes with kernels='triton', and {kernels_name!r} has its own; leave {name} out"
                )
    check_quantization(kernels_name, config.quantization)


def check_kv_cache_dtype(name: str, device: torch.device) -> None:
    """Raises InvalidConfigError if a KV cache on this device, which exists, cannot have a dtype of EngineConfig."""
    reason = why_no_fp8(device) if KV_CODES.get(name) == torch.float8_e4m3fn else None
    if reason is not None:
        raise InvalidConfigError(
            f"kv_cache_dtype={name!r} is not supported on {device}: {reason}; use kv_cache_dtype='int8' or 'auto'"
        )


def why_options_unsupported(kernels_name: str, config: EngineConfig) -> str | None:
    """Why the kernels are passed over, for others that may be tried, with these options; None if they are not."""
    if kernels_name != "cpu":
        return None
    if config.block_size != BLOCK_SIZE:
        return f"the C++ kernels have blocks of {BLOCK_SIZE} tokens, and block_size={config.block_size} was asked for"
    if config.captured_batch_sizes:
        return (
            f"captured_batch_sizes={config.captured_batch_sizes} was asked for, and the C++ kernels, usually the "
            'fastest on a CPU, capture no steps and pad none (leave it out to have them; kernels="torch" pads)'
        )
    return None
