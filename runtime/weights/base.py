"""What a checkpoint offers, whatever its format: a configuration, named tensors, and where its tokenizer is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ..models.parameters import TensorSource


class Checkpoint(TensorSource, Protocol):
    """A model on disk, opened: its header is read, its weights are not.

    Attributes:
        path: the `.gguf` file or the directory.
        config: keys and values as in a Hugging Face `config.json`, whatever the format.
        tokenizer_source: the file or directory the tokenizer is read from.
        chat_template: Jinja source, or None; untrusted input.
        identity: names this very content (path, size, time of change); a key for caches of what is derived from it.
    """

    @property
    def config(self) -> Mapping[str, Any]: ...

    @property
    def tokenizer_source(self) -> Path: ...

    @property
    def chat_template(self) -> str | None: ...

    @property
    def identity(self) -> str: ...


def file_identity(path: Path) -> str:
    """Resolved path, size in bytes and time of change of a file."""
    status = path.stat()
    return f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}"
