"""A Hugging Face directory as a checkpoint: `config.json` and safetensors files, sharded or not.

Nothing in it is executed: no pickled weights, no code from the directory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..models.errors import ModelLoadError
from ..models.parameters import Piece
from .base import QuantizedRows, file_identity

MAX_JSON_BYTES = 1 << 26
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"


class SafetensorsCheckpoint:
    """Implements `base.Checkpoint`; weight files stay memory-mapped while it lives.

    Raises:
        ModelLoadError: no configuration, no safetensors weights, or a file that is not what it should be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config: Mapping[str, Any] = _read_config(path)
        self._weight_paths = _find_weight_files(path)
        self._files: dict[str, Any] = {}
        self._stored_names: dict[str, str] = {}
        for weight_path in self._weight_paths:
            self._open(weight_path)

    @property
    def tokenizer_source(self) -> Path:
        return self.path

    @property
    def chat_template(self) -> str | None:
        template_path = self.path / "chat_template.jinja"
        if template_path.is_file():
            return _read_text(template_path)
        settings = self.path / "tokenizer_config.json"
        template = _read_json(settings).get("chat_template") if settings.is_file() else None
        return template if isinstance(template, str) else None

    @property
    def identity(self) -> str:
        files = [self.path / "config.json", *self._weight_paths]
        digest = hashlib.sha256("\n".join(file_identity(file) for file in files).encode())
        return f"{self.path.resolve()}:{digest.hexdigest()[:16]}"

    def tensor_names(self) -> Sequence[str]:
        return list(self._stored_names)

    def shape(self, name: str) -> tuple[int, ...]:
        stored = self._stored_names[name]
        return tuple(self._files[stored].get_slice(stored).get_shape())

    def quantized_type(self, name: str) -> str | None:
        """None: weights here are plain numbers."""
        return None

    def quantized_rows(self, name: str) -> QuantizedRows:
        raise AssertionError(f"{name} is not stored in blocks")

    def read(self, name: str, piece: Piece | None = None) -> Tensor:
        """A tensor, or a piece of it, as it is stored, over the mapped file: pages are read as they are used. Raises
        ModelLoadError when it cannot be read."""
        stored = self._stored_names[name]
        try:
            tensor: Tensor = self._files[stored].get_tensor(stored)
            if piece is not None:
                tensor = tensor.narrow(piece.dim, piece.start, piece.stop - piece.start)
        except SafetensorError as error:
            raise ModelLoadError(f"{self.path}: tensor {name!r} cannot be read: {error}") from error
        return tensor

    def read_into(self, name: str, out: Tensor, piece: Piece | None = None) -> None:
        """See `TensorSource.read_into`. The file's pages are mapped: the only copy is the one into `out`, and of
        a piece only its own pages are read."""
        tensor = self.read(name, piece)
        if tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            raise ModelLoadError(
                f"{self.path}: tensor {name!r} has type {tensor.dtype}; weights must be floating point "
                "(quantised ones are read from GGUF files, and GPTQ or AWQ directories)"
            )
        out.copy_(tensor.reshape(out.shape))

    def _open(self, path: Path) -> None:
        try:
            file: Any = safe_open(str(path), framework="pt")
            names: list[str] = list(file.keys())
        except (SafetensorError, OSError, RuntimeError) as error:  # the last is torch's, when it cannot map the file
            raise ModelLoadError(f"{path}: not a readable safetensors file: {error}") from error
        for stored in names:
            name = canonical_name(stored)
            if name in self._stored_names:
                raise ModelLoadError(f"{path}: tensor {name!r} occurs twice in {self.path}")
            self._stored_names[name] = stored
            self._files[stored] = file


def canonical_name(stored: str) -> str:
    """Checkpoints saved from the bare model lack the prefix the full one has."""
    if stored.startswith(("layers.", "embed_tokens.", "norm.", "decoder.")):
        return f"model.{stored}"
    return stored


def _read_config(path: Path) -> dict[str, Any]:
    config_path = path / "config.json"
    if not config_path.is_file():
        raise ModelLoadError(f"{path}: the directory has no config.json, so it is not a Hugging Face model")
    config = _read_json(config_path)
    generation_path = path / "generation_config.json"
    if generation_path.is_file():
        eos = _read_json(generation_path).get("eos_token_id")
        config["eos_token_id"] = _as_list(config.get("eos_token_id")) + _as_list(eos)
    return config


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _find_weight_files(path: Path) -> list[Path]:
    index_path = path / INDEX_NAME
    if (path / SINGLE_NAME).is_file():
        return [path / SINGLE_NAME]
    if index_path.is_file():
        return _indexed_files(index_path)
    found = sorted(file for file in path.glob("*.safetensors") if not file.name.startswith("consolidated"))
    if found:
        return found
    if any(path.glob("*.bin")) or any(path.glob("*.pt")) or any(path.glob("*.pth")):
        raise ModelLoadError(
            f"{path}: the weights are pickled (.bin, .pt or .pth), which can run code when loaded and is not "
            f"supported; convert once with transformers: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(OUT)"
        )
    raise ModelLoadError(f"{path}: the directory has no *.safetensors file")


def _indexed_files(index_path: Path) -> list[Path]:
    weight_map = _read_json(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelLoadError(f"{index_path}: 'weight_map' is missing or empty")
    files: list[Path] = []
    for name in dict.fromkeys(weight_map.values()):
        if not isinstance(name, str) or Path(name).name != name:
            raise ModelLoadError(f"{index_path}: {name!r} is not the name of a file in the directory")
        if not (index_path.parent / name).is_file():
            raise ModelLoadError(f"{index_path}: the weight file {name!r} is missing")
        files.append(index_path.parent / name)
    return files


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelLoadError(f"{path}: the file is larger than {MAX_JSON_BYTES} bytes")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path}: cannot be read: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ModelLoadError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelLoadError(f"{path}: must hold a JSON object, not {type(content).__name__}")
    return content
