"""The files of the page, which lie beside this module: read once, served from memory."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class WebFile:
    """One of them.

    Attributes:
        etag: changes with the content.
    """

    name: str
    content: bytes
    media_type: str
    etag: str


@cache
def web_files() -> dict[str, WebFile]:
    """All of them, by name."""
    found = {}
    for path in files(__package__).iterdir():
        media_type = MEDIA_TYPES.get(path.name.rpartition(".")[2])
        if media_type is not None:
            content = path.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            found[path.name] = WebFile(path.name, content, media_type, etag)
    return found
