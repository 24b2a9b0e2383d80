"""Qwen3 (dense): RMS norm on every query and key head, head width independent of the model's (Yang et al. 2025)."""

from __future__ import annotations

from .base import ModelConfig
from .hf_config import HFConfig
from .rotary_config import layered_sliding_windows, read_rotary_config
from .rotary_decoder import RotaryDecoder


class Qwen3ForCausalLM(RotaryDecoder):
    """A `RotaryDecoder` with normalised query and key heads and optional attention biases."""

    @staticmethod
    def read_config(hf: HFConfig) -> ModelConfig:
        attention_bias = hf.flag("attention_bias", False)
        return read_rotary_config(
            hf,
            architecture="Qwen3ForCausalLM",
            default_num_kv_heads=32,
            default_head_dim=128,
            attention_bias=attention_bias,
            attention_output_bias=attention_bias,
            has_qk_norm=True,
            sliding_windows=layered_sliding_windows(hf),
        )
