"""Llama 1 to 3, SmolLM2 and their kin (Touvron et al. 2023)."""

from __future__ import annotations

from .base import ModelConfig
from .hf_config import HFConfig
from .rotary_config import read_rotary_config
from .rotary_decoder import RotaryDecoder


class LlamaForCausalLM(RotaryDecoder):
    """A `RotaryDecoder` with optional biases in attention and feed-forward."""

    @staticmethod
    def read_config(hf: HFConfig) -> ModelConfig:
        """`attention_output_bias` is our own key: GGUF files may have biases on query, key and value only."""
        attention_bias = hf.flag("attention_bias", False)
        window = hf.optional_size("sliding_window")
        return read_rotary_config(
            hf,
            architecture="LlamaForCausalLM",
            attention_bias=attention_bias,
            attention_output_bias=hf.flag("attention_output_bias", attention_bias),
            mlp_bias=hf.flag("mlp_bias", False),
            sliding_windows=(window,) * hf.num_layers(),
        )
