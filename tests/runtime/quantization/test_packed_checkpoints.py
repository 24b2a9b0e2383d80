"""GPTQ and AWQ directories: the same numbers as their plain twins, held in few bits where they can be."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ramet.kernels.dispatch import KERNELS, select_kernels
from ramet.kernels.quantized.matrix import QuantizedMatrix
from ramet.runtime.errors import InvalidConfigError
from ramet.runtime.models.errors import ModelLoadError
from ramet.runtime.models.parameters import Piece
from ramet.runtime.quantization.packed_checkpoint import PackedCheckpoint
from ramet.runtime.weights.load import load_model
from ramet.runtime.weights.resolve import resolve_model

SaveTiny = Callable[..., tuple[Path, Path]]

HELD: dict[str, dict[str, Any]] = {
    "gptq": {},
    "gptq symmetric": {"is_symmetric": True},
    "gptq without g_idx": {"has_group_idx": False},
    "gptq one group": {"group_size": -1},
    "gptq 8 bits": {"bits": 8},
    "gptq 8 bits symmetric": {"bits": 8, "is_symmetric": True, "group_size": 16},
    "gptq v2": {"stored_offset": 0, "config": {"checkpoint_format": "gptq_v2"}},
    "gptq v2 that says v1": {"stored_offset": 0, "is_symmetric": True, "config": {"checkpoint_format": "gptq"}},
    "awq": {"method": "awq"},
    "awq one group": {"method": "awq", "group_size": -1, "config": {"version": "gemm"}},
    "awq in old words": {"method": "awq", "config": {"bits": None, "w_bit": 4, "group_size": None, "q_group_size": 32}},
}
DEQUANTISED: dict[str, dict[str, Any]] = {
    "desc_act": {"is_shuffled": True},
    "a short last group": {"group_size": 40},
    "groups that kernels do not take": {"method": "awq", "group_size": 16},
    "some layers plain": {"plain": ("k_proj", "up_proj", "down_proj", "o_proj")},
}


def read(path: Path, name: str) -> torch.Tensor:
    checkpoint = resolve_model(path)
    out = torch.empty(checkpoint.shape(name))
    checkpoint.read_into(name, out)
    return out


def forward(path: Path, kernels: str, load_runner: Any, paged_sequence: Any, forward_parts: Any) -> torch.Tensor:
    sequence = paged_sequence([(5 * idx * idx + 1) % 100 for idx in range(19)], [0, 1])
    (logits,) = forward_parts(load_runner(path, kernels).runner, [(sequence, 0, 19)])
    return logits


@pytest.mark.parametrize("case", [*HELD, *DEQUANTISED])
def test_tensors_are_those_of_the_plain_twin(case: str, make_packing: Any, save_tiny: SaveTiny) -> None:
    packed, plain = save_tiny(make_packing(**(HELD | DEQUANTISED)[case]))
    assert sorted(resolve_model(packed).tensor_names()) == sorted(resolve_model(plain).tensor_names())
    for name in resolve_model(plain).tensor_names():
        assert resolve_model(packed).shape(name) == resolve_model(plain).shape(name)
        assert torch.equal(read(packed, name), read(plain, name)), name


PIECES = [Piece(0, 3, 20), Piece(1, 0, 32), Piece(1, 8, 40), Piece(1, 32, 64)]


@pytest.mark.parametrize("piece", PIECES, ids=str)
@pytest.mark.parametrize("case", [*HELD, *DEQUANTISED])
def test_pieces_are_those_of_the_plain_twin(case: str, piece: Piece, make_packing: Any, save_tiny: SaveTiny) -> None:
    packed, plain = save_tiny(make_packing(**(HELD | DEQUANTISED)[case]))
    name = "model.layers.0.self_attn.q_proj.weight"
    expected = read(plain, name).narrow(piece.dim, piece.start, piece.stop - piece.start)
    checkpoint = resolve_model(packed)
    out = torch.empty(expected.shape)
    checkpoint.read_into(name, out, piece)
    assert torch.equal(out, expected)
    if isinstance(checkpoint, PackedCheckpoint) and checkpoint.is_packed(name):
        held = checkpoint.unpacked(name, torch.device("cpu"), piece).held()
        if held is not None:
            assert torch.equal(held.dequantize(torch.float32), expected)
        if case in HELD and (piece.dim == 0 or piece.start % 32 == 0):
            assert held is not None, "a piece that cuts no group is held like the whole"


@pytest.mark.parametrize("case", HELD)
def test_matrices_are_held_as_they_are(case: str, make_packing: Any, save_tiny: SaveTiny) -> None:
    packing = make_packing(**HELD[case])
    packed, plain = save_tiny(packing)
    model: Any = load_model(resolve_model(packed), select_kernels("cpu", "torch"), torch.bfloat16)
    layer = model.layers[0]
    names = {
        "qkv_weight": [f"self_attn.{part}_proj" for part in "qkv"],
        "output_weight": ["self_attn.o_proj"],
        "gate_up_weight": ["mlp.gate_proj", "mlp.up_proj"],
        "down_weight": ["mlp.down_proj"],
    }
    for attribute, parts in names.items():
        matrix = {name: getattr(layer, name) for name in names}[attribute]
        assert isinstance(matrix, QuantizedMatrix)
        assert matrix.bits == packing.bits
        expected = torch.cat([read(plain, f"model.layers.0.{part}.weight") for part in parts])
        assert torch.equal(matrix.dequantize(torch.float32), expected)


@pytest.mark.parametrize("kernels", sorted(name for name, entry in KERNELS.items() if entry.takes_quantized))
@pytest.mark.parametrize("case", ["gptq", "gptq 8 bits", "awq", "desc_act", "some layers plain"])
def test_logits_are_those_of_the_plain_twin(
    case: str, kernels: str, make_packing: Any, save_tiny: SaveTiny, load_runner: Any, paged_sequence: Any,
    forward_parts: Any,
) -> None:  # fmt: skip
    if kernels == "triton":
        pytest.importorskip("triton")
    packed, plain = save_tiny(make_packing(**(HELD | DEQUANTISED)[case]), attention_bias=True)
    found = forward(packed, kernels, load_runner, paged_sequence, forward_parts)
    expected = forward(plain, "reference", load_runner, paged_sequence, forward_parts)
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", DEQUANTISED)
def test_what_cannot_be_held_is_dequantised_and_said_once(
    case: str, make_packing: Any, save_tiny: SaveTiny, caplog: pytest.LogCaptureFixture
) -> None:
    packed, _ = save_tiny(make_packing(**DEQUANTISED[case]))
    with caplog.at_level(logging.WARNING):
        model: Any = load_model(resolve_model(packed), select_kernels("cpu", "torch"), torch.bfloat16)
    assert model.layers[0].qkv_weight.dtype == torch.bfloat16
    (message,) = [record.getMessage() for record in caplog.records]
    assert "are dequantised to bfloat16. Were all so, they would take 0.00 GiB instead of" in message
    assert "self_attn.q_proj.weight" in message


def test_what_can_be_held_is_not_warned_of(
    make_packing: Any, save_tiny: SaveTiny, caplog: pytest.LogCaptureFixture
) -> None:
    packed, _ = save_tiny(make_packing())
    load_model(resolve_model(packed), select_kernels("cpu", "torch"))
    load_model(resolve_model(packed), select_kernels("cpu", "torch_int8"))
    assert not caplog.records


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"config": {"quant_method": "bitsandbytes"}}, r"config\.json: .*'bitsandbytes' are not supported .*gptq, awq"),
        ({"config": {"quant_method": None}}, "quantised with None"),
        ({"config": {"bits": 3}}, "quantization_config: bits=3 is not supported: .*4, 8"),
        ({"config": {"bits": True}}, "bits=True"),
        ({"config": {"group_size": 0}}, "group_size=0 is not supported: it must be -1 or a positive"),
        ({"config": {"sym": 1}}, "sym=1"),
        ({"config": {"checkpoint_format": "marlin"}}, "checkpoint_format='marlin'.*gptq_v2"),
        ({"config": {"dynamic": {"-:k_proj": {}}}}, "dynamic=.*settings of their own"),
        (
            {"config": {"group_size": 64}},
            r"down_proj: qzeros has shape \[3, 8\], which does not go with .*'qzeros': \(2, 8\)",
        ),
        ({"method": "awq", "config": {"version": "gemv"}}, "version='gemv'.*gemm"),
        ({"method": "awq", "config": {"bits": 8}}, "bits=8"),
        ({"method": "awq", "config": {"zero_point": False}}, "zero_point=False"),
    ],
)
def test_settings_that_are_refused(
    options: dict[str, Any], message: str, make_packing: Any, save_tiny: SaveTiny
) -> None:
    packed, _ = save_tiny(make_packing(**options))
    with pytest.raises(ModelLoadError, match=message):
        resolve_model(packed)


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_a_number_of_bits_may_be_written_as_a_float(method: str, make_packing: Any, save_tiny: SaveTiny) -> None:
    packed, plain = save_tiny(make_packing(method=method, config={"bits": 4.0}))
    for name in resolve_model(plain).tensor_names():
        assert torch.equal(read(packed, name), read(plain, name)), name


def test_a_configuration_that_is_no_object_is_refused(make_packing: Any, save_tiny: SaveTiny) -> None:
    packed, _ = save_tiny(make_packing())
    path = packed / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": "fp8"}))
    with pytest.raises(ModelLoadError, match="quantised with 'fp8' are not supported"):
        resolve_model(packed)


QUERY = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(f"{QUERY}.scales"), "q_proj lacks scales"),
        (lambda tensors: tensors.update({f"{QUERY}.weight": torch.zeros(2, 2)}), "q_proj is stored plain and quan"),
        (lambda tensors: tensors.update({f"{QUERY}.qzeros": torch.zeros(2, 3, dtype=torch.int32)}), "qzeros has shape"),
        (lambda tensors: tensors[f"{QUERY}.g_idx"].fill_(9), "q_proj.weight: g_idx names groups beyond the 2"),
        (lambda tensors: tensors[f"{QUERY}.g_idx"].fill_(-1), "q_proj.weight: g_idx names groups beyond the 2"),
        (
            lambda tensors: tensors.update({f"{QUERY}.qweight": tensors[f"{QUERY}.qweight"].float()}),
            "q_proj.qweight has type torch.float32",
        ),
        (
            lambda tensors: tensors.update({f"{QUERY}.qweight": torch.tensor(1, dtype=torch.int32)}),
            r"q_proj: qweight has shape \[\], and must have two dimensions",
        ),
        (lambda tensors: tensors[f"{QUERY}.scales"][1:, 3:].fill_(torch.inf), "q_proj.scales: scales are not finite"),
        (lambda tensors: tensors[f"{QUERY}.scales"][0].fill_(torch.nan), "q_proj.scales: scales are not finite"),
    ],
)
def test_damaged_files_are_refused(
    change: Callable[[dict[str, torch.Tensor]], object], message: str, make_packing: Any, save_tiny: SaveTiny
) -> None:
    packed, _ = save_tiny(make_packing())
    tensors = load_file(packed / "model.safetensors")
    change(tensors)
    save_file(tensors, packed / "model.safetensors")
    with pytest.raises(ModelLoadError, match=message):
        load_model(resolve_model(packed), select_kernels("cpu", "torch"))


def test_rounded_weights_are_not_rounded_again(make_packing: Any, save_tiny: SaveTiny) -> None:
    packed, _ = save_tiny(make_packing())
    with pytest.raises(InvalidConfigError, match=r"quantization='int8' .*GPTQ 4 bit already: leave quantization out"):
        load_model(resolve_model(packed), select_kernels("cpu", "torch"), quantization="int8")
