"""The known ways to round weights, and the known formats of checkpoints that hold rounded ones. Adding one is a new
file and a line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..models.errors import ModelLoadError
from .awq import AWQFormat
from .gptq import GPTQFormat
from .int4 import Int4Scheme
from .int8 import Int8Scheme
from .packed_format import PackedFormat, PackingSettings
from .scheme import QuantizationScheme

SCHEMES: dict[str, QuantizationScheme] = {
    Int8Scheme.name: Int8Scheme(),
    Int4Scheme.name: Int4Scheme(),
}
"""By the value of `EngineConfig.quantization`."""

FORMATS: dict[str, Callable[[PackingSettings], PackedFormat]] = {
    "gptq": GPTQFormat,
    "awq": AWQFormat,
}
"""By `quant_method` of a checkpoint's `quantization_config`."""


def find_format(quantization_config: Any, source: str) -> PackedFormat:
    """The format that a `quantization_config` describes.

    Raises:
        ModelLoadError: an unknown method, or settings it does not support.
    """
    raw = quantization_config if isinstance(quantization_config, dict) else {}
    method = raw.get("quant_method", quantization_config)
    if not isinstance(method, str) or method.lower() not in FORMATS:
        raise ModelLoadError(
            f"{source}: weights quantised with {method!r} are not supported (those of {', '.join(FORMATS)} are); use "
            "the original, with quantization='int8' or 'int4' if it is too large, or a GGUF file"
        )
    return FORMATS[method.lower()](PackingSettings(raw, source))
