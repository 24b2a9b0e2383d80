"""What the bits of a stored block depend on, beside its tokens: the model, and everything that computes with it.

A store is of one identity. It is better to compute again than to guess: whatever might change a bit is part of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from ..config import EngineConfig
from ..runner_spec import LoadedRunner
from ..weights.base import Checkpoint
from .disk_format import identity_text

_PACKAGE = Path(__file__).resolve().parents[2]
_CODE = ("kernels", "runtime/models", "runtime/quantization", "runtime/weights", "runtime/gpu", "runtime/parallel")
_CODE_FILES = (
    *("batch.py", "padding.py", "runner.py", "kv_cache.py"),
    *("native_loading.py", "native_model.py", "native_runner.py"),
)
_MODEL_SUFFIXES = {".gguf", ".safetensors", ".json"}
_WHOLE_BYTES = 256 << 20
_SAMPLE_STRIDE = 1 << 20
_SAMPLE_BYTES = 4096


def store_identity(config: EngineConfig, loaded: LoadedRunner, checkpoint: Checkpoint, bytes_per_block: int) -> bytes:
    """The identity as JSON text. Reads the model's files, large ones in samples: about a second for each 10 GB.

    Raises:
        OSError: one cannot be read any more.
    """
    rope = loaded.model_config.rope
    is_length_part = rope is not None and rope.type == "longrope"  # which has other frequencies for long contexts
    return identity_text(
        {
            "model": model_files(checkpoint.path),
            "kernels": loaded.kernels_name,
            "numerics": dict(loaded.numerics),
            "code": code_digest(),
            "dtype": config.dtype,
            "kv_cache_dtype": config.kv_cache_dtype,
            "quantization": config.quantization,
            "max_model_len": loaded.max_model_len if is_length_part else None,
            "ranks": config.tensor_parallel_size,
            "block_size": loaded.runner.block_size,
            "bytes_per_block": bytes_per_block,
        }
    )


def model_files(path: Path) -> list[list[object]]:
    """Name, size, content and, for files too large to be read whole, time of change of each file of a model."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in _MODEL_SUFFIXES and file.is_file())
    else:
        files = [path]
    return [_file_identity(file) for file in files]


def _file_identity(path: Path) -> list[object]:
    status = path.stat()
    is_whole = status.st_size <= _WHOLE_BYTES
    with path.open("rb") as file:
        if is_whole:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        else:
            sample = hashlib.sha256()
            for place in (*range(0, status.st_size, _SAMPLE_STRIDE), status.st_size - _SAMPLE_BYTES):
                file.seek(place)
                sample.update(file.read(_SAMPLE_BYTES))
            content = sample.hexdigest()
    return [path.name, status.st_size, content, None if is_whole else status.st_mtime_ns]


def code_digest() -> str:
    """Of the Python code that computes; compiled code is known by itself (`LoadedRunner.numerics`)."""
    digest = hashlib.sha256()
    for file in _code_files():
        digest.update(f"{file.relative_to(_PACKAGE)}\n".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _code_files() -> Iterable[Path]:
    for folder in _CODE:
        yield from sorted((_PACKAGE / folder).rglob("*.py"))
    for name in _CODE_FILES:
        yield _PACKAGE / "runtime" / name
