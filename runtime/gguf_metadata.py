"""Reads the key-value metadata of a GGUF file, and nothing of its tensors.

The reader of the `gguf` package makes numpy views of every string and takes seconds on a vocabulary of 49,152 tokens;
walking the bytes takes a tenth of one. Every length is checked against the file before anything is allocated, so a
truncated or hostile file ends in a message and not in a traceback or a huge allocation.

Source: the GGUF specification, version 3 (docs/gguf.md of the ggml project).
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS = 1 << 16
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "?", 10: "Q", 11: "q", 12: "d"}


class GgufMetadataError(ValueError):
    """The file is not a readable GGUF file. The message names the file and the reason."""


def read_gguf_metadata(path: Path) -> dict[str, Any]:
    """All metadata of a GGUF file.

    Values are int, float, bool, str or a list of them. Bytes that are not UTF-8 in a string become U+FFFD.

    Raises:
        GgufMetadataError: not a GGUF file, an unknown version, or the file ends too early.
        OSError: the file cannot be opened.
    """
    if path.stat().st_size < 24:
        raise GgufMetadataError(f"{path} is not a GGUF file: it has only {path.stat().st_size} bytes")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _Reader(path, data).read()


class _Reader:
    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.position = 0

    def read(self) -> dict[str, Any]:
        if self.data[:4] != MAGIC:
            raise GgufMetadataError(f"{self.path} is not a GGUF file: it begins with {self.data[:4]!r}, not {MAGIC!r}")
        self.position = 4
        version, _, num_keys = self._unpack("<IQQ")
        if version not in VERSIONS:
            raise GgufMetadataError(f"{self.path} has GGUF version {version}; this program reads {VERSIONS}")
        if num_keys > MAX_KEYS:
            raise self._error(f"it claims {num_keys} metadata keys, more than {MAX_KEYS}")
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string()
            (kind,) = self._unpack("<I")
            metadata[key] = self._value(kind, key)
        return metadata

    def _value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._string()
        if kind in _SCALARS:
            return self._unpack("<" + _SCALARS[kind])[0]
        if kind != _ARRAY:
            raise self._error(f"the value of {key!r} has unknown type {kind}")
        item_kind, length = self._unpack("<IQ")
        if item_kind == _STRING:
            self._need(length * 8)
            return [self._string() for _ in range(length)]
        if item_kind not in _SCALARS:
            raise self._error(f"the array {key!r} has items of unknown type {item_kind}")
        self._need(length * struct.calcsize("<" + _SCALARS[item_kind]))
        return list(self._unpack(f"<{length}{_SCALARS[item_kind]}"))

    def _string(self) -> str:
        (length,) = self._unpack("<Q")
        self._need(length)
        text = self.data[self.position : self.position + length].decode("utf-8", errors="replace")
        self.position += length
        return text

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        size = struct.calcsize(layout)
        self._need(size)
        values = struct.unpack_from(layout, self.data, self.position)
        self.position += size
        return values

    def _need(self, num_bytes: int) -> None:
        if num_bytes > self.size - self.position:
            raise self._error(f"{num_bytes} bytes are wanted at offset {self.position} of {self.size}")

    def _error(self, reason: str) -> GgufMetadataError:
        return GgufMetadataError(f"{self.path} is truncated or corrupt: {reason}; fetch the file again")
