"""The decoder that Llama, Mistral, Qwen2 and Qwen3 share: RMS norm, rotary attention, gated SiLU feed-forward.

    hidden = embed(token_ids)
    for each layer:
        hidden += output(attention(rotate(norm?(query, key)), value))      on rms_norm(hidden)
        hidden += down(silu(gate) * up)                                    on rms_norm(hidden)
    hidden = rms_norm(hidden)

Query, key and value come from one matrix, gate and up from another, so a layer is four matrix products. Each addition
is done together with the norm that follows it, and rotation together with the store: two passes of memory less each.
With several ranks, each has a part of the heads, of the inner units and of the vocabulary (see `parallel/shards.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from ...kernels.interface import Kernels, LinearWeight
from ..parallel.group import ALONE, Group
from ..parallel.layers import row_parallel, vocab_embedding, vocab_logits
from ..parallel.shards import Shards, shard_config
from .base import ModelConfig
from .parameters import ParameterReader, Piece, columns, rows
from .rope import RotaryTable, inverse_frequencies

if TYPE_CHECKING:
    from ..batch import ForwardBatch


@dataclass(frozen=True, slots=True)
class RotaryLayer:
    """Weights of one layer. Matrices are [outputs, inputs]; None where the architecture has none."""

    input_norm: Tensor
    qkv_weight: LinearWeight
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    output_weight: LinearWeight
    output_bias: Tensor | None
    post_attention_norm: Tensor
    gate_up_weight: LinearWeight
    gate_up_bias: Tensor | None
    down_weight: LinearWeight
    down_bias: Tensor | None
    sliding_window: int | None


class RotaryDecoder:
    """Implements `Model` for the architectures of this family; see `base.Model` for the contract.

    Args:
        config: of the whole model; the attribute is that of this rank's part.
        group: the ranks that hold the parts.

    Raises:
        ModelLoadError: a tensor is missing, has another shape, or the rope parameters do not fit.
    """

    def __init__(
        self,
        config: ModelConfig,
        parameters: ParameterReader,
        kernels: Kernels,
        max_model_len: int,
        group: Group = ALONE,
    ) -> None:
        assert config.rope is not None
        self.config = shard_config(config, group)
        self.max_model_len = max_model_len
        self._kernels = kernels
        self._group = group
        self._shards = shards = Shards.of(config, group)
        self._scale = config.head_dim**-0.5
        inv_freq, attention_factor = inverse_frequencies(
            config.rope, config.head_dim, config.max_position_embeddings, max_model_len
        )
        self._rope = RotaryTable(inv_freq, attention_factor, parameters.device)
        vocab_shape = (config.vocab_size, config.hidden_size)
        vocab = rows(shards.vocab)
        self.embedding = kernels.prepare_weight(parameters.read("model.embed_tokens.weight", vocab_shape, vocab))
        self.layers = [
            read_layer(config, shards, parameters, kernels, layer_idx) for layer_idx in range(config.num_layers)
        ]
        self.final_norm = parameters.read("model.norm.weight", (config.hidden_size,))
        self.lm_head = self.embedding
        if not config.tie_word_embeddings:
            self.lm_head = kernels.prepare_weight(parameters.read("lm_head.weight", vocab_shape, vocab))

    def forward(self, batch: ForwardBatch, kv_caches: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        kernels, group, eps = self._kernels, self._group, self.config.norm_eps
        cos, sin = self._rope.at(batch.positions, max(batch.attention.context_lens))
        hidden = vocab_embedding(kernels, group, batch.token_ids, self.embedding, self._shards.vocab)
        normed = kernels.rms_norm(hidden, self.layers[0].input_norm, eps)
        next_norms = [*(layer.input_norm for layer in self.layers[1:]), self.final_norm]
        for layer, next_norm, kv_cache in zip(self.layers, next_norms, kv_caches, strict=True):
            mixed = self._attend(layer, normed, cos, sin, batch, kv_cache)
            normed, hidden = kernels.add_rms_norm(mixed, hidden, layer.post_attention_norm, eps)
            gated = kernels.silu_mul(kernels.linear(normed, layer.gate_up_weight, layer.gate_up_bias))
            fed = row_parallel(kernels, group, gated, layer.down_weight, layer.down_bias)
            normed, hidden = kernels.add_rms_norm(fed, hidden, next_norm, eps)
        return normed

    def prepare_positions(self, context_len: int) -> None:
        self._rope.table(context_len)

    def logits(self, hidden: Tensor) -> Tensor:
        return vocab_logits(self._kernels, self._group, hidden, self.lm_head, self.config.vocab_size)

    def _attend(
        self,
        layer: RotaryLayer,
        normed: Tensor,
        cos: Tensor,
        sin: Tensor,
        batch: ForwardBatch,
        kv_cache: tuple[Tensor, Tensor],
    ) -> Tensor:
        kernels, config = self._kernels, self.config
        num_tokens, num_heads, num_kv_heads = normed.shape[0], config.num_heads, config.num_kv_heads
        qkv = kernels.linear(normed, layer.qkv_weight, layer.qkv_bias)
        heads = qkv.reshape(num_tokens, num_heads + 2 * num_kv_heads, config.head_dim)
        key_cache, value_cache = kv_cache
        slots = batch.attention.slots
        if layer.query_norm is None or layer.key_norm is None:
            query = kernels.rotary_store(heads, num_kv_heads, cos, sin, key_cache, value_cache, slots)
        else:
            query, key = heads[:, :num_heads], heads[:, num_heads:-num_kv_heads]
            query = kernels.rotary(kernels.rms_norm(query, layer.query_norm, config.norm_eps), cos, sin)
            key = kernels.rotary(kernels.rms_norm(key, layer.key_norm, config.norm_eps), cos, sin)
            kernels.store_kv(key, heads[:, -num_kv_heads:], key_cache, value_cache, slots)
        mixed = kernels.attention(query, key_cache, value_cache, batch.attention, self._scale, layer.sliding_window)
        mixed = mixed.reshape(num_tokens, num_heads * config.head_dim)
        return row_parallel(kernels, self._group, mixed, layer.output_weight, layer.output_bias)


def read_layer(
    config: ModelConfig, shards: Shards, parameters: ParameterReader, kernels: Kernels, layer_idx: int
) -> RotaryLayer:
    """The rank's shards of the weights of layer `layer_idx`, fused where they are used together."""
    prefix = f"model.layers.{layer_idx}."
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    query_rows, kv_rows = config.num_heads * head_dim, config.num_kv_heads * head_dim
    qkv = [f"{prefix}self_attn.{name}_proj" for name in "qkv"]
    gate_up = [f"{prefix}mlp.{name}_proj" for name in ("gate", "up")]
    output, down = f"{prefix}self_attn.o_proj", f"{prefix}mlp.down_proj"
    qkv_pieces = [rows(shards.queries), rows(shards.keys), rows(shards.keys)]
    gate_up_pieces = [rows(shards.inner)] * 2

    def matrix(names: list[str], num_rows: list[int], num_columns: int, pieces: list[Piece]) -> LinearWeight:
        shapes = [(num, num_columns) for num in num_rows]
        return parameters.read_linear(kernels, [f"{name}.weight" for name in names], shapes, pieces)

    def bias(
        is_present: bool, names: list[str], num_rows: list[int], pieces: list[Piece] | None = None
    ) -> Tensor | None:
        if not is_present:
            return None
        return parameters.read_stacked([f"{name}.bias" for name in names], [(num,) for num in num_rows], pieces)

    def norm(name: str, size: int) -> Tensor:
        return parameters.read(f"{prefix}{name}.weight", (size,))

    return RotaryLayer(
        input_norm=norm("input_layernorm", hidden),
        qkv_weight=matrix(qkv, [query_rows, kv_rows, kv_rows], hidden, qkv_pieces),
        qkv_bias=bias(config.attention_bias, qkv, [query_rows, kv_rows, kv_rows], qkv_pieces),
        query_norm=norm("self_attn.q_norm", head_dim) if config.has_qk_norm else None,
        key_norm=norm("self_attn.k_norm", head_dim) if config.has_qk_norm else None,
        output_weight=matrix([output], [hidden], query_rows, [columns(shards.queries)]),
        output_bias=bias(config.attention_output_bias, [output], [hidden]),
        post_attention_norm=norm("post_attention_layernorm", hidden),
        gate_up_weight=matrix(gate_up, [inner, inner], hidden, gate_up_pieces),
        gate_up_bias=bias(config.mlp_bias, gate_up, [inner, inner], gate_up_pieces),
        down_weight=matrix([down], [hidden], inner, [columns(shards.inner)]),
        down_bias=bias(config.mlp_bias, [down], [hidden]),
        sliding_window=config.sliding_windows[layer_idx],
    )
