"""Every rope scaling equals transformers: the frequencies at real sizes, and the logits of tiny models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ramet.kernels.interface import Kernels
from ramet.runtime.models.base import Model, RopeConfig
from ramet.runtime.models.errors import ModelLoadError
from ramet.runtime.models.hf_config import HFConfig
from ramet.runtime.models.rope import CHUNK_LEN, RotaryTable, inverse_frequencies
from ramet.runtime.weights.load import model_config
from ramet.runtime.weights.resolve import resolve_model

HEAD_DIM = 16
SIZES: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 61,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
SHORT = [1.0 + 0.1 * i for i in range(HEAD_DIM // 2)]
LONG = [1.5 + 0.9 * i for i in range(HEAD_DIM // 2)]
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 500.0},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "yarn-parameters": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 8.0,
        "beta_slow": 2.0,
        "mscale": 0.7,
        "mscale_all_dim": 0.5,
        "truncate": False,
    },
    "yarn-attention-factor": {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 32,
        "attention_factor": 0.8,
    },
    "longrope": {
        "rope_type": "longrope",
        "short_factor": SHORT,
        "long_factor": LONG,
        "original_max_position_embeddings": 40,
    },
    "longrope-attention-factor": {
        "rope_type": "longrope",
        "short_factor": SHORT,
        "long_factor": LONG,
        "original_max_position_embeddings": 40,
        "attention_factor": 1.2,
        "factor": 3.0,
    },
}


def tiny_config(scaling: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(**SIZES, rope_parameters={"rope_theta": 10000.0, **scaling})


@pytest.mark.parametrize("name", SCALINGS)
def test_logits_equal_transformers(name: str, check_equal: Callable[..., Model], reference_kernels: Kernels) -> None:
    lens = (40, 7) if name.startswith("longrope") else (64, 7)
    assert check_equal(tiny_config(SCALINGS[name]), reference_kernels, lens).max_model_len >= lens[0]


@pytest.mark.parametrize("name", ["longrope", "longrope-attention-factor"])
def test_longrope_beyond_its_original_length(
    name: str, check_equal: Callable[..., Model], reference_kernels: Kernels
) -> None:
    model = check_equal(tiny_config(SCALINGS[name]), reference_kernels, (64, 41), max_model_len=64)
    assert model.max_model_len == 64


REAL_CONFIGS = {
    "llama-3.1": {
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "qwen2.5-yarn": {
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1000000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32768,
        },
    },
    "yarn-derived-factor": {
        "head_dim": 64,
        "max_position_embeddings": 65536,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": None,
            "original_max_position_embeddings": 4096,
        },
    },
    "linear-partial": {
        "head_dim": 64,
        "max_position_embeddings": 4096,
        "rope_parameters": {
            "rope_type": "linear",
            "rope_theta": 10000.0,
            "factor": 2.5,
            "partial_rotary_factor": 0.5,
        },
    },
}


@pytest.mark.parametrize("name", REAL_CONFIGS)
def test_frequencies_at_real_sizes(name: str) -> None:
    keys = {"hidden_size": 512, "num_attention_heads": 4, **REAL_CONFIGS[name]}
    rope = HFConfig(keys, name).rope()
    limit = int(str(keys["max_position_embeddings"]))
    inv_freq, attention_factor = inverse_frequencies(rope, int(str(keys["head_dim"])), limit, limit)
    hf: Any = LlamaConfig(**keys)
    expected, expected_factor = ROPE_INIT_FUNCTIONS[hf.rope_parameters["rope_type"]](hf)
    torch.testing.assert_close(inv_freq, expected, atol=0, rtol=1e-6)
    assert attention_factor == pytest.approx(expected_factor)


def write_config(path: Path, **keys: Any) -> Path:
    (path / "config.json").write_text(json.dumps({**SIZES, **keys}))
    (path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return path


def test_configuration_of_transformers_4(tmp_path: Path) -> None:
    scaling = {"type": "linear", "factor": 2.0}
    rope = model_config(resolve_model(write_config(tmp_path, rope_theta=5000.0, rope_scaling=scaling))).rope
    assert rope == RopeConfig(type="linear", theta=5000.0, factor=2.0)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rope_scaling": {"rope_type": "spiral"}}, "rope_type='spiral'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "lacks 'factor'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -1.0}}, "factor=-1.0"),
        ({"rope_theta": "big"}, "rope_theta='big'"),
        ({"rope_theta": 0.5}, "must be above 1"),
        ({"partial_rotary_factor": 1.5}, r"must lie in \(0, 1\]"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": ["x"]}}, "short_factor"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "one set of parameters"),
    ],
)
def test_bad_rope_parameters(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        model_config(resolve_model(write_config(tmp_path, **keys)))


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope", "llama3", "default"])
def test_context_beyond_the_scaling_is_refused(
    rope_type: str, check_equal: Callable[..., Model], reference_kernels: Kernels
) -> None:
    message = "dynamic rope scaling changes" if rope_type == "dynamic" else "max_model_len=65 exceeds"
    with pytest.raises(ModelLoadError, match=message):
        check_equal(tiny_config(SCALINGS[rope_type]), reference_kernels, max_model_len=65)


def test_linear_scaling_reaches_further(check_equal: Callable[..., Model], reference_kernels: Kernels) -> None:
    assert check_equal(tiny_config(SCALINGS["linear"]), reference_kernels, (90,)).max_model_len == 256


def test_wrong_number_of_longrope_factors() -> None:
    rope = RopeConfig(type="longrope", short_factors=(1.0,) * 3, original_max_position_embeddings=40)
    with pytest.raises(ModelLoadError, match="short_factor has 3 entries, the rotary dimension needs 8"):
        inverse_frequencies(rope, HEAD_DIM, 64, 40)


def test_table_values_do_not_depend_on_how_it_grew() -> None:
    inv_freq, factor = inverse_frequencies(RopeConfig(), 64, 1 << 15, 1 << 15)
    cpu = torch.device("cpu")
    grown, at_once = RotaryTable(inv_freq, factor, cpu), RotaryTable(inv_freq, factor, cpu)
    positions = torch.tensor([0, 1, CHUNK_LEN - 1, CHUNK_LEN, 5 * CHUNK_LEN + 3])
    for context_len in (1, CHUNK_LEN + 1, 3 * CHUNK_LEN, 5 * CHUNK_LEN + 4):
        grown.at(positions[:1], context_len)
    for ours, other in zip(grown.at(positions, 1), at_once.at(positions, 5 * CHUNK_LEN + 4), strict=True):
        assert torch.equal(ours, other)
    torch.testing.assert_close(
        at_once.at(positions, 1)[0], (positions[:, None].double() * inv_freq.double()).cos().float(), atol=2e-3, rtol=0
    )
