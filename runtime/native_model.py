"""NativeModel: a Llama-family checkpoint packed for the C++ kernels, and the whole model as they see it.

GGUF's Q4_0, Q4_1, Q4_K and Q8_0 blocks are repacked from their bits; other types, and the plain numbers of safetensors,
are quantised to 8 bits in groups of 32 on the way, one tensor at a time. The weights of a small model are then unpacked
to planes of bytes for good, which makes it faster; those of a large one stay as small as they came and are unpacked
whenever they are used. Results have the same bits.
"""

from __future__ import annotations

import ctypes
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..kernels.cpu.library import Config, Layer, Linear
from ..kernels.cpu.memory import MemoryArena
from ..kernels.cpu.packed_matrix import GROUP, NotFiniteError, PackedMatrix, Source
from .models.base import ModelConfig
from .models.errors import ModelLoadError
from .models.parameters import ParameterReader, ProgressCallback
from .models.rope import RotaryTable, inverse_frequencies
from .weights.base import Checkpoint

logger = logging.getLogger(__name__)

BLOCK_SIZE = 16
MAX_QUERY_GROUP = 64
MAX_PLANE_BYTES = 512 << 20
"""A decode step reads all weights once. Up to here reading more bytes costs less than unpacking them; well beyond it
memory is what is short."""
MAX_COARSE_SHARE = 0.01
"""Of a matrix's groups of 4 bits: with more that one plane of 8 bits a row cannot hold, it gets two."""

_DIRECT_SOURCES = {source.name: source for source in Source if source is not Source.F32}
_ONE_PLANE = {"Q4_0", "Q4_1", "Q4_K"}


def unsupported_reason(config: ModelConfig) -> str | None:
    """Why the C++ kernels cannot compute a model; None if they can."""
    if config.rope is None or config.architecture == "OPTForCausalLM":
        return f"they compute Llama-family models, not {config.architecture}"
    group = config.num_heads // config.num_kv_heads
    checks = (
        ("hidden_size", config.hidden_size, GROUP),
        ("intermediate_size", config.intermediate_size, GROUP),
        ("head_dim", config.head_dim, 16),
        ("query heads of a kv head times head_dim", group * config.head_dim, GROUP),
    )
    for name, value, multiple in checks:
        if value % multiple:
            return f"{name}={value} is not a multiple of {multiple}"
    if group > MAX_QUERY_GROUP:
        return f"{group} query heads share a kv head; at most {MAX_QUERY_GROUP} may"
    return None


def num_plane_bytes(checkpoint: Checkpoint) -> int:
    """What a checkpoint's matrices take as planes: a byte for each weight of 4 bits, two for any other."""
    total = 0
    for name in checkpoint.tensor_names():
        shape = checkpoint.shape(name)
        if len(shape) == 2:
            total += math.prod(shape) * (1 if checkpoint.quantized_type(name) in _ONE_PLANE else 2)
    return total


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor on its way into a matrix: source row i becomes row `row_of[i]`."""

    name: str
    row_of: NDArray[np.int32]


class NativeModel:
    """The weights of a model in the C++ kernels' layout.

    Args:
        library: the loaded C++ library, declared.
        arena: where the weights go.

    Raises:
        ModelLoadError: a tensor is missing, damaged or has another shape.
        MemoryError: the weights do not fit.

    Attributes:
        rope: cos and sin by position.
        requantized_types: GGUF types that were quantised anew, to 8 bits.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        arena: MemoryArena,
        checkpoint: Checkpoint,
        config: ModelConfig,
        max_model_len: int,
        num_threads: int,
        on_progress: ProgressCallback | None = None,
    ) -> None:
        assert unsupported_reason(config) is None
        assert config.rope is not None
        self.config = config
        self.max_model_len = max_model_len
        self.requantized_types: set[str] = set()
        self.num_weight_bytes = 0
        self._library, self._arena, self._num_threads = library, arena, num_threads
        self._checkpoint = checkpoint
        self._has_planes = num_plane_bytes(checkpoint) <= MAX_PLANE_BYTES
        self._vectors: list[NDArray[np.float32]] = []  # what the structures point at
        self._parameters = ParameterReader(checkpoint, torch.float32, torch.device("cpu"), on_progress)
        inv_freq, attention_factor = inverse_frequencies(
            config.rope, config.head_dim, config.max_position_embeddings, max_model_len
        )
        self.rope = RotaryTable(inv_freq, attention_factor, torch.device("cpu"))
        self.rotary_dim = 2 * inv_freq.shape[0]
        vocab = (config.vocab_size, config.hidden_size)
        self.embedding = self._matrix([_whole("model.embed_tokens.weight", vocab[0])], *vocab)
        self.lm_head = self.embedding
        if not config.tie_word_embeddings:
            self.lm_head = self._matrix([_whole("lm_head.weight", vocab[0])], *vocab)
        self._final_norm = self._vector(["model.norm.weight"], [config.hidden_size])
        self._layers = (Layer * config.num_layers)()
        for layer_idx in range(config.num_layers):
            self._read_layer(layer_idx, self._layers[layer_idx])
        self._parameters.finish()
        if self.requantized_types:
            logger.warning(
                "%s: weights of type %s are quantised to 8 bits in groups of 32 for the C++ kernels",
                checkpoint.path,
                ", ".join(sorted(self.requantized_types)),
            )

    def struct(self, kv_data: int, kv_block_stride: int) -> Config:
        """The model as the library takes it; it points into this object, which must outlive it."""
        config = self.config
        return Config(
            num_layers=config.num_layers,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            vocab_size=config.vocab_size,
            rotary_dim=self.rotary_dim,
            norm_eps=config.norm_eps,
            final_norm=self._final_norm,
            embedding=self.embedding.struct,
            lm_head=self.lm_head.struct,
            layers=self._layers,
            kv_data=kv_data,
            kv_block_stride=kv_block_stride,
        )

    def _read_layer(self, layer_idx: int, layer: Layer) -> None:
        config, prefix = self.config, f"model.layers.{layer_idx}."
        hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
        query_rows, kv_rows = config.num_heads * head_dim, config.num_kv_heads * head_dim
        layer.input_norm = self._vector([f"{prefix}input_layernorm.weight"], [hidden])
        layer.post_attention_norm = self._vector([f"{prefix}post_attention_layernorm.weight"], [hidden])
        if config.has_qk_norm:
            layer.query_norm = self._vector([f"{prefix}self_attn.q_norm.weight"], [head_dim])
            layer.key_norm = self._vector([f"{prefix}self_attn.k_norm.weight"], [head_dim])
        layer.sliding_window = config.sliding_windows[layer_idx] or 0
        qkv = [
            (f"{prefix}self_attn.{name}_proj", rows)
            for name, rows in zip("qkv", (query_rows, kv_rows, kv_rows), strict=True)
        ]
        layer.qkv = self._linear(qkv, hidden, has_bias=config.attention_bias)
        output = [(f"{prefix}self_attn.o_proj", hidden)]
        layer.output = self._linear(output, query_rows, has_bias=config.attention_output_bias)
        layer.gate_up = self._gate_up(f"{prefix}mlp.gate_proj", f"{prefix}mlp.up_proj", inner, hidden)
        layer.down = self._linear([(f"{prefix}mlp.down_proj", hidden)], inner, has_bias=config.mlp_bias)

    def _linear(self, names: Sequence[tuple[str, int]], num_inputs: int, *, has_bias: bool) -> Linear:
        """Matrices side by side; `names` are tensors without ".weight", and their rows."""
        linear = Linear(num_parts=len(names))
        for idx, (name, num_rows) in enumerate(names):
            linear.parts[idx] = self._matrix([_whole(f"{name}.weight", num_rows)], num_rows, num_inputs).struct
        if has_bias:
            linear.bias = self._vector([f"{name}.bias" for name, _ in names], [num_rows for _, num_rows in names])
        return linear

    def _gate_up(self, gate: str, up: str, num_rows: int, num_inputs: int) -> Linear:
        """One matrix in which blocks of 16 gate rows and 16 up rows alternate."""
        rows = np.arange(num_rows, dtype=np.int32)
        gate_rows = rows // 16 * 32 + rows % 16
        parts = [Part(f"{gate}.weight", gate_rows), Part(f"{up}.weight", gate_rows + np.int32(16))]
        linear = Linear(num_parts=1)
        linear.parts[0] = self._matrix(parts, 2 * num_rows, num_inputs).struct
        if self.config.mlp_bias:
            biases = self._read_vectors([f"{gate}.bias", f"{up}.bias"], [num_rows, num_rows])
            interleaved = np.empty_like(biases)
            interleaved[gate_rows], interleaved[gate_rows + 16] = biases[:num_rows], biases[num_rows:]
            linear.bias = self._keep(interleaved)
        return linear

    def _vector(self, names: list[str], sizes: list[int]) -> int:
        """Address of fp32 vectors one after another, read and kept."""
        return self._keep(self._read_vectors(names, sizes))

    def _read_vectors(self, names: list[str], sizes: list[int]) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = self._parameters.read_stacked(names, [(size,) for size in sizes]).numpy()
        for name, vector in zip(names, np.split(vectors, np.cumsum(sizes)[:-1]), strict=True):
            if not np.isfinite(vector).all():
                raise ModelLoadError(f"{self._checkpoint.path}: tensor {name!r}: weights are not finite")
        return vectors

    def _keep(self, vector: NDArray[np.float32]) -> int:
        self._vectors.append(vector)
        return vector.ctypes.data

    def _matrix(self, parts: Sequence[Part], num_outputs: int, num_inputs: int) -> PackedMatrix:
        """A matrix packed from one tensor or several; of several types, 8 bits serve all."""
        for part in parts:
            self._parameters.check(part.name, (len(part.row_of), num_inputs))
        types = {self._checkpoint.quantized_type(part.name) for part in parts}
        (source,) = {_DIRECT_SOURCES.get(kind or "", Source.F32) for kind in types} if len(types) == 1 else {Source.F32}
        if source is Source.F32:
            self.requantized_types |= {kind for kind in types if kind is not None}
        matrix = self._packed(parts, source, num_outputs, num_inputs)
        if matrix.num_coarse_groups * GROUP > MAX_COARSE_SHARE * num_outputs * num_inputs:
            self.requantized_types |= {kind for kind in types if kind is not None}
            matrix = self._packed(parts, Source.F32, num_outputs, num_inputs)
        matrix.finish(self._num_threads)
        self.num_weight_bytes += matrix.num_bytes
        for _ in parts:
            self._parameters.advance()
        return matrix

    def _packed(self, parts: Sequence[Part], source: Source, num_outputs: int, num_inputs: int) -> PackedMatrix:
        matrix = PackedMatrix(self._library, self._arena, source, num_outputs, num_inputs, is_planes=self._has_planes)
        for part in parts:
            try:
                matrix.pack(self._source_rows(part, source, num_inputs), part.row_of, self._num_threads)
            except NotFiniteError as error:
                raise ModelLoadError(f"{self._checkpoint.path}: tensor {part.name!r}: {error}") from error
        return matrix

    def _source_rows(self, part: Part, source: Source, num_inputs: int) -> NDArray[np.uint8] | NDArray[np.float32]:
        if source is not Source.F32:
            return self._checkpoint.quantized_rows(part.name).rows
        values = torch.empty((len(part.row_of), num_inputs), dtype=torch.float32)
        self._checkpoint.read_into(part.name, values)
        if not bool(torch.isfinite(values).all()):
            raise NotFiniteError("weights are not finite")
        rows: NDArray[np.float32] = values.numpy()
        return rows


def _whole(name: str, num_rows: int) -> Part:
    return Part(name, np.arange(num_rows, dtype=np.int32))
