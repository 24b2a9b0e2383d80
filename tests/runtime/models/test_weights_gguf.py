"""GGUF files: written here with the `gguf` package from tiny models, read back through our loader."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Quantization
from numpy.typing import NDArray
from torch import Tensor
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

from ramet.kernels.interface import Kernels
from ramet.runtime.models.errors import ModelLoadError, UnknownArchitectureError
from ramet.runtime.weights.dequantize import dequantize_rows
from ramet.runtime.weights.gguf_config import hf_tensor_name
from ramet.runtime.weights.gguf_file import GGUFCheckpoint
from ramet.runtime.weights.gguf_header import read_gguf_header
from ramet.runtime.weights.load import load_model, model_config
from ramet.runtime.weights.resolve import resolve_model

SIZES: dict[str, Any] = {
    "vocab_size": 65,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**SIZES),
    "llama-tied-wide-heads": LlamaConfig(**SIZES, tie_word_embeddings=True, head_dim=32),
    "llama-biases": LlamaConfig(**SIZES, attention_bias=True),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES, head_dim=32),
}
QUANTIZED = [Quantization[name] for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")]
Array = NDArray[Any]


def gguf_name(hf_name: str) -> str:
    """The inverse of `hf_tensor_name`, from the map of the `gguf` package."""
    stem, suffix = hf_name.rsplit(".", 1)
    name = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, 2).get_name(stem)
    assert name is not None
    return f"{name}.{suffix}"


def interleave(array: Array, num_heads: int) -> Array:
    """Rows of a query or key matrix as llama files store them."""
    split = array.reshape(num_heads, 2, array.shape[0] // num_heads // 2, *array.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(array.shape)


def write_gguf(
    path: Path, hf_model: Any, quantization: Quantization = Quantization.F32, extra: dict[str, Any] | None = None
) -> Path:
    """Write `hf_model`, and set its weights to what the quantised file holds."""
    config = hf_model.config
    arch = config.model_type
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    writer.add_token_list([f"<{i}>" for i in range(config.vocab_size)])
    writer.add_eos_token_id(3)
    for key, value in (extra or {}).items():
        if isinstance(value, np.ndarray):
            writer.add_tensor(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_float32(key, value)
    for name, parameter in hf_model.named_parameters():
        array = parameter.detach().numpy().copy()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        num_heads = next((num for key, num in heads.items() if f".{key}." in name), None)
        kind = quantization if array.ndim == 2 else Quantization.F32
        quantized = gguf.quantize(array, kind)
        parameter.data.copy_(torch.from_numpy(np.array(gguf.dequantize(quantized, kind))))
        if arch == "llama" and num_heads is not None:
            quantized = gguf.quantize(interleave(array, num_heads), kind)
        writer.add_tensor(gguf_name(name), quantized, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def check_gguf(
    tmp_path: Path,
    make_hf_model: Callable[[Any], Any],
    make_runner: Callable[..., Any],
    hf_logits: Callable[[Any, Sequence[int]], Tensor],
    random_texts: Callable[..., list[list[int]]],
    reference_kernels: Kernels,
) -> Callable[..., None]:
    def check(config: Any, quantization: Quantization = Quantization.F32, extra: dict[str, Any] | None = None) -> None:
        hf_model = make_hf_model(config)
        path = write_gguf(tmp_path / "tiny.gguf", hf_model, quantization, extra)
        model = load_model(resolve_model(path), reference_kernels)
        assert model.config.eos_token_ids == (3,)
        texts = random_texts(config.vocab_size, (30, 6))
        for text, logits in zip(texts, make_runner(model, reference_kernels).run(texts), strict=True):
            torch.testing.assert_close(logits, hf_logits(hf_model, text), atol=1e-4, rtol=1e-4)

    return check


@pytest.mark.parametrize("name", CONFIGS)
def test_architecture_equals_transformers(name: str, check_gguf: Callable[..., None]) -> None:
    check_gguf(CONFIGS[name])


@pytest.mark.parametrize("quantization", QUANTIZED, ids=lambda kind: kind.name)
def test_quantised_equals_transformers_on_the_same_weights(
    quantization: Quantization, check_gguf: Callable[..., None]
) -> None:
    check_gguf(CONFIGS["llama"], quantization)


def test_llama3_scaling_stored_as_rope_freqs(check_gguf: Callable[..., None]) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }
    config = LlamaConfig(**SIZES, rope_parameters=scaling)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config)
    unscaled = 1.0 / 10000.0 ** (torch.arange(0, 16, 2) / 16)
    check_gguf(config, extra={"rope_freqs.weight": (unscaled / scaled).numpy()})


@pytest.mark.parametrize(
    ("scaling", "extra"),
    [
        ({"rope_type": "linear", "factor": 4.0}, {"type": "linear", "factor": 4.0}),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
            {"type": "yarn", "factor": 4.0, "original_context_length": 16},
        ),
    ],
)
def test_rope_scaling_of_the_metadata(
    scaling: dict[str, Any], extra: dict[str, Any], check_gguf: Callable[..., None]
) -> None:
    config = Qwen2Config(**SIZES, rope_parameters={"rope_theta": 10000.0, **scaling})
    check_gguf(config, extra={f"qwen2.rope.scaling.{key}": value for key, value in extra.items()})


def dequantizable() -> list[Quantization]:
    kinds = []
    for kind in Quantization:
        block_bytes = gguf.GGML_QUANT_SIZES[kind][1]
        try:
            gguf.dequantize(np.zeros((1, block_bytes), np.uint8), kind)
        except NotImplementedError:
            continue
        kinds.append(kind)
    return kinds


@pytest.mark.parametrize("kind", dequantizable(), ids=lambda kind: kind.name)
def test_every_type_is_dequantised_as_gguf_does(kind: Quantization) -> None:
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(5)
    num_rows, blocks_per_row = 37, 4
    raw = rng.integers(0, 256, (num_rows, blocks_per_row * block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(raw, kind).astype(np.float32)
    out = np.empty((num_rows, blocks_per_row * block_len), np.float32)
    dequantize_rows(raw, kind, out)
    np.testing.assert_array_equal(out, expected)


def test_types_without_dequantisation_are_refused(
    tmp_path: Path, make_hf_model: Callable[[Any], Any], reference_kernels: Kernels
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", make_hf_model(CONFIGS["llama"]))
    raw = bytearray(path.read_bytes())
    name = b"token_embd.weight"
    type_at = raw.index(name) + len(name) + 4 + 2 * 8
    raw[type_at : type_at + 4] = int(Quantization.I32).to_bytes(4, "little")
    path.write_bytes(raw)
    with pytest.raises(ModelLoadError, match=r"'token_embd.weight' has type I32, which cannot be dequantised"):
        load_model(GGUFCheckpoint(path), reference_kernels)


def test_tensor_names_invert_the_map_of_gguf(make_hf_model: Callable[[Any], Any]) -> None:
    names = [name for config in CONFIGS.values() for name, _ in make_hf_model(config).named_parameters()]
    assert all(hf_tensor_name(gguf_name(name)) == name for name in names)
    assert hf_tensor_name("rope_freqs.weight") is None


def test_bfloat16_weights(tmp_path: Path, make_hf_model: Callable[[Any], Any], reference_kernels: Kernels) -> None:
    hf_model = make_hf_model(CONFIGS["llama"])
    path = write_gguf(tmp_path / "tiny.gguf", hf_model, Quantization.Q8_0)
    calls: list[tuple[int, int]] = []
    model: Any = load_model(
        GGUFCheckpoint(path), reference_kernels, torch.bfloat16, on_progress=lambda *counts: calls.append(counts)
    )
    assert torch.equal(model.embedding, hf_model.model.embed_tokens.weight.bfloat16())
    assert calls[-1] == (calls[-1][1], calls[-1][1])
    assert calls == sorted(calls)


@pytest.fixture
def tiny_bytes(tmp_path: Path, make_hf_model: Callable[[Any], Any]) -> bytes:
    extra = {"tokenizer.chat_template": "{{ messages }}", "general.alignment": 32}
    return write_gguf(tmp_path / "tiny.gguf", make_hf_model(CONFIGS["llama"]), extra=extra).read_bytes()


def test_every_truncation_is_reported(tmp_path: Path, tiny_bytes: bytes) -> None:
    path = tmp_path / "cut.gguf"
    header_len = min(tensor.offset for tensor in read_gguf_header(tmp_path / "tiny.gguf").tensors.values())
    lengths = [*range(0, header_len, 7), *range(header_len, len(tiny_bytes) - 1, len(tiny_bytes) // 50)]
    for length in lengths:
        path.write_bytes(tiny_bytes[:length])
        with pytest.raises(ModelLoadError, match=r"cut\.gguf: "):
            GGUFCheckpoint(path)


def test_random_damage_never_escapes_as_another_error(
    tmp_path: Path, tiny_bytes: bytes, reference_kernels: Kernels
) -> None:
    path = tmp_path / "damaged.gguf"
    header_len = min(tensor.offset for tensor in read_gguf_header(tmp_path / "tiny.gguf").tensors.values())
    rng = random.Random(23)
    num_refused = 0
    for _ in range(400):
        damaged = bytearray(tiny_bytes)
        for _ in range(rng.choice([1, 1, 2, 8])):
            damaged[rng.randrange(header_len)] = rng.choice([0, 1, 0x7F, 0xFF, rng.randrange(256)])
        path.write_bytes(damaged)
        try:
            load_model(GGUFCheckpoint(path), reference_kernels)
        except ModelLoadError:
            num_refused += 1
    assert num_refused > 150


def patched(raw: bytes, marker: bytes, skip: int, value: bytes) -> bytes:
    at = raw.index(marker) + len(marker) + skip
    return raw[:at] + value + raw[at + len(value) :]


HUGE = (1 << 62).to_bytes(8, "little")


@pytest.mark.parametrize(
    ("marker", "skip", "value", "message"),
    [
        (b"GGUF", 0, (1).to_bytes(4, "little"), "GGUF version 1 is not supported"),
        (b"GGUF", 0, (3).to_bytes(4, "big"), "big-endian"),
        (b"GGUF", 4, HUGE, "tensors in"),
        (b"GGUF", 12, HUGE, "metadata entries in"),
        (b"tokenizer.ggml.tokens", 8, HUGE, "strings in"),
        (b"tokenizer.ggml.tokens", 16, HUGE, "truncated or corrupt"),
        (b"tokenizer.chat_template", 4, HUGE, "truncated or corrupt"),
        (b"tokenizer.chat_template", 0, (77).to_bytes(4, "little"), "unknown metadata type 77"),
        (b"general.alignment", 4, (33).to_bytes(4, "little"), "general.alignment=33"),
        (b"token_embd.weight", 0, (9).to_bytes(4, "little"), "has 9 dimensions"),
        (b"token_embd.weight", 4, HUGE, "truncated or corrupt"),
        (b"token_embd.weight", 4, bytes(8), "impossible shape"),
        (b"token_embd.weight", 20, (99).to_bytes(4, "little"), "unknown data type 99"),
        (b"token_embd.weight", 24, HUGE, "truncated or corrupt"),
        (b"token_embd.weight", 24, (1).to_bytes(8, "little"), "impossible shape .* or offset 1"),
        (b"llama.block_count", 4, (5000).to_bytes(4, "little"), "num_hidden_layers=5000"),
        (b"llama.block_count", 4, (3).to_bytes(4, "little"), r"'model.layers.2.* is missing"),
        (b"llama.attention.head_count", 4, bytes(4), "must divide|must be an integer"),
        (b"llama.embedding_length", 4, (32).to_bytes(4, "little"), r"shape \[65, 64\], .* asks for \[65, 32\]"),
        (b"llama.embedding_length", 0, (6).to_bytes(4, "little"), "hidden_size=|embedding_length"),
        (b"general.architecture", 12, b"gemma", "GGUF architecture 'gemma' is not supported; supported are llama"),
    ],
)
def test_damage_is_named(
    tmp_path: Path, tiny_bytes: bytes, reference_kernels: Kernels, marker: bytes, skip: int, value: bytes, message: str
) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(patched(tiny_bytes, marker, skip, value))
    with pytest.raises(ModelLoadError, match=message):
        load_model(GGUFCheckpoint(path), reference_kernels)


def test_text_file_with_the_wrong_name(tmp_path: Path) -> None:
    path = tmp_path / "notes.gguf"
    path.write_text("these are not weights")
    with pytest.raises(ModelLoadError, match="not a GGUF file"):
        resolve_model(path)


def test_array_beyond_the_limit_is_not_materialised(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gguf"
    key = b"bomb"
    entry = len(key).to_bytes(8, "little") + key + (9).to_bytes(4, "little")
    array = (0).to_bytes(4, "little") + (1 << 24).to_bytes(8, "little")
    counts = (0).to_bytes(8, "little") + (1).to_bytes(8, "little")
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + counts + entry + array + bytes(1 << 24))
    with pytest.raises(ModelLoadError, match="arrays hold more than"):
        read_gguf_header(path)


@pytest.mark.parametrize(("length", "is_read"), [(12, True), (1 << 17, False)])
def test_strings_that_are_not_utf8(tmp_path: Path, length: int, is_read: bool) -> None:
    path = tmp_path / "odd.gguf"
    key = b"odd"
    entry = len(key).to_bytes(8, "little") + key + (8).to_bytes(4, "little") + length.to_bytes(8, "little")
    counts = (0).to_bytes(8, "little") + (1).to_bytes(8, "little")
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + counts + entry + b"\xff" * length)
    if is_read:
        assert read_gguf_header(path).metadata["odd"] == "\ufffd" * length
    else:
        with pytest.raises(ModelLoadError, match="is not UTF-8"):
            read_gguf_header(path)


def test_architectures_with_experts_are_refused(tmp_path: Path, make_hf_model: Callable[[Any], Any]) -> None:
    extra = {"llama.expert_count": 8}
    path = write_gguf(tmp_path / "tiny.gguf", make_hf_model(CONFIGS["llama"]), extra=extra)
    with pytest.raises(UnknownArchitectureError, match="mixture-of-experts"):
        GGUFCheckpoint(path)


def test_split_files_are_refused(tmp_path: Path, make_hf_model: Callable[[Any], Any]) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", make_hf_model(CONFIGS["llama"]), extra={"split.count": 2})
    with pytest.raises(ModelLoadError, match="split over 2 files"):
        GGUFCheckpoint(path)


def test_what_a_checkpoint_tells(tmp_path: Path, tiny_bytes: bytes) -> None:
    path = tmp_path / "tiny.gguf"
    checkpoint = resolve_model(path)
    assert checkpoint.chat_template == "{{ messages }}"
    assert checkpoint.tokenizer_source == path
    assert model_config(checkpoint).architecture == "LlamaForCausalLM"
    identity = checkpoint.identity
    path.write_bytes(tiny_bytes + bytes(1))
    assert resolve_model(path).identity != identity
