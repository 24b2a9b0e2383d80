"""Mistral 7B and its kin: Llama with a sliding window in every layer (Jiang et al. 2023)."""

from __future__ import annotations

from .base import ModelConfig
from .hf_config import HFConfig
from .rotary_config import read_rotary_config
from .rotary_decoder import RotaryDecoder

DEFAULT_SLIDING_WINDOW = 4096


class MistralForCausalLM(RotaryDecoder):
    """A `RotaryDecoder` without biases; a `sliding_window` of null in the configuration means none."""

    @staticmethod
    def read_config(hf: HFConfig) -> ModelConfig:
        window = hf.optional_size("sliding_window") if "sliding_window" in hf.raw else DEFAULT_SLIDING_WINDOW
        return read_rotary_config(
            hf,
            architecture="MistralForCausalLM",
            default_num_kv_heads=8,
            sliding_windows=(window,) * hf.num_layers(),
        )
