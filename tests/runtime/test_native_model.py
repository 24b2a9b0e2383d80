"""Checkpoints on their way into the C++ kernels: what is packed, what is requantised, what is refused and why."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Quantization

from ramet.kernels.cpu.memory import MemoryArena
from ramet.kernels.cpu.packed_matrix import PackedMatrix, WeightFormat
from ramet.runtime import native_loading, native_model
from ramet.runtime.config import EngineConfig
from ramet.runtime.errors import InvalidConfigError
from ramet.runtime.models.errors import ModelLoadError
from ramet.runtime.native_model import NativeModel, unsupported_reason
from ramet.runtime.runner_factory import RunnerSpec, RunnerUnavailableError, build_runner, runner_candidates
from ramet.runtime.weights.load import model_config
from ramet.runtime.weights.resolve import resolve_model

pytestmark = pytest.mark.compiler


@pytest.fixture
def pack(cpu_library_of):
    """The packed model of a checkpoint, and its packed matrices in the order they were made."""

    def load(path: Path, num_threads: int = 2) -> tuple[NativeModel, list[PackedMatrix]]:
        library, checkpoint = cpu_library_of(None), resolve_model(path)
        made: list[PackedMatrix] = []

        class Recording(NativeModel):
            def _matrix(self, parts: Any, num_outputs: int, num_inputs: int) -> PackedMatrix:
                made.append(super()._matrix(parts, num_outputs, num_inputs))
                return made[-1]

        config = model_config(checkpoint)
        model = Recording(library, MemoryArena(library), checkpoint, config, 64, num_threads)
        return model, made

    return load


def values(matrix: PackedMatrix) -> np.ndarray:
    return matrix.unpack(range(matrix.shape[0]))


def assert_8_bits(seen: np.ndarray, exact: np.ndarray) -> None:
    """Within half a step of 8 bits: a step is a 127th of a group's largest value, and a 254th more of the row's."""
    groups = np.abs(exact).reshape(len(exact), -1, 32).max(-1)
    steps = (groups + groups.max(-1, keepdims=True) / 254).repeat(32, axis=-1) / 127
    assert np.all(np.abs(seen - exact) <= steps * 0.51)


def test_safetensors_become_8_bits_and_go_to_their_places(tmp_path, make_tiny_model, pack):
    tiny = make_tiny_model()
    model, (embedding, lm_head, query, key, value, output, gate_up, down, *_) = pack(tiny.save(tmp_path))
    assert model.requantized_types == set()
    assert_8_bits(values(embedding), tiny.tensors["model.embed_tokens.weight"])
    assert_8_bits(values(lm_head), tiny.tensors["lm_head.weight"])
    layer = {name.removeprefix("model.layers.0."): tensor for name, tensor in tiny.tensors.items()}
    for matrix, name in ((query, "q"), (key, "k"), (value, "v"), (output, "o")):
        assert_8_bits(values(matrix), layer[f"self_attn.{name}_proj.weight"])
    assert_8_bits(values(down), layer["mlp.down_proj.weight"])
    woven = values(gate_up).reshape(-1, 2, 16, 64)
    assert_8_bits(woven[:, 0].reshape(-1, 64), layer["mlp.gate_proj.weight"])
    assert_8_bits(woven[:, 1].reshape(-1, 64), layer["mlp.up_proj.weight"])


def test_a_tied_head_is_the_embedding(tmp_path, make_tiny_model, pack):
    model, matrices = pack(make_tiny_model(tie_word_embeddings=True).save(tmp_path))
    assert model.lm_head is model.embedding
    assert len(matrices) == 1 + 2 * 6


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_a_large_model_keeps_its_weights_small_and_computes_the_same_bits(
    tmp_path, make_tiny_model, pack, kind, monkeypatch
):
    """ "Large" is made to mean more than this model has, and then one byte less."""
    tiny = make_tiny_model()
    path = tiny.save_gguf(tmp_path / "tiny.gguf", lambda name: Quantization[kind])
    num_bytes = native_model.num_plane_bytes(resolve_model(path))
    packed = []
    for limit in (num_bytes, num_bytes - 1):
        monkeypatch.setattr(native_model, "MAX_PLANE_BYTES", limit)
        packed.append(pack(path))
    (planes, plane_matrices), (groups, group_matrices) = packed
    assert num_bytes <= planes.num_weight_bytes
    assert groups.num_weight_bytes < planes.num_weight_bytes
    x = np.random.default_rng(1).normal(size=(5, tiny.config["hidden_size"])).astype(np.float32)
    for matrix, other in zip(plane_matrices, group_matrices, strict=True):
        assert np.array_equal(values(matrix), values(other))
        if matrix.shape[1] == x.shape[1]:
            assert np.array_equal(matrix.multiply(x, 2), other.multiply(x, 2))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("Q4_0", WeightFormat.INT4), ("Q4_1", WeightFormat.INT4), ("Q8_0", WeightFormat.INT8)],
)
def test_gguf_blocks_are_packed_without_a_warning(tmp_path, make_tiny_model, pack, kind, expected, caplog):
    tiny, quantization = make_tiny_model(), Quantization[kind]
    path = tiny.save_gguf(tmp_path / "tiny.gguf", lambda name: quantization)
    with caplog.at_level(logging.WARNING):
        model, matrices = pack(path)
    assert not caplog.records
    assert {matrix.format for matrix in matrices} == {expected}
    assert model.num_weight_bytes == sum(matrix.num_bytes for matrix in matrices)
    for matrix, name in zip(
        matrices, ["model.embed_tokens", "lm_head", "model.layers.0.self_attn.q_proj"], strict=False
    ):
        stored = gguf.quantize(tiny.tensors[f"{name}.weight"], quantization)
        exact = np.array(gguf.dequantize(stored, quantization))
        reach = np.abs(exact).max(axis=1, keepdims=True)
        assert np.all(np.abs(values(matrix) - exact) <= reach / 200), name


def test_other_types_become_8_bits_and_it_is_said_once(tmp_path, make_tiny_model, pack, caplog):
    tiny = make_tiny_model()
    kinds = {"embed": Quantization.F16, "mlp": Quantization.Q5_1, "attn": Quantization.Q5_0, "head": Quantization.Q4_0}
    path = tiny.save_gguf(tmp_path / "tiny.gguf", lambda name: next(kinds[key] for key in kinds if key in name))
    with caplog.at_level(logging.WARNING):
        model, (embedding, lm_head, query, *_) = pack(path)
    assert model.requantized_types == {"Q5_0", "Q5_1"}
    (record,) = caplog.records
    assert "weights of type Q5_0, Q5_1 are quantised to 8 bits" in record.getMessage()
    assert [matrix.format for matrix in (embedding, lm_head, query)] == [
        WeightFormat.INT8,
        WeightFormat.INT4,
        WeightFormat.INT8,
    ]
    name = "model.layers.0.self_attn.q_proj.weight"
    exact = np.array(gguf.dequantize(gguf.quantize(tiny.tensors[name], Quantization.Q5_0), Quantization.Q5_0))
    assert_8_bits(values(query), exact)


def test_4_bits_with_outliers_get_two_planes_and_it_is_said(tmp_path, make_tiny_model, pack, caplog):
    """One plane of 8 bits a row would lose what is small beside the outliers."""
    tiny = make_tiny_model()
    name = "model.layers.1.mlp.down_proj.weight"
    tiny.tensors[name][:, :32] *= 100
    path = tiny.save_gguf(tmp_path / "tiny.gguf", lambda _: Quantization.Q4_1)
    with caplog.at_level(logging.WARNING):
        model, matrices = pack(path)
    assert model.requantized_types == {"Q4_1"}
    assert [matrix.format for matrix in matrices] == [WeightFormat.INT4] * (len(matrices) - 1) + [WeightFormat.INT8]
    exact = np.array(gguf.dequantize(gguf.quantize(tiny.tensors[name], Quantization.Q4_1), Quantization.Q4_1))
    small, seen = exact[:, 32:], values(matrices[-1])[:, 32:]
    assert np.linalg.norm(seen - small) <= 0.03 * np.linalg.norm(small)


def test_gate_and_up_of_two_types_share_a_matrix(tmp_path, make_tiny_model, pack):
    tiny = make_tiny_model()
    path = tiny.save_gguf(
        tmp_path / "tiny.gguf", lambda name: Quantization.Q4_1 if "up_proj" in name else Quantization.Q8_0
    )
    model, matrices = pack(path)
    assert model.requantized_types == {"Q4_1", "Q8_0"}
    woven = values(matrices[6]).reshape(-1, 2, 16, 64)
    gate = tiny.tensors["model.layers.0.mlp.gate_proj.weight"]
    np.testing.assert_allclose(woven[:, 0].reshape(-1, 64), gate, atol=np.abs(gate).max() / 127)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_size": 48}, "hidden_size=48 is not a multiple of 32"),
        ({"intermediate_size": 80}, "intermediate_size=80 is not a multiple of 32"),
        ({"head_dim": 40}, "head_dim=40 is not a multiple of 16"),
        ({"head_dim": 16, "num_key_value_heads": 4}, "head_dim=16 is not a multiple of 32"),
        ({"head_dim": 16, "num_attention_heads": 66, "num_key_value_heads": 1}, "66 query heads share a kv head"),
    ],
)
def test_sizes_the_kernels_do_not_take_are_named(tmp_path, make_tiny_model, load_runner, changes, reason):
    path = make_tiny_model(**changes).save(tmp_path)
    assert reason in str(unsupported_reason(model_config(resolve_model(path))))
    with pytest.raises(RunnerUnavailableError, match=rf"the C\+\+ kernels do not take this model: .*{reason}"):
        load_runner(path, "cpu")


def test_an_architecture_of_another_family_is_named(tmp_path, make_tiny_model):
    config = model_config(resolve_model(make_tiny_model().save(tmp_path)))
    assert unsupported_reason(config) is None
    for other in (replace(config, architecture="OPTForCausalLM"), replace(config, rope=None)):
        assert f"not {other.architecture}" in str(unsupported_reason(other))


def test_another_block_size_is_refused(tmp_path, make_tiny_model, load_runner):
    path = make_tiny_model().save(tmp_path)
    with pytest.raises(RunnerUnavailableError, match="blocks of 16 tokens, and block_size=32 was asked for"):
        load_runner(path, "cpu", block_size=32)


@pytest.mark.parametrize(("model_options", "engine_options"), [({"hidden_size": 48}, {}), ({}, {"block_size": 8})])
def test_unless_it_was_asked_for_another_runner_is_taken_with_a_warning(
    tmp_path, make_tiny_model, model_options, engine_options, caplog
):
    checkpoint = resolve_model(make_tiny_model(**model_options).save(tmp_path))
    config = EngineConfig(num_blocks=8, **engine_options)
    spec = RunnerSpec(checkpoint=checkpoint, config=config, device="cpu", num_threads=1)
    with caplog.at_level(logging.WARNING):
        loaded = build_runner(runner_candidates(None, "cpu"), spec)
    assert loaded.kernels_name != "cpu"
    (message,) = (message for message in caplog.messages if "kernels 'cpu' are passed over" in message)
    assert message.startswith("the C++ kernels")
    assert message.endswith(f"trying {loaded.kernels_name!r}")


def test_an_instruction_set_that_is_not_there_is_refused(tmp_path, make_tiny_model, load_runner, monkeypatch):
    monkeypatch.setattr(native_loading, "default_cpu_isa", lambda: "sse9")
    with pytest.raises(InvalidConfigError, match="RAMET_CPU_ISA='sse9' is unknown"):
        load_runner(make_tiny_model().save(tmp_path), "cpu")


NAMES = [
    "model.embed_tokens.weight",
    "model.norm.weight",
    "lm_head.weight",
    "model.layers.1.self_attn.k_proj.weight",
    "model.layers.1.self_attn.v_proj.bias",
    "model.layers.0.mlp.up_proj.weight",
    "model.layers.0.mlp.gate_proj.bias",
    "model.layers.0.input_layernorm.weight",
]


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", NAMES)
def test_weights_that_are_no_numbers_are_refused_by_name(tmp_path, make_tiny_model, load_runner, name, broken):
    tiny = make_tiny_model(attention_bias=True, mlp_bias=True)
    tiny.tensors[name].flat[-3] = broken
    with pytest.raises(ModelLoadError, match=f"tensor '{name}'.* not finite"):
        load_runner(tiny.save(tmp_path), "cpu")


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_a_damaged_scale_in_a_gguf_file_is_refused(tmp_path, make_tiny_model, load_runner, kind):
    tiny, quantization = make_tiny_model(), Quantization[kind]
    path = tiny.save_gguf(tmp_path / "tiny.gguf", lambda name: quantization)
    blocks = gguf.quantize(tiny.tensors["model.layers.1.mlp.down_proj.weight"], quantization).tobytes()
    data = path.read_bytes()
    assert data.count(blocks) == 1
    start = data.index(blocks)
    path.write_bytes(data[:start] + b"\xff\x7f" + data[start + 2 :])
    with pytest.raises(ModelLoadError, match=r"tensor 'model.layers.1.mlp.down_proj.weight'.* not finite"):
        load_runner(path, "cpu")


@pytest.mark.parametrize("name", NAMES)
def test_missing_tensors_are_named(tmp_path, make_tiny_model, load_runner, name):
    tiny = make_tiny_model(attention_bias=True, mlp_bias=True)
    del tiny.tensors[name]
    with pytest.raises(ModelLoadError, match=f"tensor '{name}' of shape .* is missing"):
        load_runner(tiny.save(tmp_path), "cpu")


@pytest.mark.parametrize("name", NAMES)
def test_tensors_of_another_shape_are_refused(tmp_path, make_tiny_model, load_runner, name):
    tiny = make_tiny_model(attention_bias=True, mlp_bias=True)
    tiny.tensors[name] = np.ascontiguousarray(tiny.tensors[name][:-1])
    with pytest.raises(ModelLoadError, match=f"tensor '{name}' has shape .* the configuration asks for"):
        load_runner(tiny.save(tmp_path), "cpu")


def test_a_truncated_file_is_refused(tmp_path, make_tiny_model, load_runner):
    path = make_tiny_model().save_gguf(tmp_path / "tiny.gguf", lambda name: Quantization.Q4_0)
    data = path.read_bytes()
    for size in (len(data) - 64, len(data) // 2, 40):
        path.write_bytes(data[:size])
        with pytest.raises(ModelLoadError, match=r"truncated|ends|corrupt"):
            load_runner(path, "cpu")


@pytest.mark.parametrize("num_blocks", [10**12, 1 << 60, (1 << 64) // (2 * 2 * 2 * 32 * 16 * 2) + 1])
def test_a_cache_that_no_machine_has_is_refused(tmp_path, make_tiny_model, load_runner, num_blocks):
    path = make_tiny_model().save(tmp_path)
    with pytest.raises(InvalidConfigError, match=f"a KV cache of {num_blocks} blocks does not fit in memory"):
        load_runner(path, "cpu", num_blocks=num_blocks)
