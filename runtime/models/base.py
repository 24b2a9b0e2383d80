"""What the engine knows of a model: its sizes (`ModelConfig`) and its two operations (`Model`).

Every architecture lives in its own file beside this one, and `registry.py` names them. A model computes the flattened
tokens of a step with the ops of `kernels/interface.py`; it holds weights and nothing that belongs to a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from ..batch import ForwardBatch

RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope", "factors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding and how it is stretched beyond the trained length. `rope.py` has the formulas.

    Attributes:
        type: "factors" divides each frequency by its entry in `short_factors` (how GGUF stores llama3 scaling).
        theta: base of the wavelengths.
        partial_rotary_factor: fraction of each head's dimensions that is rotated, in (0, 1].
        factor: how much longer than the trained length the context became (1 where nothing is stretched).
        original_max_position_embeddings: the trained length in tokens, where it differs from the model's limit.
        attention_factor: scales cos and sin (yarn, longrope); None derives it from `factor`.
        beta_fast, beta_slow, mscale, mscale_all_dim, is_truncated: parameters of yarn.
        low_freq_factor, high_freq_factor: parameters of llama3.
        short_factors, long_factors: one divisor per frequency (longrope).
    """

    type: RopeType = "default"
    theta: float = 10000.0
    partial_rotary_factor: float = 1.0
    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    is_truncated: bool = True
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and switches of a decoder-only transformer. Sizes are counts, never bytes.

    Attributes:
        architecture: the Hugging Face class name, a key of the registry.
        hidden_size: width of what `Model.forward` computes between layers.
        max_position_embeddings: longest context the checkpoint states, in tokens.
        rope: None where positions are learned.
        attention_bias: query, key and value projections have a bias.
        attention_output_bias: the output projection has one.
        has_qk_norm: query and key heads pass an RMS norm before rotation.
        sliding_windows: per layer, how many positions a token sees, itself included; None sees all.
        eos_token_ids: tokens that end a generation, from the checkpoint's configuration.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    max_position_embeddings: int
    rope: RopeConfig | None
    tie_word_embeddings: bool
    attention_bias: bool
    attention_output_bias: bool
    mlp_bias: bool
    has_qk_norm: bool
    sliding_windows: tuple[int | None, ...]
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]


class Model(Protocol):
    """A loaded model, or one rank's part of it. Not thread-safe against its own KV caches: one step at a time.

    Attributes:
        config: its sizes; of a part, those of the part, but for the vocabulary and the hidden states, which are whole.
        max_model_len: most tokens of one sequence, prompt and output together.
    """

    config: ModelConfig
    max_model_len: int

    def forward(self, batch: ForwardBatch, kv_caches: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Hidden states [T, W] after the final norm, W being what `logits` takes. Mutates `kv_caches`, one
        (key, value) pair a layer: the step's own keys and values are written to `batch.attention.slots`."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Rows of hidden states [R, W] to fp32 logits [R, vocab_size]. Costs one pass over the vocabulary matrix. With
        several ranks only the first gets them; the others get something of R rows that nobody reads."""
        ...

    def prepare_positions(self, context_len: int) -> None:
        """Compute now what depends on positions below `context_len` (rotary tables), so that `forward` allocates
        nothing for it and finds it where it was. Costs memory in proportion to the length."""
        ...
