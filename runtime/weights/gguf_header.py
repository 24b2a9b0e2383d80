"""Reads the header of a GGUF file: metadata and the table of tensors.

    magic "GGUF" | version u32 | tensor count u64 | metadata count u64
    metadata:  key string | type u32 | value              (array: element type u32 | count u64 | elements)
    tensors:   name string | dimensions u32 | sizes u64 each, innermost first | type u32 | offset u64
    padding to `general.alignment`, then the data

A file is untrusted: every length is compared with the bytes that are left before anything is read or allocated, so a
corrupt one costs at most one pass over the file. Written by hand because gguf's own reader keeps two numpy views per
string (seconds for a 49,152-token vocabulary) and believes every length.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from ..models.errors import ModelLoadError

SUPPORTED_VERSIONS = (2, 3)
MAX_KEY_LEN = 65535
MAX_DIMENSIONS = 4
MAX_ARRAY_DEPTH = 4
MAX_ARRAY_ELEMENTS = 1 << 21
"""Of all arrays together; the largest vocabularies in use, with scores, types and merges, have 1.3 million."""
MAX_STRING_BYTES = 1 << 26
MAX_REPAIRED_BYTES = 1 << 16
"""A longer string that is not UTF-8 is damage, not an odd token."""
DEFAULT_ALIGNMENT = 32
SMALLEST_METADATA_ENTRY = 8 + 4 + 1
SMALLEST_TENSOR_ENTRY = 8 + 4 + 4 + 8

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """Where a tensor lies in the file.

    Attributes:
        shape: outermost dimension first.
        offset: first byte, from the beginning of the file.
        num_bytes: length of the data; it lies wholly inside the file.
    """

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """Metadata values are int, float, bool, str or lists of them. Tensors are in file order.

    Bytes of a string that are not UTF-8 become U+FFFD: a vocabulary may hold some, and it is not ours to judge."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, GGUFTensor]


def read_gguf_header(path: Path) -> GGUFHeader:
    """Parse the header of `path`. Costs 0.1 s for a vocabulary of 49,152 tokens.

    Raises:
        ModelLoadError: the file cannot be read, is no GGUF file, is truncated or contradicts itself.
    """
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ModelLoadError(f"{path}: not a GGUF file (it does not begin with the bytes 'GGUF')")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _HeaderParser(path, data).parse()
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror or error}") from error


class _HeaderParser:
    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._size = len(data)
        self._position = 4
        self._num_array_elements = 0

    def parse(self) -> GGUFHeader:
        version = self._scalar("I")
        if version not in SUPPORTED_VERSIONS:
            is_big_endian = int.from_bytes(struct.pack("<I", version), "big") in SUPPORTED_VERSIONS
            reason = "a big-endian file" if is_big_endian else f"GGUF version {version}"
            raise self._fail(f"{reason} is not supported, only little-endian versions {list(SUPPORTED_VERSIONS)}")
        num_tensors, num_entries = self._scalar("Q"), self._scalar("Q")
        self._check_count("tensors", num_tensors, SMALLEST_TENSOR_ENTRY)
        self._check_count("metadata entries", num_entries, SMALLEST_METADATA_ENTRY)
        metadata: dict[str, Any] = {}
        for _ in range(num_entries):
            key = self._name("metadata key")
            if key in metadata:
                raise self._fail(f"metadata key {key!r} occurs twice")
            metadata[key] = self._value(self._scalar("I"), depth=0)
        entries = [self._tensor_entry() for _ in range(num_tensors)]
        return GGUFHeader(metadata, self._locate(entries, self._alignment(metadata)))

    def _fail(self, reason: str) -> ModelLoadError:
        return ModelLoadError(f"{self._path}: {reason}")

    def _take(self, num_bytes: int) -> int:
        """Position of the next `num_bytes` bytes, which are consumed."""
        start = self._position
        if num_bytes > self._size - start:
            raise self._fail(
                f"the file is truncated or corrupt: {num_bytes} bytes are wanted at offset {start}, "
                f"it has {self._size - start} left"
            )
        self._position = start + num_bytes
        return start

    def _check_array(self, count: int) -> None:
        self._num_array_elements += count
        if self._num_array_elements > MAX_ARRAY_ELEMENTS:
            raise self._fail(f"the metadata's arrays hold more than {MAX_ARRAY_ELEMENTS} elements")

    def _check_count(self, what: str, count: int, smallest: int) -> None:
        left = self._size - self._position
        if count * smallest > left:
            raise self._fail(f"the file is truncated or corrupt: it claims {count} {what} in {left} bytes")

    def _scalar(self, code: str) -> Any:
        layout = f"<{code}"
        start = self._take(struct.calcsize(layout))
        return struct.unpack_from(layout, self._data, start)[0]

    def _string(self) -> str:
        length = self._scalar("Q")
        start = self._take(length)
        return self._decode(start, start + length)

    def _decode(self, start: int, end: int) -> str:
        if end - start > MAX_STRING_BYTES:
            raise self._fail(f"the string at offset {start} has {end - start} bytes; the limit is {MAX_STRING_BYTES}")
        raw = self._data[start:end]
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            if len(raw) > MAX_REPAIRED_BYTES:
                raise self._fail(f"the string of {len(raw)} bytes at offset {start} is not UTF-8") from error
            return raw.decode("utf-8", errors="replace")

    def _name(self, what: str) -> str:
        name = self._string()
        if not 0 < len(name) <= MAX_KEY_LEN:
            raise self._fail(f"a {what} has {len(name)} characters; the limit is 1 to {MAX_KEY_LEN}")
        return name

    def _value(self, type_id: int, depth: int) -> Any:
        if type_id == _STRING:
            return self._string()
        if type_id == _ARRAY:
            return self._array(depth)
        if type_id not in _SCALARS:
            raise self._fail(f"unknown metadata type {type_id} at offset {self._position}")
        return self._scalar(_SCALARS[type_id])

    def _array(self, depth: int) -> list[Any]:
        if depth >= MAX_ARRAY_DEPTH:
            raise self._fail(f"metadata arrays are nested deeper than {MAX_ARRAY_DEPTH}")
        type_id, count = self._scalar("I"), self._scalar("Q")
        if type_id in _SCALARS:
            start = self._take(count * struct.calcsize(f"<{_SCALARS[type_id]}"))
            self._check_array(count)
            return list(struct.unpack_from(f"<{count}{_SCALARS[type_id]}", self._data, start))
        if type_id == _STRING:
            return self._strings(count)
        self._check_count("array elements", count, 12)
        self._check_array(count)
        return [self._value(type_id, depth + 1) for _ in range(count)]

    def _strings(self, count: int) -> list[str]:
        """The hot loop: vocabularies and merges are here."""
        self._check_count("strings", count, 8)
        self._check_array(count)
        data, size, position = self._data, self._size, self._position
        unpack_length = struct.Struct("<Q").unpack_from
        strings: list[str] = []
        for _ in range(count):
            start = position + 8
            position = start + unpack_length(data, position)[0] if start <= size else size + 1
            if position > size:
                self._take(size + 1)
            strings.append(self._decode(start, position))
        self._position = position
        return strings

    def _alignment(self, metadata: Mapping[str, Any]) -> int:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise self._fail(f"general.alignment={alignment!r} is not a power of two")
        return alignment

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
        name = self._name("tensor name")
        num_dimensions = self._scalar("I")
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            raise self._fail(f"tensor {name!r} has {num_dimensions} dimensions; the limit is 1 to {MAX_DIMENSIONS}")
        shape = tuple(reversed([int(self._scalar("Q")) for _ in range(num_dimensions)]))
        type_id, offset = self._scalar("I"), self._scalar("Q")
        try:
            quantization = GGMLQuantizationType(type_id)
        except ValueError as error:
            raise self._fail(f"tensor {name!r} has the unknown data type {type_id}") from error
        return name, shape, quantization, offset

    def _locate(
        self, entries: list[tuple[str, tuple[int, ...], GGMLQuantizationType, int]], alignment: int
    ) -> dict[str, GGUFTensor]:
        data_start = -(-self._position // alignment) * alignment
        tensors: dict[str, GGUFTensor] = {}
        for name, shape, quantization, offset in entries:
            if name in tensors:
                raise self._fail(f"tensor {name!r} occurs twice")
            block_len, block_bytes = GGML_QUANT_SIZES[quantization]
            num_rows = 1
            for size in shape[:-1]:
                num_rows *= size
            if 0 in shape or shape[-1] % block_len or offset % alignment:
                raise self._fail(
                    f"tensor {name!r} of type {quantization.name} has the impossible shape {list(shape)} "
                    f"or offset {offset}"
                )
            num_bytes = num_rows * (shape[-1] // block_len) * block_bytes
            start = data_start + offset
            if start + num_bytes > self._size:
                raise self._fail(
                    f"the file is truncated or corrupt: tensor {name!r} ends at byte {start + num_bytes}, "
                    f"the file at {self._size}"
                )
            tensors[name] = GGUFTensor(name, quantization, shape, start, num_bytes)
        return tensors
