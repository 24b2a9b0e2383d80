"""Reads the keys of a Hugging Face `config.json`, with errors that name the file, the key and the value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from .base import RopeConfig, RopeType
from .errors import ModelLoadError

MAX_SIZE = 1 << 24
"""No size in a configuration (layers, heads, vocabulary, width, context) is larger; a corrupt file may claim so."""

MAX_LAYERS = 1024
MAX_HEAD_DIM = 4096

ROPE_TYPES: tuple[RopeType, ...] = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "factors")


class HFConfig:
    """Typed, bounds-checked access to one configuration. Every method raises ModelLoadError on a bad value."""

    def __init__(self, raw: Mapping[str, Any], source: str) -> None:
        self.raw = raw
        self.source = source

    def fail(self, key: str, value: object, limit: str) -> ModelLoadError:
        return ModelLoadError(f"{self.source}: {key}={value!r} is not supported: {limit}")

    def size(self, key: str, default: int | None = None) -> int:
        """A positive count; a missing or null key takes `default`."""
        value = self.optional_size(key)
        if value is not None:
            return value
        if default is None:
            raise ModelLoadError(f"{self.source}: the configuration lacks {key!r}")
        return default

    def optional_size(self, key: str) -> int | None:
        value = self.raw.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SIZE:
            raise self.fail(key, value, f"it must be an integer in [1, {MAX_SIZE}]")
        return value

    def num_layers(self) -> int:
        value = self.size("num_hidden_layers")
        if value > MAX_LAYERS:
            raise self.fail("num_hidden_layers", value, f"it must be an integer in [1, {MAX_LAYERS}]")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.raw.get(key, default)
        if value is None:
            value = default
        if value is None:
            raise ModelLoadError(f"{self.source}: the configuration lacks {key!r}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.fail(key, value, "it must be a finite number")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        value = self.number(key, default)
        if value <= 0:
            raise self.fail(key, value, "it must be above 0")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.raw.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(key, value, "it must be true or false")
        return value

    def require(self, key: str, allowed: tuple[object, ...], default: object) -> object:
        """The value of `key`, which must be one of `allowed`."""
        value = self.raw.get(key)
        if value is None:
            value = default
        if value not in allowed:
            raise self.fail(key, value, f"it must be one of {list(allowed)}")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """An id, a list of ids, or nothing."""
        value = self.raw.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        for token_id in ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
                raise self.fail(key, value, "it must be a token id or a list of token ids")
        return tuple(dict.fromkeys(ids))

    def token_id(self, key: str) -> int | None:
        ids = self.token_ids(key)
        return ids[0] if ids else None

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of positive finite numbers; empty when missing."""
        value = self.raw.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(
            isinstance(item, int | float) and math.isfinite(item) and item > 0 for item in value
        ):
            raise self.fail(key, value, "it must be a list of positive numbers")
        return tuple(float(item) for item in value)

    def rope(self) -> RopeConfig:
        """Rope parameters, from `rope_parameters` (transformers 5) or `rope_scaling` and `rope_theta` (4)."""
        raw = self.raw.get("rope_scaling") or self.raw.get("rope_parameters") or {}
        if not isinstance(raw, dict) or any(isinstance(value, dict) for value in raw.values()):
            raise self.fail("rope_parameters", raw, "it must be one set of parameters for all layers")
        params = HFConfig({"rope_theta": self.raw.get("rope_theta"), **raw}, f"{self.source}: rope_parameters")
        if params.raw.get("partial_rotary_factor") is None:
            params = HFConfig(
                {**params.raw, "partial_rotary_factor": self.raw.get("partial_rotary_factor")}, params.source
            )
        rope_type = params.require("rope_type", ROPE_TYPES, params.raw.get("type") or "default")
        return self._rope_of_type(cast(RopeType, rope_type), params)

    def _rope_of_type(self, rope_type: RopeType, params: HFConfig) -> RopeConfig:
        limit = self.size("max_position_embeddings", 2048)
        original = self.optional_size("original_max_position_embeddings")
        if original is None:
            original = params.size("original_max_position_embeddings", limit)
        derives_factor = rope_type in ("default", "factors", "yarn", "longrope")
        factor = params.positive("factor", max(limit / original, 1.0) if derives_factor else None)
        attention_factor = params.raw.get("attention_factor")
        partial = params.positive("partial_rotary_factor", 1.0)
        if partial > 1:
            raise params.fail("partial_rotary_factor", partial, "it must lie in (0, 1]")
        low, high = params.positive("low_freq_factor", 1.0), params.positive("high_freq_factor", 4.0)
        theta = params.positive("rope_theta", 10000.0)
        if theta <= 1:
            raise params.fail("rope_theta", theta, "it must be above 1")
        if high <= low:
            raise params.fail("high_freq_factor", high, f"it must be above low_freq_factor={low:g}")
        return RopeConfig(
            type=rope_type,
            theta=theta,
            partial_rotary_factor=partial,
            factor=factor,
            original_max_position_embeddings=original if rope_type in ("llama3", "yarn", "longrope") else None,
            attention_factor=None if attention_factor is None else params.number("attention_factor"),
            beta_fast=params.positive("beta_fast", 32.0),
            beta_slow=params.positive("beta_slow", 1.0),
            mscale=params.number("mscale", 0.0),
            mscale_all_dim=params.number("mscale_all_dim", 0.0),
            is_truncated=params.flag("truncate", True),
            low_freq_factor=low,
            high_freq_factor=high,
            short_factors=params.numbers("short_factor"),
            long_factors=params.numbers("long_factor"),
        )
