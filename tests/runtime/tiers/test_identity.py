"""Whatever may change a bit of a block changes the identity of its store."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

import pytest

from ramet.runtime.config import EngineConfig
from ramet.runtime.tiers import identity
from ramet.runtime.tiers.identity import code_digest, model_files, store_identity
from ramet.runtime.weights.resolve import resolve_model


@pytest.fixture
def model_dir(make_tiny_model, tmp_path):
    return make_tiny_model(seed=1).save(tmp_path / "model")


def test_options_and_what_computes_are_part_of_it(model_dir, load_runner):
    loaded, checkpoint = load_runner(model_dir, "torch"), resolve_model(model_dir)
    base = store_identity(EngineConfig(), loaded, checkpoint, 100)
    assert base == store_identity(EngineConfig(num_blocks=7, seed=3), loaded, checkpoint, 100)
    assert json.loads(base)["kernels"] == "torch"
    others = [
        store_identity(EngineConfig(quantization="int8"), loaded, checkpoint, 100),
        store_identity(EngineConfig(dtype="bfloat16"), loaded, checkpoint, 100),
        store_identity(EngineConfig(kv_cache_dtype="int8"), loaded, checkpoint, 100),
        store_identity(EngineConfig(), loaded, checkpoint, 200),
        store_identity(EngineConfig(), dataclasses.replace(loaded, kernels_name="other"), checkpoint, 100),
        store_identity(EngineConfig(), dataclasses.replace(loaded, numerics={"torch": "0.1"}), checkpoint, 100),
        store_identity(EngineConfig(), load_runner(model_dir, "torch", block_size=8), checkpoint, 100),
    ]
    assert len({base, *others}) == len(others) + 1


def test_another_model_in_the_same_place_is_another_model(make_tiny_model, model_dir):
    before = model_files(model_dir)
    assert [name for name, *_ in before] == ["config.json", "model.safetensors"]
    status = (model_dir / "model.safetensors").stat()
    make_tiny_model(seed=2).save(model_dir)
    os.utime(model_dir / "model.safetensors", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (model_dir / "model.safetensors").stat().st_size == status.st_size
    after = model_files(model_dir)
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_a_model_keeps_its_identity_where_it_is_moved(make_tiny_model, model_dir, tmp_path):
    assert model_files(make_tiny_model(seed=1).save(tmp_path / "copy")) == model_files(model_dir)


def test_large_files_are_read_in_samples_and_known_by_their_time_too(model_dir, monkeypatch):
    monkeypatch.setattr(identity, "_WHOLE_BYTES", 1 << 10)
    monkeypatch.setattr(identity, "_SAMPLE_STRIDE", 8192)
    file = model_dir / "model.safetensors"
    before: Any = model_files(model_dir)
    assert before[1][3] == file.stat().st_mtime_ns
    status, size = file.stat(), file.stat().st_size
    for place in (3, 8192 * 3 + 17, size - 1):
        with file.open("r+b") as opened:
            opened.seek(place)
            byte = opened.read(1)[0]
            opened.seek(place)
            opened.write(bytes([byte ^ 1]))
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        after = model_files(model_dir)
        assert after != before
        before = after
    os.utime(file, ns=(0, 0))
    assert model_files(model_dir) != before


def test_the_code_that_computes_is_part_of_it():
    files = {str(file.relative_to(identity._PACKAGE)) for file in identity._code_files()}
    assert {"kernels/triton/attention.py", "runtime/models/llama.py", "runtime/native_runner.py"} <= files
    assert "runtime/batch.py" in files  # which tokens, and at which positions
    assert not any("server" in file for file in files)
    assert code_digest() == code_digest()
