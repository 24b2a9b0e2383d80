"""Models with random weights, made on the spot: no file, no network. Ours and transformers' get the same numbers."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ramet.runtime.config import EngineConfig
from ramet.runtime.models.errors import ModelLoadError
from ramet.runtime.models.parameters import Piece
from ramet.runtime.runner_factory import build_runner
from ramet.runtime.runner_spec import LoadedRunner, RunnerSpec
from ramet.runtime.weights.base import Checkpoint, QuantizedRows
from ramet.runtime.weights.resolve import resolve_model

from .packages import missing_packages
from .settings import BLOCK_SIZE, Settings

GIB = 1 << 30
_COMMON = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5}
SHAPES: dict[str, dict[str, Any]] = {
    "llama-8b": {
        **_COMMON,
        **{"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "vocab_size": 128_256},
        **{"num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131_072},
        **{"rope_theta": 500_000.0, "tie_word_embeddings": False, "bos_token_id": 128_000, "eos_token_id": 128_001},
    },
    "smollm2": {
        **_COMMON,
        **{"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "vocab_size": 49_152},
        **{"num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192},
        **{"rope_theta": 100_000.0, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2},
    },
    "small": {
        **_COMMON,
        **{"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "vocab_size": 2048},
        **{"num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 4096},
        **{"rope_theta": 10_000.0, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2},
    },
    "tiny": {
        **_COMMON,
        **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 300},
        **{"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 512},
        **{"rope_theta": 10_000.0, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2},
    },
}
"""Configurations as in a Hugging Face config.json. "smollm2" stands for the bundled model where that is missing."""

_KV_CACHE_BYTES = {"llama-8b": 40 * GIB, "smollm2": 8 * GIB, "small": GIB, "tiny": 1 << 20}
_MAX_MODEL_LEN = 24_576
_DEVIATION = 0.02
_TAPE_LEN = 1 << 24


class RandomCheckpoint:
    """Implements `Checkpoint`: normal weights, norms of one. A tensor is a stretch of one tape of random numbers, since
    drawing eight billion of them would take a minute; where it begins depends on the tensor's name."""

    chat_template = None

    def __init__(self, name: str, config: dict[str, Any]) -> None:
        self.path = Path(f"random-{name}")
        self.tokenizer_source = self.path
        self.identity = f"random:{name}"
        self.config = config
        self._shapes = _llama_shapes(config)
        self._tape = torch.randn(_TAPE_LEN, generator=torch.Generator().manual_seed(0)) * _DEVIATION
        self._tapes = {torch.float32: self._tape}

    def tensor_names(self) -> Sequence[str]:
        return list(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def read_into(self, name: str, out: Tensor, piece: Piece | None = None) -> None:
        """See `TensorSource.read_into`. A piece is cut from the whole tensor, made for it."""
        if piece is not None:
            whole = torch.empty(self._shapes[name], dtype=out.dtype)
            self.read_into(name, whole)
            out.copy_(whole.narrow(piece.dim, piece.start, piece.stop - piece.start))
            return
        if len(self._shapes[name]) == 1:
            out.fill_(1.0)
            return
        if out.dtype not in self._tapes:
            self._tapes[out.dtype] = self._tape.to(out.dtype)
        tape = self._tapes[out.dtype]
        flat, start = out.view(-1), zlib.crc32(name.encode()) % _TAPE_LEN
        filled = 0
        while filled < flat.numel():
            count = min(flat.numel() - filled, _TAPE_LEN - start)
            flat[filled : filled + count] = tape[start : start + count]
            filled, start = filled + count, 0

    def quantized_type(self, name: str) -> str | None:
        return None

    def quantized_rows(self, name: str) -> QuantizedRows:
        raise ModelLoadError(f"{self.path}: {name} is not quantised")


def _llama_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv_rows = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    for layer_idx in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer_idx}."
        for name, rows in (("q", hidden), ("k", kv_rows), ("v", kv_rows), ("o", hidden)):
            shapes[f"{prefix}self_attn.{name}_proj.weight"] = (rows, hidden)
        shapes[f"{prefix}mlp.gate_proj.weight"] = shapes[f"{prefix}mlp.up_proj.weight"] = (inner, hidden)
        shapes[f"{prefix}mlp.down_proj.weight"] = (hidden, inner)
        shapes[f"{prefix}input_layernorm.weight"] = shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
    return shapes


class ModelStore:
    """Checkpoints and runners by name, made at the first use and kept for later parts.

    Attributes:
        notes: what was taken in place of something that is missing.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, settings: Settings) -> None:
        self.notes: list[str] = []
        self._device = device
        self._dtype = dtype
        self._settings = settings
        self._checkpoints: dict[str, Checkpoint] = {}
        self._loaded: dict[str, LoadedRunner] = {}

    def checkpoint(self, name: str) -> Checkpoint:
        """The bundled model for "smollm2", if it is installed; random weights otherwise."""
        if name not in self._checkpoints:
            self._checkpoints[name] = self._open(name)
        return self._checkpoints[name]

    def config(self, name: str, **options: Any) -> EngineConfig:
        """Options of an engine over this model."""
        is_cuda = self._device.type == "cuda"
        own: dict[str, Any] = {
            "seed": 0,
            "block_size": BLOCK_SIZE,
            "kv_cache_memory": _KV_CACHE_BYTES[name],
            "max_model_len": min(_MAX_MODEL_LEN, self.checkpoint(name).config["max_position_embeddings"]),
            "max_num_batched_tokens": 8192 if is_cuda else 256,
            "overlap_schedule": is_cuda,
            "dtype": str(self._dtype).removeprefix("torch."),
        }
        return EngineConfig(**{**own, **options})

    def load(self, name: str, **options: Any) -> LoadedRunner:
        """A runner over a pool of its own; the same one again where no options are given."""
        if not options and name in self._loaded:
            return self._loaded[name]
        spec = RunnerSpec(
            checkpoint=self.checkpoint(name),
            config=self.config(name, **options),
            device=str(self._device),
            num_threads=torch.get_num_threads(),
        )
        loaded = build_runner(("triton",), spec)
        if not options:
            self._loaded[name] = loaded
        return loaded

    def unload(self, name: str) -> None:
        """Forget its runner and checkpoint, and the memory they take."""
        self._loaded.pop(name, None)
        self._checkpoints.pop(name, None)

    def _open(self, name: str) -> Checkpoint:
        if name == "smollm2":
            try:
                if "gguf" not in missing_packages():
                    return resolve_model("smollm2")
            except ModelLoadError:
                pass
            self.notes.append("The bundled model cannot be read here: smollm2 has its shape and random weights.")
        return RandomCheckpoint(name, SHAPES[name])
