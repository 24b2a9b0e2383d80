"""What a client that asked for a path that is not there probably meant: most often its base URL has a /v1 too few or
too many."""

from __future__ import annotations

import re
from collections.abc import Collection

_PREFIXES = ("/v1", "/v1/messages", "/v1/chat")
"""Which a base URL may lack, or have too often."""


def intended_path(path: str, known: Collection[str]) -> str | None:
    """The path among those known that differs only in how it begins, or by slashes; None if there is none."""
    plain = re.sub("//+", "/", path).rstrip("/").removesuffix("/v1") or "/"
    tail = re.sub(r"^(/v1)+(?=/)", "", plain)
    candidates = (plain, tail, *(prefix + tail for prefix in _PREFIXES))
    return next((candidate for candidate in candidates if candidate in known and candidate not in ("/", path)), None)


def not_found(path: str, known: Collection[str]) -> tuple[str, str | None]:
    """
    Returns:
        What to say of a path that is not there, and the path that was probably meant.
    """
    meant = intended_path(path, known)
    said = f"there is no {path:.100} here"
    if path.rstrip("/") == "/v1":
        return f"{said}: it is where the endpoints of OpenAI's clients begin, their base_url; see /docs", None
    if meant is None:
        return said, None
    if meant.startswith("/v1/messages"):
        return f"{said}; it is {meant}: the base_url of Anthropic's clients ends without /v1", meant
    if meant.startswith("/v1/"):
        return f"{said}; it is {meant}: the base_url of OpenAI's clients ends with /v1, once", meant
    return f"{said}; it is {meant}", meant
