"""Numbers of bytes: written alike in Python, in the environment and on the command line."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.runtime.byte_sizes import parse_bytes
from ramet.runtime.config import EngineConfig, kv_cache_memory_from_env


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("1", 1), ("64k", 65536), ("512M", 512 << 20), ("2G", 2 << 30), ("2GiB", 2 << 30), (" 3 mb", 3 << 20)],
)
def test_byte_counts(text: Any, num_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMET_KV_CACHE_MEMORY", text)
    assert parse_bytes(text) == EngineConfig(kv_cache_memory=text).kv_cache_memory == num_bytes
    assert kv_cache_memory_from_env() == num_bytes


@pytest.mark.parametrize("text", ["", "0", "-1", "G", "1.5G", "2T", "B", "1 1", "\u00b2"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="must be a number of bytes such as 512M or 2G"):
        parse_bytes(text)
