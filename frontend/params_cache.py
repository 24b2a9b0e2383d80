"""SamplingParams of options that were seen before: thousands of programs ask for the same few."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from ..sampling_params import SamplingParams

_SIMPLE = (bool, int, float, str, type(None))


def params_of(options: Mapping[str, Any]) -> SamplingParams:
    """`SamplingParams(**options)`, checked once for options that are told apart by how they are written.

    Raises:
        InvalidSamplingParamsError: they are out of range, or contradict each other.
    """
    if not all(_is_written_out(value) for value in options.values()):
        return SamplingParams(**options)
    return _cached(_Options(options))


def _is_written_out(value: object) -> bool:
    """Whether `repr` tells everything about it."""
    return type(value) in _SIMPLE or (type(value) is tuple and all(type(item) in _SIMPLE for item in value))


class _Options:
    """Options as a key. What is equal but of another type, as 1 and True, is another key: one may be refused."""

    __slots__ = ("_key", "options")

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options
        self._key = repr(options)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Options) and self._key == other._key


def _checked(options: _Options) -> SamplingParams:
    return SamplingParams(**options.options)


_cached: Callable[[_Options], SamplingParams] = lru_cache(maxsize=1024)(_checked)
