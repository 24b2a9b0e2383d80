"""OPT (Zhang et al. 2022): learned positions with an offset of 2, layer norms, a plain feed-forward.

The 350m checkpoint differs twice: its norms come after the residual sums, and its embeddings are narrower than the
model (`word_embed_proj_dim`), with projections in and out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from ...kernels.interface import Kernels, LinearWeight
from ..parallel.group import ALONE, Group
from ..parallel.layers import row_parallel, vocab_embedding, vocab_logits
from ..parallel.shards import Shards, shard_config
from .base import ModelConfig
from .hf_config import HFConfig
from .parameters import ParameterReader, Piece, columns, rows

if TYPE_CHECKING:
    from ..batch import ForwardBatch

POSITION_OFFSET = 2
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


@dataclass(frozen=True, slots=True, kw_only=True)
class OPTConfig(ModelConfig):
    """`ModelConfig` and the switches only OPT has.

    Attributes:
        embedding_size: width of the token embeddings.
        is_norm_before: layer norms precede attention and feed-forward instead of following the sums.
        has_final_norm: a layer norm follows the last layer.
        has_norm_weights: layer norms have weight and bias.
        activation: key of ACTIVATIONS.
    """

    embedding_size: int
    is_norm_before: bool
    has_final_norm: bool
    has_norm_weights: bool
    activation: str


Projection = tuple[LinearWeight, Tensor | None]
"""Weight, and bias if there is one."""


@dataclass(frozen=True, slots=True)
class OPTLayer:
    """Weights of one layer; a norm is (weight, bias)."""

    attention_norm: tuple[Tensor, Tensor]
    qkv: Projection
    output: Projection
    feed_forward_norm: tuple[Tensor, Tensor]
    up: Projection
    down: Projection


class OPTForCausalLM:
    """Implements `Model`; hidden states come out as wide as the token embeddings.

    Args:
        config: of the whole model; the attribute is that of this rank's part.
        group: the ranks that hold the parts.

    Raises:
        ModelLoadError: a tensor is missing or has another shape.
    """

    def __init__(
        self,
        config: ModelConfig,
        parameters: ParameterReader,
        kernels: Kernels,
        max_model_len: int,
        group: Group = ALONE,
    ) -> None:
        assert isinstance(config, OPTConfig)
        self.config: ModelConfig = shard_config(config, group)
        self.max_model_len = max_model_len
        self._group = group
        self._shards = shards = Shards.of(config, group)
        self._opt = config
        self._kernels = kernels
        self._scale = config.head_dim**-0.5
        self._activation = ACTIVATIONS[config.activation]
        hidden, embedding = config.hidden_size, config.embedding_size
        prefix = "model.decoder."
        num_positions = config.max_position_embeddings + POSITION_OFFSET
        vocab_shape, vocab = (config.vocab_size, embedding), rows(shards.vocab)
        self.embedding = kernels.prepare_weight(parameters.read(f"{prefix}embed_tokens.weight", vocab_shape, vocab))
        self.positions = parameters.read(f"{prefix}embed_positions.weight", (num_positions, hidden))
        self.project_in: LinearWeight | None = None
        self.project_out: LinearWeight | None = None
        if embedding != hidden:
            inward, outward = f"{prefix}project_in.weight", f"{prefix}project_out.weight"
            self.project_in = kernels.prepare_weight(parameters.read(inward, (hidden, embedding)))
            self.project_out = kernels.prepare_weight(parameters.read(outward, (embedding, hidden)))
        self.layers = [
            _read_layer(config, shards, parameters, kernels, f"{prefix}layers.{i}.") for i in range(config.num_layers)
        ]
        self.final_norm = _read_norm(config, parameters, f"{prefix}final_layer_norm") if config.has_final_norm else None
        self.lm_head = self.embedding
        if not config.tie_word_embeddings:
            self.lm_head = kernels.prepare_weight(parameters.read("lm_head.weight", vocab_shape, vocab))

    @staticmethod
    def read_config(hf: HFConfig) -> OPTConfig:
        """Raises ModelLoadError on a missing or unsupported value."""
        hidden_size, num_heads = hf.size("hidden_size"), hf.size("num_attention_heads")
        if hidden_size % num_heads:
            raise hf.fail("hidden_size", hidden_size, f"it must be a multiple of num_attention_heads={num_heads}")
        num_layers = hf.num_layers()
        has_bias = hf.flag("enable_bias", True)
        is_norm_before = hf.flag("do_layer_norm_before", True)
        return OPTConfig(
            architecture="OPTForCausalLM",
            vocab_size=hf.size("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=hf.size("ffn_dim"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=hidden_size // num_heads,
            norm_eps=1e-5,
            max_position_embeddings=hf.size("max_position_embeddings", 2048),
            rope=None,
            tie_word_embeddings=hf.flag("tie_word_embeddings", True),
            attention_bias=has_bias,
            attention_output_bias=has_bias,
            mlp_bias=has_bias,
            has_qk_norm=False,
            sliding_windows=(None,) * num_layers,
            bos_token_id=hf.token_id("bos_token_id"),
            eos_token_ids=hf.token_ids("eos_token_id"),
            embedding_size=hf.size("word_embed_proj_dim", hidden_size),
            is_norm_before=is_norm_before,
            has_final_norm=is_norm_before and not hf.flag("_remove_final_layer_norm", False),
            has_norm_weights=hf.flag("layer_norm_elementwise_affine", True),
            activation=str(hf.require("activation_function", tuple(ACTIVATIONS), "relu")),
        )

    def forward(self, batch: ForwardBatch, kv_caches: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        kernels, group, is_norm_before = self._kernels, self._group, self._opt.is_norm_before
        hidden = vocab_embedding(kernels, group, batch.token_ids, self.embedding, self._shards.vocab)
        if self.project_in is not None:
            hidden = kernels.linear(hidden, self.project_in)
        hidden = hidden + F.embedding(batch.positions + POSITION_OFFSET, self.positions)
        for layer, kv_cache in zip(self.layers, kv_caches, strict=True):
            inputs = self._norm(hidden, layer.attention_norm) if is_norm_before else hidden
            hidden = hidden + self._attend(layer, inputs, batch, kv_cache)
            if not is_norm_before:
                hidden = self._norm(hidden, layer.attention_norm)
            inputs = self._norm(hidden, layer.feed_forward_norm) if is_norm_before else hidden
            inner = self._activation(kernels.linear(inputs, *layer.up))
            hidden = hidden + row_parallel(kernels, group, inner, *layer.down)
            if not is_norm_before:
                hidden = self._norm(hidden, layer.feed_forward_norm)
        if self.final_norm is not None:
            hidden = self._norm(hidden, self.final_norm)
        return hidden if self.project_out is None else kernels.linear(hidden, self.project_out)

    def prepare_positions(self, context_len: int) -> None:
        """Positions are learned: they are all there."""

    def logits(self, hidden: Tensor) -> Tensor:
        return vocab_logits(self._kernels, self._group, hidden, self.lm_head, self.config.vocab_size)

    def _norm(self, hidden: Tensor, norm: tuple[Tensor, Tensor]) -> Tensor:
        return self._kernels.layer_norm(hidden, *norm, self.config.norm_eps)

    def _attend(self, layer: OPTLayer, inputs: Tensor, batch: ForwardBatch, kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        kernels, config = self._kernels, self.config
        qkv = kernels.linear(inputs, *layer.qkv).reshape(-1, 3, config.num_heads, config.head_dim)
        query, key, value = qkv.unbind(dim=1)
        key_cache, value_cache = kv_cache
        kernels.store_kv(key, value, key_cache, value_cache, batch.attention.slots)
        mixed = kernels.attention(query, key_cache, value_cache, batch.attention, self._scale)
        return row_parallel(kernels, self._group, mixed.reshape(-1, config.num_heads * config.head_dim), *layer.output)


def _read_norm(config: OPTConfig, parameters: ParameterReader, name: str) -> tuple[Tensor, Tensor]:
    size = config.hidden_size
    if config.has_norm_weights:
        return parameters.read(f"{name}.weight", (size,)), parameters.read(f"{name}.bias", (size,))
    ones = torch.ones(size, dtype=parameters.dtype, device=parameters.device)
    return ones, torch.zeros_like(ones)


def _read_layer(
    config: OPTConfig, shards: Shards, parameters: ParameterReader, kernels: Kernels, prefix: str
) -> OPTLayer:
    hidden, inner = config.hidden_size, config.intermediate_size

    def projection(names: list[str], num_rows: int, num_columns: int, piece: Piece) -> Projection:
        count = len(names)
        matrices, biases = [f"{prefix}{name}.weight" for name in names], [f"{prefix}{name}.bias" for name in names]
        weight = parameters.read_linear(kernels, matrices, [(num_rows, num_columns)] * count, [piece] * count)
        if not config.mlp_bias:
            return weight, None
        bias_piece = piece if piece.dim == 0 else None
        return weight, parameters.read_stacked(biases, [(num_rows,)] * count, [bias_piece] * count)

    return OPTLayer(
        attention_norm=_read_norm(config, parameters, f"{prefix}self_attn_layer_norm"),
        qkv=projection([f"self_attn.{name}_proj" for name in "qkv"], hidden, hidden, rows(shards.queries)),
        output=projection(["self_attn.out_proj"], hidden, hidden, columns(shards.queries)),
        feed_forward_norm=_read_norm(config, parameters, f"{prefix}final_layer_norm"),
        up=projection(["fc1"], inner, hidden, rows(shards.inner)),
        down=projection(["fc2"], hidden, inner, columns(shards.inner)),
    )
