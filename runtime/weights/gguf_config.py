"""GGUF metadata and tensor names, in Hugging Face terms."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..models.errors import ModelLoadError, UnknownArchitectureError
from .gguf_header import GGUFHeader

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""GGUF architecture to Hugging Face class. Mistral is stored as llama."""

_GLOBAL_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.([a-z_]+)\.(weight|bias)")
_GLOBAL_TENSOR = re.compile(r"([a-z_]+)\.(weight|bias)")


def hf_tensor_name(name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor; None for one that has no counterpart."""
    match = _LAYER_TENSOR.fullmatch(name)
    if match is not None and match[2] in _LAYER_NAMES:
        return f"model.layers.{int(match[1])}.{_LAYER_NAMES[match[2]]}.{match[3]}"
    match = _GLOBAL_TENSOR.fullmatch(name)
    if match is not None and match[1] in _GLOBAL_NAMES:
        return f"{_GLOBAL_NAMES[match[1]]}.{match[2]}"
    return None


def hf_config(header: GGUFHeader, source: str, rope_factors: Mapping[str, list[float]]) -> dict[str, Any]:
    """Configuration in the terms of a `config.json`.

    Args:
        rope_factors: contents of the tensors `rope_freqs`, `rope_factors_short` and `rope_factors_long`, where present.

    Raises:
        UnknownArchitectureError: this GGUF architecture is not supported.
        ModelLoadError: a key is missing or describes something the supported architectures do not have.
    """
    architecture = header.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnknownArchitectureError(
            f"{source}: GGUF architecture {architecture!r} is not supported; supported are {', '.join(ARCHITECTURES)}"
        )
    keys = _Keys(header.metadata, architecture, source)
    if (keys.get("expert_count") or 0) > 0:
        raise UnknownArchitectureError(f"{source}: mixture-of-experts models are not supported")
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelLoadError(f"{source}: tensor 'token_embd.weight' is missing or not a matrix")
    hidden_size, num_heads = keys.require("embedding_length"), keys.require("attention.head_count")
    head_dim = _head_dim(keys, hidden_size, num_heads)
    rotary_dim = keys.get("rope.dimension_count") or head_dim
    return {
        "architectures": [ARCHITECTURES[architecture]],
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden_size,
        "intermediate_size": keys.require("feed_forward_length"),
        "num_hidden_layers": keys.require("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": keys.get("attention.head_count_kv") or num_heads,
        "head_dim": head_dim,
        "rms_norm_eps": keys.require("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": keys.require("context_length"),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "attention_output_bias": "blk.0.attn_output.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in header.tensors,
        "sliding_window": keys.get("attention.sliding_window") or None,
        "rope_theta": keys.get("rope.freq_base"),
        "partial_rotary_factor": rotary_dim / head_dim,
        "rope_scaling": _rope_scaling(keys, rope_factors),
        "original_max_position_embeddings": keys.get("rope.scaling.original_context_length"),
        "bos_token_id": header.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _eos_token_ids(header.metadata),
    }


class _Keys:
    """Access to the metadata of one architecture."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str, source: str) -> None:
        self._metadata = metadata
        self._architecture = architecture
        self._source = source

    def get(self, key: str) -> Any:
        """A scalar, or None. A list of equal values (one per layer) counts as that value."""
        name = f"{self._architecture}.{key}"
        value = self._metadata.get(name)
        if isinstance(value, list):
            if not value or any(item != value[0] for item in value):
                raise ModelLoadError(f"{self._source}: {name} differs between layers, which is not supported")
            value = value[0]
        expected = str if key == "rope.scaling.type" else int | float
        if value is not None and not isinstance(value, expected):
            raise self.fail(key, value, "it has the wrong type")
        return value

    def require(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise ModelLoadError(f"{self._source}: the metadata lacks {self._architecture}.{key}")
        return value

    def fail(self, key: str, value: object, limit: str) -> ModelLoadError:
        return ModelLoadError(f"{self._source}: {self._architecture}.{key}={value!r} is not supported: {limit}")


def _head_dim(keys: _Keys, hidden_size: int, num_heads: int) -> int:
    key_dim = keys.get("attention.key_length")
    if key_dim is None:
        if not isinstance(num_heads, int) or num_heads < 1 or hidden_size % num_heads:
            raise keys.fail("attention.head_count", num_heads, f"it must divide embedding_length={hidden_size}")
        key_dim = hidden_size // num_heads
    value_dim = keys.get("attention.value_length") or key_dim
    if not isinstance(key_dim, int) or key_dim < 2 or key_dim % 2 or value_dim != key_dim:
        raise keys.fail("attention.key_length", key_dim, f"it must be even and equal value_length={value_dim}")
    return key_dim


def _rope_scaling(keys: _Keys, rope_factors: Mapping[str, list[float]]) -> dict[str, Any] | None:
    scaling_type = keys.get("rope.scaling.type")
    factor = keys.get("rope.scaling.factor")
    if "rope_factors_short" in rope_factors and "rope_factors_long" in rope_factors:
        return {
            "rope_type": "longrope",
            "short_factor": rope_factors["rope_factors_short"],
            "long_factor": rope_factors["rope_factors_long"],
            "attention_factor": keys.get("rope.scaling.attn_factor"),
        }
    if "rope_freqs" in rope_factors:
        return {"rope_type": "factors", "short_factor": rope_factors["rope_freqs"]}
    if scaling_type in (None, "none"):
        return None
    if scaling_type == "linear":
        return {"rope_type": "linear", "factor": factor}
    if scaling_type == "yarn":
        return {
            "rope_type": "yarn",
            "factor": factor,
            "beta_fast": keys.get("rope.scaling.yarn_beta_fast"),
            "beta_slow": keys.get("rope.scaling.yarn_beta_slow"),
        }
    raise keys.fail("rope.scaling.type", scaling_type, "it must be one of none, linear, yarn")


def _eos_token_ids(metadata: Mapping[str, Any]) -> list[int]:
    """End-of-sequence and end-of-turn tokens."""
    names = ("eos_token_id", "eot_token_id", "eom_token_id")
    ids = [metadata.get(f"tokenizer.ggml.{name}") for name in names]
    return [token_id for token_id in ids if token_id is not None]
