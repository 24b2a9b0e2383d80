"""Hugging Face directories: what is read, and what is refused with a reason."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from ramet.kernels.interface import Kernels
from ramet.runtime.errors import RametError
from ramet.runtime.models.errors import ModelLoadError, UnknownArchitectureError
from ramet.runtime.models.registry import ARCHITECTURES
from ramet.runtime.weights.load import load_model, model_config
from ramet.runtime.weights.resolve import resolve_model
from ramet.runtime.weights.safetensors_dir import SafetensorsCheckpoint

CONFIG = LlamaConfig(
    vocab_size=50,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    eos_token_id=2,
)


@pytest.fixture
def saved(tmp_path: Path, make_hf_model: Callable[[Any], Any]) -> tuple[Path, Any]:
    hf_model = make_hf_model(CONFIG)
    path = tmp_path / "tiny"
    hf_model.save_pretrained(path)
    return path, hf_model


def edit(path: Path, **keys: Any) -> None:
    config = json.loads(path.read_text())
    config.update(keys)
    path.write_text(json.dumps(config))


def edit_weights(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")


def same_logits(path: Path, hf_model: Any, kernels: Kernels) -> bool:
    model: Any = load_model(resolve_model(path), kernels)
    hidden = torch.randn(3, 32)
    return torch.allclose(model.logits(hidden), hidden @ hf_model.lm_head.weight.T, atol=1e-5) and torch.equal(
        model.layers[1].down_weight, hf_model.model.layers[1].mlp.down_proj.weight
    )


def test_sharded(saved: tuple[Path, Any], tmp_path: Path, reference_kernels: Kernels) -> None:
    _, hf_model = saved
    path = tmp_path / "sharded"
    hf_model.save_pretrained(path, max_shard_size="20KB")
    assert len(list(path.glob("*.safetensors"))) > 2
    assert same_logits(path, hf_model, reference_kernels)


def test_weights_of_the_bare_model(saved: tuple[Path, Any], reference_kernels: Kernels) -> None:
    path, hf_model = saved

    def strip(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    edit_weights(path, strip)
    assert same_logits(path, hf_model, reference_kernels)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_stored_types_are_converted(saved: tuple[Path, Any], dtype: torch.dtype, reference_kernels: Kernels) -> None:
    path, hf_model = saved
    hf_model.to(dtype).save_pretrained(path)
    model: Any = load_model(resolve_model(path), reference_kernels, dtype=torch.float32)
    assert torch.equal(model.layers[0].output_weight, hf_model.model.layers[0].self_attn.o_proj.weight.float())
    assert model.logits(torch.randn(2, 32)).dtype == torch.float32


def test_generation_config_adds_end_tokens(saved: tuple[Path, Any]) -> None:
    path, _ = saved
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2, 9]}))
    assert model_config(resolve_model(path)).eos_token_ids == (2, 7, 9)


def test_chat_template_sources(saved: tuple[Path, Any]) -> None:
    path, _ = saved
    assert resolve_model(path).chat_template is None
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "old"}))
    assert resolve_model(path).chat_template == "old"
    (path / "chat_template.jinja").write_text("new")
    assert resolve_model(path).chat_template == "new"
    assert resolve_model(path).tokenizer_source == path


def test_identity_follows_the_weights(saved: tuple[Path, Any]) -> None:
    path, _ = saved
    before = resolve_model(path).identity
    assert resolve_model(path).identity == before
    edit_weights(path, lambda tensors: tensors.update(extra=torch.zeros(1)))
    assert resolve_model(path).identity != before


def test_unknown_architecture_lists_the_known(saved: tuple[Path, Any], reference_kernels: Kernels) -> None:
    path, _ = saved
    edit(path / "config.json", architectures=["GPT2LMHeadModel"])
    with pytest.raises(UnknownArchitectureError, match="GPT2LMHeadModel") as caught:
        load_model(resolve_model(path), reference_kernels)
    assert all(name in str(caught.value) for name in ARCHITECTURES)
    assert isinstance(caught.value, RametError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"architectures": None}, "architectures=None"),
        ({"hidden_size": None}, "lacks 'hidden_size'"),
        ({"hidden_size": 0}, "hidden_size=0"),
        ({"hidden_size": 1 << 40}, "hidden_size="),
        ({"hidden_size": 64}, r"'model.embed_tokens.weight' has shape \[50, 32\].* asks for \[50, 64\]"),
        ({"vocab_size": "many"}, "vocab_size='many'"),
        ({"num_hidden_layers": 3}, r"tensor 'model.layers.2.input_layernorm.weight' of shape \[32\] is missing"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers=1000000"),
        ({"head_dim": 200_000}, "head_dim=200000.*at most 4096"),
        ({"num_key_value_heads": 3}, "must divide num_attention_heads=4"),
        ({"head_dim": 7}, "rotary dimension 7 .* must be even"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps=nan"),
        ({"attention_bias": "yes"}, "attention_bias='yes'"),
        ({"attention_bias": True}, r"self_attn.q_proj.bias' .* is missing"),
        ({"eos_token_id": -1}, r"eos_token_id=.*-1"),
        ({"quantization_config": {"quant_method": "hqq"}}, "quantised with 'hqq'"),
        ({"max_position_embeddings": True}, "max_position_embeddings=True"),
    ],
)
def test_bad_configuration(
    saved: tuple[Path, Any], reference_kernels: Kernels, keys: dict[str, Any], message: str
) -> None:
    path, _ = saved
    edit(path / "config.json", **keys)
    with pytest.raises(ModelLoadError, match=message):
        load_model(resolve_model(path), reference_kernels)


@pytest.mark.parametrize("content", ["{", "[1]", "\x00", "[" * 100_000])
def test_configuration_that_is_no_json_object(saved: tuple[Path, Any], content: str) -> None:
    path, _ = saved
    (path / "config.json").write_text(content)
    with pytest.raises(ModelLoadError, match=r"config\.json: (not valid JSON|must hold)"):
        resolve_model(path)


def test_directory_without_configuration(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"has no config\.json"):
        resolve_model(tmp_path)


def test_pickled_weights_are_refused(saved: tuple[Path, Any]) -> None:
    path, _ = saved
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=r"pickled .*save_pretrained\(OUT\)"):
        resolve_model(path)


def test_no_weights_at_all(saved: tuple[Path, Any]) -> None:
    path, _ = saved
    (path / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"no \*\.safetensors file"):
        resolve_model(path)


def test_missing_tensor(saved: tuple[Path, Any], reference_kernels: Kernels) -> None:
    path, _ = saved
    edit_weights(path, lambda tensors: tensors.pop("model.norm.weight"))
    with pytest.raises(ModelLoadError, match=r"tensor 'model.norm.weight' of shape \[32\] is missing"):
        load_model(resolve_model(path), reference_kernels)


def test_integer_weights(saved: tuple[Path, Any], reference_kernels: Kernels) -> None:
    path, _ = saved
    edit_weights(path, lambda t: t.update({"model.norm.weight": torch.ones(32, dtype=torch.int8)}))
    with pytest.raises(ModelLoadError, match=r"'model.norm.weight' has type torch.int8"):
        load_model(resolve_model(path), reference_kernels)


@pytest.mark.parametrize("kept", [0, 5, 100, 5000])
def test_truncated_weights(saved: tuple[Path, Any], kept: int) -> None:
    path, _ = saved
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    with pytest.raises(ModelLoadError, match="not a readable safetensors file"):
        resolve_model(path)


@pytest.mark.parametrize("num_free", [0, 1])
def test_too_few_files(saved: tuple[Path, Any], num_free: int) -> None:
    """With one, the header can be read, and the weights cannot be mapped."""
    path, _ = saved
    checkpoint = SafetensorsCheckpoint(path)
    first_free = os.dup(0)
    os.close(first_free)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free + num_free, limits[1]))
    try:
        with pytest.raises(ModelLoadError, match="not a readable safetensors file"):
            checkpoint._open(path / "model.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_shard_index_is_checked(saved: tuple[Path, Any], tmp_path: Path) -> None:
    _, hf_model = saved
    path = tmp_path / "sharded"
    hf_model.save_pretrained(path, max_shard_size="20KB")
    index_path = path / "model.safetensors.index.json"
    names = json.loads(index_path.read_text())["weight_map"]
    edit(index_path, weight_map={**names, "model.norm.weight": "../tiny/model.safetensors"})
    with pytest.raises(ModelLoadError, match="not the name of a file in the directory"):
        resolve_model(path)
    edit(index_path, weight_map={**names, "model.norm.weight": "model-9.safetensors"})
    with pytest.raises(ModelLoadError, match=r"weight file 'model-9\.safetensors' is missing"):
        resolve_model(path)
    edit(index_path, weight_map={})
    with pytest.raises(ModelLoadError, match="'weight_map' is missing or empty"):
        resolve_model(path)


def test_tensor_in_two_files(saved: tuple[Path, Any]) -> None:
    path, _ = saved
    shutil.copy(path / "model.safetensors", path / "b.safetensors")
    (path / "model.safetensors").rename(path / "a.safetensors")
    with pytest.raises(ModelLoadError, match="occurs twice"):
        SafetensorsCheckpoint(path)


@pytest.mark.parametrize(
    ("max_model_len", "dtype", "message"),
    [
        (0, torch.float32, "max_model_len=0 must be at least 1"),
        (65, torch.float32, "max_model_len=65 exceeds the model's limit of 64"),
        (None, torch.int8, "dtype=torch.int8 is not supported"),
    ],
)
def test_bad_arguments(
    saved: tuple[Path, Any], reference_kernels: Kernels, max_model_len: int | None, dtype: torch.dtype, message: str
) -> None:
    path, _ = saved
    with pytest.raises(ModelLoadError, match=message):
        load_model(resolve_model(path), reference_kernels, dtype, max_model_len)
