"""SGLang's names for sampling parameters, as its `/generate` and its offline engine take them, and the way back.

Beside sampling_params.py the other module that both the language and the engine import: one sends what the other reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .sampling_params import InvalidSamplingParamsError, SamplingParams
from .suggestions import did_you_mean

DEFAULT_MAX_NEW_TOKENS = 128
_GREEDY_BELOW = 1e-6

NATIVE_NAMES: Mapping[str, str] = {
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
    "include_stop_str_in_output": "no_stop_trim",
    **{
        name: name
        for name in (
            "n",
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
            "stop",
            "stop_token_ids",
            "stop_regex",
            "ignore_eos",
            "logit_bias",
            "skip_special_tokens",
            "regex",
            "json_schema",
            "ebnf",
        )
    },
}
"""Fields of SamplingParams that SGLang has too, with its names."""

RAMET_NAMES: Mapping[str, str] = {
    name: name for name in ("choices", "json_whitespace", "on_incomplete", "grammar_backend", "best_of")
}
"""Fields that only a server of ramet knows."""

_WITHOUT_EFFECT: Mapping[str, str] = {
    "spaces_between_special_tokens": "no spaces are put between special tokens in any case",
    "stream_interval": "every step is streamed",
}
_UNSUPPORTED: Mapping[str, str] = {
    "structural_tag": "use regex, json_schema or ebnf",
    "custom_params": "there are no custom logit processors",
    "beam_width": "use LLM.generate with use_beam_search=True",
    "watermark": "there is no watermarking",
}

_FIELD_OF = {native: field for field, native in {**NATIVE_NAMES, **RAMET_NAMES}.items()}


@dataclass(frozen=True, slots=True)
class NativeParams:
    """Sampling parameters as SGLang's users give them.

    Attributes:
        sampling: what they mean here.
        is_prefill_only: max_new_tokens was 0: the prompt is only brought into the cache, and scored if asked for.
            `sampling` then has max_tokens=1, and what is generated does not count.
    """

    sampling: SamplingParams
    is_prefill_only: bool = False


def from_native(values: Mapping[str, Any] | None) -> NativeParams:
    """Read a dictionary of SGLang's names. A value of None leaves its default, but no limit for max_new_tokens.

    Raises:
        InvalidSamplingParamsError: a name is unknown or unsupported, or a value out of range; under SGLang's name.
    """
    if values is None:
        values = {}
    if not isinstance(values, Mapping):
        raise InvalidSamplingParamsError(f"sampling_params={values!r} is not allowed: it must be a dictionary")
    values = {"max_new_tokens": DEFAULT_MAX_NEW_TOKENS, **values}
    fields = {_field_of(name, value): value for name, value in values.items() if name not in _WITHOUT_EFFECT}
    given = {name: value for name, value in fields.items() if name and (value is not None or name == "max_tokens")}
    temperature = given.get("temperature")
    if isinstance(temperature, int | float) and 0.0 <= temperature < _GREEDY_BELOW:
        given["temperature"] = 0.0
    if isinstance(given.get("logit_bias"), Mapping):  # JSON has no numbers as keys
        biases = given["logit_bias"]
        given["logit_bias"] = {_as_int(key): bias for key, bias in biases.items()}
        if len(given["logit_bias"]) < len(biases):
            raise InvalidSamplingParamsError("logit_bias has a token twice, in two spellings of its id")
    is_prefill_only = given["max_tokens"] == 0 and not isinstance(given["max_tokens"], bool)
    if is_prefill_only:
        given = {**given, "max_tokens": 1, "n": 1, "best_of": None, "min_tokens": 0}
    try:
        return NativeParams(SamplingParams(**given), is_prefill_only)
    except InvalidSamplingParamsError as error:
        raise InvalidSamplingParamsError(_with_native_name(str(error))) from error


def to_native(params: SamplingParams) -> dict[str, Any]:
    """A dictionary of SGLang's names: max_new_tokens, temperature, and what is not as it is by default there.

    Only fields of NATIVE_NAMES and RAMET_NAMES are looked at.
    """
    defaults = SamplingParams()
    native: dict[str, Any] = {"max_new_tokens": params.max_tokens, "temperature": params.temperature}
    for field, name in {**NATIVE_NAMES, **RAMET_NAMES}.items():
        value = getattr(params, field)
        if name not in native and value != getattr(defaults, field) and not (field == "top_k" and value <= 0):
            native[name] = list(value) if isinstance(value, tuple) else value
    if "logit_bias" in native:
        native["logit_bias"] = {str(token_id): bias for token_id, bias in native["logit_bias"].items()}
    return native


def _field_of(name: str, value: object) -> str | None:
    """The field of SamplingParams; None for what is asked for with no effect."""
    if name in _FIELD_OF:
        return _FIELD_OF[name]
    if name in _UNSUPPORTED:
        if value is None:
            return None
        raise InvalidSamplingParamsError(f"{name}={value!r} is not supported: {_UNSUPPORTED[name]}")
    known = sorted(_FIELD_OF)
    if name in NATIVE_NAMES:
        raise InvalidSamplingParamsError(f"sampling_params has no {name!r}; here it is called {NATIVE_NAMES[name]!r}")
    raise InvalidSamplingParamsError(
        f"sampling_params has no {name!r}{did_you_mean(str(name), known)} it takes {', '.join(known)}"
    )


def _as_int(key: object) -> object:
    return int(key) if isinstance(key, str) and key.isdecimal() else key


def _with_native_name(message: str) -> str:
    for field, native in NATIVE_NAMES.items():
        if message.startswith(f"{field}="):
            return native + message.removeprefix(field)
    return message
