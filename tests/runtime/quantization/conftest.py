"""Packers of GPTQ and AWQ checkpoints, written from the published layouts: numbers to int32 fields, in numpy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output of eight that each field holds."""

Ints = NDArray[np.int64]


def fields_to_int32(fields: Ints, bits: int) -> NDArray[np.int32]:
    """[..., 32 / bits] fields, the lowest bits first."""
    shifts = bits * np.arange(32 // bits)
    return (fields << shifts).sum(-1).astype(np.uint32).view(np.int32)


def down(values: Ints, bits: int) -> NDArray[np.int32]:
    """[R, C] packed along the rows: [R * bits / 32, C]."""
    return fields_to_int32(values.reshape(-1, 32 // bits, values.shape[1]).swapaxes(1, 2), bits)


def along(values: Ints, bits: int, order: Sequence[int] | None = None) -> NDArray[np.int32]:
    """[R, C] packed along the columns: [R, C * bits / 32]."""
    fields = values.reshape(values.shape[0], -1, 32 // bits)
    return fields_to_int32(fields if order is None else fields[:, :, list(order)], bits)


@dataclass(frozen=True)
class Packing:
    """How a checkpoint is packed; `config` is what is written to config.json besides, or instead."""

    method: str = "gptq"
    bits: int = 4
    group_size: int = 32
    is_symmetric: bool = False
    stored_offset: int = 1
    has_group_idx: bool = True
    is_shuffled: bool = False
    plain: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def quantization_config(self) -> dict[str, Any]:
        found = {"quant_method": self.method, "bits": self.bits, "group_size": self.group_size}
        if self.method == "gptq":
            found |= {"desc_act": self.is_shuffled, "sym": self.is_symmetric}
        else:
            found |= {"version": "GEMM", "zero_point": True}
        return found | self.config

    def pack(self, num_outputs: int, num_inputs: int, rng: np.random.Generator) -> tuple[dict[str, Any], Any]:
        """Parts of a random matrix by suffix, and its values fp32 [N, K]."""
        group_len = num_inputs if self.group_size == -1 else self.group_size
        num_groups = -(-num_inputs // group_len)
        group_idx = np.arange(num_inputs) // group_len
        if self.is_shuffled:
            group_idx = rng.permutation(group_idx)
        codes = rng.integers(0, 2**self.bits, (num_inputs, num_outputs))
        zeros = rng.integers(1, 2**self.bits, (num_groups, num_outputs))
        if self.is_symmetric:
            zeros[:] = 2 ** (self.bits - 1)
        scales = (rng.uniform(0.5, 1.0, (num_groups, num_outputs)) / 2**self.bits).astype(np.float16)
        values = (codes - zeros[group_idx]).astype(np.float32) * scales[group_idx].astype(np.float32)
        if self.method == "awq":
            parts = {"qweight": along(codes, 4, AWQ_ORDER), "qzeros": along(zeros, 4, AWQ_ORDER), "scales": scales}
            return parts, np.ascontiguousarray(values.T)
        parts = {
            "qweight": down(codes, self.bits),
            "qzeros": along(zeros - self.stored_offset, self.bits),
            "scales": scales,
        }
        if self.has_group_idx:
            parts["g_idx"] = group_idx.astype(np.int32)
        return parts, np.ascontiguousarray(values.T)


def save_packed(tiny: Any, packing: Packing, directory: Path) -> tuple[Path, Path]:
    """Replace the matrices of a tiny model's layers by random packed ones: (the packed checkpoint, its plain twin)."""
    rng = np.random.default_rng(5)
    stored, plain = dict(tiny.tensors), dict(tiny.tensors)
    for name, tensor in tiny.tensors.items():
        layer = name.removesuffix(".weight")
        if not layer.endswith("_proj") or layer.rsplit(".", 1)[-1] in packing.plain:
            continue
        parts, values = packing.pack(*tensor.shape, rng)
        del stored[name]
        stored |= {f"{layer}.{part}": value for part, value in parts.items()}
        plain[name] = values
    paths = directory / "packed", directory / "plain"
    configs = tiny.config | {"quantization_config": packing.quantization_config}, tiny.config
    for path, config, tensors in zip(paths, configs, (stored, plain), strict=True):
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, path / "model.safetensors")
    return paths


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny matrices take longer to hand to a second thread than to compute."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session")
def make_packing() -> type[Packing]:
    return Packing


@pytest.fixture
def save_tiny(tmp_path: Path, make_tiny_model: Callable[..., Any]) -> Callable[..., tuple[Path, Path]]:
    """save_tiny(packing, **config): (the packed checkpoint, its plain twin)."""

    def save(packing: Packing, **config: Any) -> tuple[Path, Path]:
        return save_packed(make_tiny_model(seed=6, num_hidden_layers=1, **config), packing, tmp_path / "pair")

    return save
