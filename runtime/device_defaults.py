"""Options that are best on one kind of device and not on another."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from .config import EngineConfig

GPU_BATCHED_TOKENS = 4096
"""Tokens in a step that keep a large GPU's matrix units busy. A CPU's are at a few hundred."""


def for_device(config: EngineConfig, device_type: str, given: Collection[str]) -> EngineConfig:
    """The options with what is best for a device where nobody has said.

    Args:
        given: names of the options that were said.
    """
    is_gpu = device_type != "cpu"
    if config.overlap_schedule is None:
        config = replace(config, overlap_schedule=is_gpu)
    if is_gpu and "max_num_batched_tokens" not in given:
        config = replace(config, max_num_batched_tokens=GPU_BATCHED_TOKENS)
    return config
