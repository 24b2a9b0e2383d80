"""Reads the configuration of a `RotaryDecoder`: the keys Llama, Mistral, Qwen2 and Qwen3 have in common."""

from __future__ import annotations

from .base import ModelConfig
from .hf_config import MAX_HEAD_DIM, HFConfig


def read_rotary_config(
    hf: HFConfig,
    *,
    architecture: str,
    default_num_kv_heads: int | None = None,
    default_head_dim: int | None = None,
    attention_bias: bool = False,
    attention_output_bias: bool = False,
    mlp_bias: bool = False,
    has_qk_norm: bool = False,
    sliding_windows: tuple[int | None, ...] | None = None,
) -> ModelConfig:
    """The common keys; the arguments are what an architecture decides for itself.

    Raises:
        ModelLoadError: a key is missing, out of range, or asks for something this family does not compute.
    """
    hf.require("hidden_act", ("silu", "swish"), "silu")
    hidden_size, num_heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    head_dim = hf.optional_size("head_dim") or default_head_dim
    if head_dim is None:
        if hidden_size % num_heads:
            raise hf.fail("hidden_size", hidden_size, f"it must be a multiple of num_attention_heads={num_heads}")
        head_dim = hidden_size // num_heads
    if head_dim > MAX_HEAD_DIM:  # before any table of that width is made
        raise hf.fail("head_dim", head_dim, f"it must be at most {MAX_HEAD_DIM}")
    num_kv_heads = hf.size("num_key_value_heads", default_num_kv_heads or num_heads)
    if num_heads % num_kv_heads:
        raise hf.fail("num_key_value_heads", num_kv_heads, f"it must divide num_attention_heads={num_heads}")
    num_layers = hf.num_layers()
    return ModelConfig(
        architecture=architecture,
        vocab_size=hf.size("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=hf.size("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_eps=hf.positive("rms_norm_eps", 1e-6),
        max_position_embeddings=hf.size("max_position_embeddings", 2048),
        rope=hf.rope(),
        tie_word_embeddings=hf.flag("tie_word_embeddings", False),
        attention_bias=attention_bias,
        attention_output_bias=attention_output_bias,
        mlp_bias=mlp_bias,
        has_qk_norm=has_qk_norm,
        sliding_windows=sliding_windows if sliding_windows is not None else (None,) * num_layers,
        bos_token_id=hf.token_id("bos_token_id"),
        eos_token_ids=hf.token_ids("eos_token_id"),
    )


def layered_sliding_windows(hf: HFConfig) -> tuple[int | None, ...]:
    """Windows of Qwen2 and Qwen3: layers of type "sliding_attention", or those from max_window_layers on."""
    num_layers = hf.num_layers()
    window = hf.size("sliding_window", 4096) if hf.flag("use_sliding_window", False) else None
    layer_types = hf.raw.get("layer_types")
    if layer_types is None:
        first_sliding = hf.number("max_window_layers", 28)
        return tuple(window if layer_idx >= first_sliding else None for layer_idx in range(num_layers))
    known = ("full_attention", "sliding_attention")
    if (
        not isinstance(layer_types, list)
        or len(layer_types) != num_layers
        or any(item not in known for item in layer_types)
    ):
        raise hf.fail("layer_types", layer_types, f"it must list {num_layers} of {list(known)}")
    return tuple(window if item == "sliding_attention" else None for item in layer_types)
