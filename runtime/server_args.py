"""SGLang's names for options of a server, turned into those of an LLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import InvalidConfigError

_NAMES: Mapping[str, str] = {
    "model_path": "model",
    "context_length": "max_model_len",
    "max_running_requests": "max_num_seqs",
    "page_size": "block_size",
    "random_seed": "seed",
    "radix_eviction_policy": "eviction_policy",
}
_NEGATIONS: Mapping[str, str] = {
    "disable_radix_cache": "enable_prefix_caching",
    "disable_overlap_schedule": "overlap_schedule",
}
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "tp_size": (1,),
    "dp_size": (1,),
    "pp_size": (1,),
    "trust_remote_code": (False,),
    "skip_tokenizer_init": (False,),
    "is_embedding": (False,),
    "disable_cuda_graph": (True, False),
}
_REASONS: Mapping[str, str] = {
    "mem_fraction_static": "say how many bytes the cache may have with kv_cache_memory",
    "max_total_tokens": "say how many blocks the cache has with num_blocks",
    "tokenizer_path": "a model brings its tokenizer",
    "host": "nothing listens on the network here; a server is `ramet serve`",
    "port": "nothing listens on the network here; a server is `ramet serve`",
    "api_key": "nothing listens on the network here; a server is `ramet serve`",
    "log_level": "set the level of the logger 'ramet'",
    "attention_backend": "name what computes the model with kernels",
    "grammar_backend": "say it with each request, in its sampling parameters",
    "quantization": "a model file says how it is stored",
    "dtype": "a model file says how it is stored",
}


def llm_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of an LLM, from SGLang's names and the LLM's own. Names that neither knows the LLM refuses.

    Raises:
        InvalidConfigError: an option is given twice, or asks for what there is not.
    """
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name in _NEUTRAL:
            if value is not None and value not in _NEUTRAL[name]:
                allowed = " or ".join(map(repr, _NEUTRAL[name]))
                raise InvalidConfigError(f"{name}={value!r} is not supported: it can only be {allowed}")
            continue
        if name in _REASONS:
            raise InvalidConfigError(f"{name}={value!r} is not supported: {_REASONS[name]}")
        for own, own_value in _translated(name, value).items():
            if own in found:
                raise InvalidConfigError(f"{name} is given twice, once as {own!r}: give one of them")
            found[own] = own_value
    return found


def _translated(name: str, value: Any) -> dict[str, Any]:
    if name == "chunked_prefill_size":
        return {"enable_chunked_prefill": False} if value == -1 else {"max_num_batched_tokens": value}
    if name in _NEGATIONS:
        if not isinstance(value, bool):
            raise InvalidConfigError(f"{name}={value!r} must be True or False")
        return {_NEGATIONS[name]: False} if value else {}
    return {_NAMES.get(name, name): value}
