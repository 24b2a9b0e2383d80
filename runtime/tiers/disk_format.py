"""The two files of a store on disk.

    NAME.index      a page with the store's identity, then a header for each slot
    NAME.blocks     the data of each slot, on page boundaries

    header          stamp u32 | digest of what follows | parent | namespace | digest of the data
                    | tokens i32 * block_size

A slot is written in three steps: its header is made void, then its data is written, then its header. Whatever a crash
leaves, a header that is whole names data by its digest, which is looked at whenever the data is loaded. So nothing
depends on the order in which pages reach the disk, and nothing is ever flushed.

A block is called by the digest of its namespace and of all tokens up to its end: that of its parent, which the header
has, and its own tokens. So a header says of itself, and in every process alike, which prefix it ends: whoever else
writes to the files, be it a second writer at the same time, may cost blocks but never put one behind a wrong parent.
The stamp, the second of last use, is the only thing without a digest: it decides nothing but what is given up first.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from ..cache_namespace import CacheNamespace

PAGE_BYTES = 4096
MAGIC = b"ramet prefixes 2\n"
DIGEST_BYTES = 32
_STAMP = struct.Struct("<I")
_LENGTH = struct.Struct("<I")
_FIELDS = struct.Struct("<32s32s32s")
_DIGEST_AT = _STAMP.size
_FIELDS_AT = _DIGEST_AT + DIGEST_BYTES
_KEY_AT = _FIELDS_AT + _FIELDS.size


@dataclass(frozen=True, slots=True)
class SlotHeader:
    """What is known of a slot's block.

    Attributes:
        parent: what the block before it is called; the namespace if there is none.
        namespace: see `namespace_digest`.
        data_digest: of its data.
        key: its tokens, int32 in bytes.
        stamp: when it was used last, in seconds.
    """

    parent: bytes
    namespace: bytes
    data_digest: bytes
    key: bytes
    stamp: int

    @property
    def name(self) -> bytes:
        return block_name(self.parent, self.key)

    def pack(self) -> bytes:
        body = _FIELDS.pack(self.parent, self.namespace, self.data_digest) + self.key
        return pack_stamp(self.stamp) + digest(body) + body

    @staticmethod
    def unpack(data: bytes) -> SlotHeader | None:
        """None if it is void or damaged."""
        body = data[_FIELDS_AT:]
        if data[_DIGEST_AT:_FIELDS_AT] != digest(body):
            return None
        parent, namespace, data_digest = _FIELDS.unpack_from(body)
        (stamp,) = _STAMP.unpack_from(data)
        return SlotHeader(parent, namespace, data_digest, data[_KEY_AT:], stamp)


def header_bytes(block_size: int) -> int:
    return _KEY_AT + 4 * block_size


def void_header(block_size: int) -> bytes:
    return bytes(header_bytes(block_size))


def pack_stamp(seconds: int) -> bytes:
    return _STAMP.pack(seconds & 0xFFFFFFFF)


def padded(num_bytes: int) -> int:
    """To whole pages."""
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES


def digest(data: bytes | memoryview) -> bytes:
    return hashlib.sha256(data).digest()


def block_name(parent: bytes, key: bytes) -> bytes:
    """What a block of the tokens `key` is called, behind a block, or in a namespace, that is called `parent`."""
    return digest(b"ramet block " + parent + key)


def identity_text(identity: Mapping[str, object]) -> bytes:
    return json.dumps(identity, sort_keys=True).encode()


def store_name(identity: bytes) -> str:
    """What a store's files are called. It finds them only: the first page has the identity itself."""
    return digest(identity).hex()[:32]


def pack_first_pages(identity: bytes) -> bytes:
    body = MAGIC + _LENGTH.pack(len(identity)) + identity
    return (body + digest(body)).ljust(padded(len(body) + DIGEST_BYTES), b"\0")


def namespace_digest(namespace: Hashable) -> bytes | None:
    """32 bytes for a namespace that means the same in every process: None, a text, bytes, or a server's. None for any
    other: what is cached there is not kept.

    A digest and no text, because clients may take their salts for secrets. It is as long as two can ever be told apart.
    """
    if namespace is None:
        data = b"none"
    elif type(namespace) is str:
        data = b"text" + namespace.encode("utf-8", "surrogatepass")
    elif type(namespace) is bytes:
        data = b"data" + namespace
    elif type(namespace) is CacheNamespace:
        data = b"tenant" + namespace.to_bytes()
    else:
        return None
    return digest(b"ramet namespace " + data)
