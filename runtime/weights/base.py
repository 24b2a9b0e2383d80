"""What a checkpoint offers, whatever its format: a configuration, named tensors, and where its tokenizer is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..models.parameters import TensorSource


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """A matrix as its file stores it.

    Attributes:
        type: GGUF's name of the block type, such as "Q4_1".
        rows: uint8 [outputs, bytes of a row], contiguous; rows in Hugging Face order.
    """

    type: str
    rows: NDArray[np.uint8]


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

    def quantized_type(self, name: str) -> str | None:
        """GGUF's name of a matrix's block type; None where it is stored as plain numbers."""
        ...

    def quantized_rows(self, name: str) -> QuantizedRows:
        """The blocks of a matrix whose `quantized_type` is not None; the file was checked to be long enough."""
        ...


def file_identity(path: Path) -> str:
    """Resolved path, size in bytes and time of change of a file."""
    status = path.stat()
    return f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}"
