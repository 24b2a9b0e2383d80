"""What several tests of the runtime need: the C++ sampler, compiled from its own sources alone; and tiny random models,
saved as safetensors or GGUF, for the C++ step."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Quantization
from numpy.typing import NDArray
from safetensors.numpy import save_file
from torch import Tensor

from ramet.kernels.cpu.build import SOURCE_DIR
from ramet.kernels.cpu.loader import load_cpu_library
from ramet.kernels.cpu.sampling import SamplingKernels
from ramet.runtime.batch import Batch, ScheduledSequence
from ramet.runtime.config import EngineConfig
from ramet.runtime.runner import Runner
from ramet.runtime.runner_factory import RUNNERS, LoadedRunner, RunnerSpec
from ramet.runtime.weights.gguf_config import hf_tensor_name
from ramet.runtime.weights.resolve import resolve_model

Array = NDArray[np.float32]
KernelsFor = Callable[[str | None, int], SamplingKernels]
TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 101,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="session")
def sampling_kernels(tmp_path_factory: pytest.TempPathFactory) -> KernelsFor:
    """Kernels for (instruction set, number of threads); None is the best instruction set of this machine."""
    source_dir = tmp_path_factory.mktemp("sampling_src")
    for source in SOURCE_DIR.glob("sampling*"):
        shutil.copy(source, source_dir)
    cache_dir = tmp_path_factory.mktemp("sampling_cache")

    @cache
    def library(isa: str | None):
        return load_cpu_library(
            isa, cache_dir, None, lambda text: None, source_dir=source_dir, prebuilt_dir=cache_dir / "prebuilt"
        )

    return lambda isa, num_threads: SamplingKernels(library(isa).cdll, num_threads)


@dataclass(frozen=True)
class TinyModel:
    """A random model of transformers' names and shapes; its matrices hold what 8 bits in groups of 32 can hold."""

    config: dict[str, Any]
    tensors: dict[str, Array]

    def save(self, directory: Path) -> Path:
        """As a Hugging Face directory without a tokenizer."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.json").write_text(json.dumps(self.config), encoding="utf-8")
        save_file(self.tensors, directory / "model.safetensors")
        return directory

    def save_gguf(self, path: Path, type_of: Callable[[str], Quantization]) -> Path:
        """As a GGUF file of a llama, each matrix of the type that `type_of` says for its name."""
        config = self.config
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_embedding_length(config["hidden_size"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count(config["num_attention_heads"])
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_rope_freq_base(config["rope_theta"])
        writer.add_token_list([f"<{idx}>" for idx in range(config["vocab_size"])])
        for name, array in self.tensors.items():
            kind = type_of(name) if array.ndim == 2 else Quantization.F32
            writer.add_tensor(_gguf_name(name, config), _quantized(self._stored_rows(name), kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _stored_rows(self, name: str) -> Array:
        """Query and key rows of llama files are ordered for rotary pairs (2i, 2i + 1)."""
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
        array = self.tensors[name]
        for key, num_heads in heads.items():
            if key in name:
                pairs = array.reshape(self.config[num_heads], 2, -1, *array.shape[1:])
                return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)
        return array


def _gguf_name(name: str, config: dict[str, Any]) -> str:
    stem, suffix = name.rsplit(".", 1)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    found = f"{names.get_name(stem)}.{suffix}"
    assert hf_tensor_name(found) == name
    return found


def _quantized(rows: Array, kind: Quantization) -> NDArray[Any]:
    if kind is not Quantization.Q4_K:
        return gguf.quantize(rows, kind)
    # The package only reads this type: d and dmin 0.01, random scales and values of the size that weights have.
    blocks = np.random.default_rng(rows.size).integers(0, 256, size=(rows.shape[0], rows.shape[1] // 256, 144))
    blocks[..., :4] = np.array([2e-4, 1.5e-3], dtype=np.float16).view(np.uint8)
    return blocks.astype(np.uint8).reshape(rows.shape[0], -1)


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    architecture = config["architectures"][0]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    has_bias = config.get("attention_bias", architecture == "Qwen2ForCausalLM")
    for idx in range(config["num_hidden_layers"]):
        matrices = {
            "self_attn.q_proj": (queries, hidden, has_bias),
            "self_attn.k_proj": (keys, hidden, has_bias),
            "self_attn.v_proj": (keys, hidden, has_bias),
            "self_attn.o_proj": (hidden, queries, config.get("attention_bias", False)),
            "mlp.gate_proj": (inner, hidden, config.get("mlp_bias", False)),
            "mlp.up_proj": (inner, hidden, config.get("mlp_bias", False)),
            "mlp.down_proj": (hidden, inner, config.get("mlp_bias", False)),
        }
        norms = ["input_layernorm", "post_attention_layernorm"]
        shapes |= {f"model.layers.{idx}.{name}.weight": (hidden,) for name in norms}
        if architecture == "Qwen3ForCausalLM":
            shapes |= {f"model.layers.{idx}.self_attn.{name}_norm.weight": (head_dim,) for name in "qk"}
        for name, (num_outputs, num_inputs, is_biased) in matrices.items():
            shapes[f"model.layers.{idx}.{name}.weight"] = (num_outputs, num_inputs)
            if is_biased:
                shapes[f"model.layers.{idx}.{name}.bias"] = (num_outputs,)
    return shapes


def _random_tensor(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    noise = rng.normal(size=shape)
    if "norm" in name:
        return (1 + 0.2 * noise).astype(np.float32)
    if len(shape) == 1:
        return (0.3 * noise).astype(np.float32)
    weights = (noise * (1.0 if "embed" in name else 0.15)).astype(np.float32)
    if shape[1] % 32:
        return weights
    groups = weights.reshape(shape[0], -1, 32)
    scales = (np.abs(groups).max(-1, keepdims=True) / 127).astype(np.float16).astype(np.float32)
    return (np.clip(np.rint(groups / scales), -127, 127) * scales).astype(np.float32).reshape(shape)


@pytest.fixture(scope="session")
def make_tiny_model() -> Callable[..., TinyModel]:
    """make_tiny_model(seed=0, **config): TINY with other keys."""

    def make(seed: int = 0, **config: Any) -> TinyModel:
        full = TINY | config
        rng = np.random.default_rng(seed)
        return TinyModel(full, {name: _random_tensor(name, shape, rng) for name, shape in _shapes(full).items()})

    return make


@pytest.fixture(scope="session")
def load_runner() -> Callable[..., LoadedRunner]:
    """load_runner(path, kernels, num_threads=1, **engine options)."""

    def load(path: Path | str, kernels: str, num_threads: int = 1, **options: Any) -> LoadedRunner:
        merged: dict[str, Any] = {"num_blocks": 64} | options
        config = EngineConfig(**merged)
        spec = RunnerSpec(checkpoint=resolve_model(path), config=config, device="cpu", num_threads=num_threads)
        return RUNNERS[kernels].load(spec)

    return load


@dataclass
class PagedSequence:
    """The part of a Sequence and of its block table that a runner reads."""

    token_ids: list[int]
    block_ids: list[int]

    @property
    def block_table(self) -> PagedSequence:
        return self

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


@pytest.fixture(scope="session")
def paged_sequence() -> type[PagedSequence]:
    return PagedSequence


@pytest.fixture(scope="session")
def forward_parts() -> Callable[..., list[Tensor]]:
    """forward_parts(runner, [(PagedSequence, start, end), ...]): the logits of all those tokens, a tensor each."""

    def forward(runner: Runner, parts: Sequence[tuple[PagedSequence, int, int]], **batch_fields: Any) -> list[Tensor]:
        scheduled = [ScheduledSequence(cast(Any, sequence), start, end - start, 0) for sequence, start, end in parts]
        logits = runner.forward(Batch(scheduled=scheduled, **batch_fields))
        return list(logits.split([end - start for _, start, end in parts]))

    return forward
