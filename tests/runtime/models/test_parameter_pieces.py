"""Pieces of tensors, read from every format, are what the whole tensor has there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Quantization

from ramet.runtime.models.parameters import ParameterReader, Piece, columns, rows
from ramet.runtime.weights.base import Checkpoint
from ramet.runtime.weights.resolve import resolve_model

QUERY, DOWN, NORM = "model.layers.1.self_attn.q_proj", "model.layers.0.mlp.down_proj", "model.norm"
SHAPES = {f"{QUERY}.weight": (128, 64), f"{DOWN}.weight": (64, 96), f"{NORM}.weight": (64,)}


@pytest.fixture(scope="module", params=["safetensors", "F32", "Q8_0", "Q4_1"])
def checkpoint(
    request: pytest.FixtureRequest, make_tiny_model: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Checkpoint:
    tiny, directory = make_tiny_model(), tmp_path_factory.mktemp("pieces")
    if request.param == "safetensors":
        return resolve_model(tiny.save(directory))
    return resolve_model(tiny.save_gguf(directory / "tiny.gguf", lambda name: Quantization[request.param]))


@pytest.mark.parametrize(
    ("name", "piece"),
    [
        (QUERY, rows(range(32, 96))),
        (QUERY, rows(range(128))),
        (DOWN, columns(range(40, 77))),
        (DOWN, rows(range(3, 4))),
        (NORM, rows(range(10, 64))),
    ],
)
def test_a_piece_is_what_the_whole_has_there(checkpoint: Checkpoint, name: str, piece: Piece) -> None:
    name = f"{name}.weight"
    parameters = ParameterReader(checkpoint, torch.float32, torch.device("cpu"))
    whole = parameters.read(name, SHAPES[name])
    found = parameters.read(name, SHAPES[name], piece)
    assert torch.equal(found, whole.narrow(piece.dim, piece.start, piece.stop - piece.start))
    assert found.is_contiguous()


def test_pieces_are_stacked_and_converted(checkpoint: Checkpoint) -> None:
    parameters = ParameterReader(checkpoint, torch.bfloat16, torch.device("cpu"))
    key = QUERY.replace("q_proj", "k_proj") + ".weight"
    stacked = parameters.read_stacked(
        [f"{QUERY}.weight", key], [(128, 64), (64, 64)], [rows(range(64, 128)), rows(range(32, 64))]
    )
    query, whole_key = parameters.read(f"{QUERY}.weight", (128, 64)), parameters.read(key, (64, 64))
    assert stacked.dtype == torch.bfloat16
    assert torch.equal(stacked, torch.cat((query[64:], whole_key[32:])))
