"""What every runner promises of its blocks: they can be taken out and put back anywhere, to the last bit."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

from ramet.kernels.cpu.compiler import find_compiler
from ramet.kernels.cpu.errors import CompilerNotFoundError
from ramet.runtime.runner_factory import RUNNERS

TOKENS = [(idx * 37 + idx * idx * 5) % 97 for idx in range(40)]
KV_CACHE_DTYPES = {"triton": ("auto", "int8")}
CASES = [(name, dtype) for name in sorted(RUNNERS) for dtype in KV_CACHE_DTYPES.get(name, ("auto",))]


@pytest.fixture(scope="module")
def model_dir(make_tiny_model, tmp_path_factory):
    return make_tiny_model(seed=3).save(tmp_path_factory.mktemp("blocks") / "model")


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def loaded(request, load_runner, model_dir) -> Any:
    name, dtype = request.param
    if name == "triton" and importlib.util.find_spec("triton") is None:
        pytest.skip("Triton runs on Linux only")
    if name == "cpu":
        try:
            find_compiler(None)
        except CompilerNotFoundError as error:
            pytest.skip(str(error))
    options = {"captured_batch_sizes": (1,)} if name == "triton" else {}
    return load_runner(model_dir, name, num_blocks=12, kv_cache_dtype=dtype, **options)


def test_blocks_can_be_moved(loaded, forward_parts, paged_sequence):
    blocks = loaded.blocks
    assert blocks is loaded.runner
    assert blocks.device == torch.device("cpu")
    here = paged_sequence(TOKENS, [3, 1, 7])
    forward_parts(loaded.runner, [(here, 0, 32)])
    (expected,) = forward_parts(loaded.runner, [(here, 32, 40)])
    data = blocks.read_blocks([3, 1])
    assert data.shape == (2, blocks.bytes_per_block)
    assert data.dtype == torch.uint8
    assert data.is_contiguous()
    before = blocks.read_blocks([0, 4, 5, 6, 8, 9, 10, 11])
    blocks.write_blocks([11, 2], data)
    assert torch.equal(blocks.read_blocks([2, 11]), data[[1, 0]])
    assert torch.equal(blocks.read_blocks([0, 4, 5, 6, 8, 9, 10, 11])[:-1], before[:-1])
    (found,) = forward_parts(loaded.runner, [(paged_sequence(TOKENS, [11, 2, 9]), 32, 40)])
    assert torch.equal(found, expected)
    assert not torch.equal(data, torch.zeros_like(data))


def test_what_was_read_is_a_copy(loaded, forward_parts, paged_sequence):
    forward_parts(loaded.runner, [(paged_sequence(TOKENS, [0]), 0, 3)])
    data = loaded.blocks.read_blocks([0])
    kept = data.clone()
    forward_parts(loaded.runner, [(paged_sequence(TOKENS[::-1], [0]), 0, 3)])
    assert torch.equal(data, kept)
    assert not torch.equal(loaded.blocks.read_blocks([0]), kept)


def test_a_runner_says_what_its_bits_depend_on(loaded):
    assert loaded.numerics
    assert all(isinstance(value, str) for value in loaded.numerics.values())
