"""Qwen2 and Qwen2.5: biases on query, key and value, a sliding window in the upper layers (Yang et al. 2024)."""

from __future__ import annotations

from .base import ModelConfig
from .hf_config import HFConfig
from .rotary_config import layered_sliding_windows, read_rotary_config
from .rotary_decoder import RotaryDecoder


class Qwen2ForCausalLM(RotaryDecoder):
    """A `RotaryDecoder` whose query, key and value projections always have a bias."""

    @staticmethod
    def read_config(hf: HFConfig) -> ModelConfig:
        return read_rotary_config(
            hf,
            architecture="Qwen2ForCausalLM",
            default_num_kv_heads=32,
            attention_bias=True,
            sliding_windows=layered_sliding_windows(hf),
        )
