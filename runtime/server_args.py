"""SGLang's names for options of a server, turned into those of an LLM."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ..kernels.dispatch import UnsupportedDeviceError, check_device
from .config import EngineConfig
from .errors import InvalidConfigError
from .padding import sizes_up_to

NAMES: Mapping[str, str] = {
    "model_path": "model",
    "context_length": "max_model_len",
    "max_running_requests": "max_num_seqs",
    "page_size": "block_size",
    "random_seed": "seed",
    "tp_size": "tensor_parallel_size",
    "radix_eviction_policy": "eviction_policy",
    "mem_fraction_static": "gpu_memory_utilization",
}
NEGATIONS: Mapping[str, str] = {
    "disable_radix_cache": "enable_prefix_caching",
    "disable_overlap_schedule": "overlap_schedule",
}
OWN_NAMES: Mapping[str, str] = {**NAMES, "chunked_prefill_size": "max_num_batched_tokens"}
"""Options whose values are those of ours."""
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "dp_size": (1,),
    "pp_size": (1,),
    "ep_size": (1,),
    "nnodes": (1,),
    "node_rank": (0,),
    "trust_remote_code": (False,),
    "skip_tokenizer_init": (False,),
    "is_embedding": (False,),
    "enable_lora": (False,),
    "tokenizer_mode": ("auto",),
    "load_format": ("auto",),
}
STORED_FORMS = frozenset({"awq", "gptq", "gguf", "auto"})
"""Values of `quantization` that say how a checkpoint is stored, which it says itself."""
GRAPHS = frozenset({"disable_cuda_graph", "cuda_graph_bs", "cuda_graph_max_bs"})
"""Together they say which batch sizes are captured."""
WITHOUT_EFFECT = frozenset(
    {"launch_timeout", "watchdog_timeout", "stream_interval", "decode_log_interval", "log_requests", "show_time_cost"}
    | {"enable_metrics", "enable_cache_report", "disable_custom_all_reduce"}
    | {"enable_p2p_check", "enable_torch_compile", "torch_compile_max_bs", "enable_mixed_chunk", "sampling_backend"}
    | {"schedule_conservativeness", "mm_attention_backend"}
)
"""They say how SGLang's server starts, logs or computes. No output depends on them, and there is nothing to set."""
REASONS: Mapping[str, str] = {
    "max_total_tokens": "say how many blocks the cache has with num_blocks",
    "max_prefill_tokens": "say how many tokens a step computes with chunked_prefill_size",
    "served_model_name": "a model has the name it was loaded by",
    "chat_template": "a model brings its template",
    "revision": "give the directory of the model",
    "lora_paths": "there are no adapters",
    "speculative_algorithm": "tokens are computed one after the other",
    "tokenizer_path": "a model brings its tokenizer",
    "host": "nothing listens on the network here: use Runtime(host=...), or `ramet serve`",
    "port": "nothing listens on the network here: use Runtime(port=...), or `ramet serve`",
    "api_key": "nothing listens on the network here: use Runtime(api_key=...), or `ramet serve`",
    "attention_backend": "name what computes the model with kernels",
    "grammar_backend": "say it with each request, in its sampling parameters",
}


def llm_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of an LLM, from SGLang's names and the LLM's own. Names that neither knows the LLM refuses.

    Raises:
        InvalidConfigError: an option is given twice, or asks for what there is not.
    """
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name in WITHOUT_EFFECT or name in GRAPHS or (value is None and name in (*REASONS, *NAMES)):
            continue
        if name in NEUTRAL:
            if value is not None and value not in NEUTRAL[name]:
                allowed = " or ".join(map(repr, NEUTRAL[name]))
                raise InvalidConfigError(f"{name}={value!r} is not supported: it can only be {allowed}")
            continue
        if name in REASONS:
            raise InvalidConfigError(f"{name}={value!r} is not supported: {REASONS[name]}")
        for own, own_value in _translated(name, value).items():
            if own in found:
                raise InvalidConfigError(f"{name} is given twice, once as {own!r}: give one of them")
            found[own] = own_value
    sizes = _captured_batch_sizes(options, found)
    if sizes is not None:
        if "captured_batch_sizes" in found:
            names = ", ".join(sorted(GRAPHS & set(options)))
            raise InvalidConfigError(f"captured_batch_sizes is given twice, once as {names}: give one of them")
        found["captured_batch_sizes"] = sizes
    return found


def _captured_batch_sizes(options: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[int, ...] | None:
    """What SGLang's options of graphs come to; None where nothing is said, or there is no GPU to capture anything."""
    is_disabled, sizes, most = (
        options.get(name) for name in ("disable_cuda_graph", "cuda_graph_bs", "cuda_graph_max_bs")
    )
    if is_disabled is not None and not isinstance(is_disabled, bool):
        raise InvalidConfigError(f"disable_cuda_graph={is_disabled!r} must be True or False")
    if most is not None and not _is_count(most):
        raise InvalidConfigError(f"cuda_graph_max_bs={most!r} must be a positive integer")
    if sizes is not None and not (isinstance(sizes, list | tuple) and all(_is_count(size) for size in sizes)):
        raise InvalidConfigError(f"cuda_graph_bs={sizes!r} must be a list of positive integers")
    if is_disabled:
        return ()
    if (sizes is None and most is None) or not _is_for_gpu(options):
        return None
    if sizes is not None:
        return tuple(size for size in sizes if most is None or size <= most)
    assert most is not None
    usual = EngineConfig()
    limits = (
        found.get("max_num_seqs", usual.max_num_seqs),
        found.get("max_num_batched_tokens", usual.max_num_batched_tokens),
    )
    return sizes_up_to(min(most, *filter(_is_count, limits)))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_for_gpu(options: Mapping[str, Any]) -> bool:
    try:
        return check_device(options.get("device", "auto")).type == "cuda"
    except UnsupportedDeviceError:  # the LLM says so
        return False


def _translated(name: str, value: Any) -> dict[str, Any]:
    if name == "chunked_prefill_size":
        return {"enable_chunked_prefill": False} if value == -1 else {"max_num_batched_tokens": value}
    if name in NEGATIONS:
        if not isinstance(value, bool):
            raise InvalidConfigError(f"{name}={value!r} must be True or False")
        return {NEGATIONS[name]: False} if value else {}
    if name == "quantization" and isinstance(value, str) and value in STORED_FORMS:
        return {}
    return {NAMES.get(name, name): value}


def set_log_level(level: str) -> None:
    """Set the level of the logger that all of ramet's are below.

    Raises:
        InvalidConfigError: there is no such level.
    """
    number = logging.getLevelNamesMapping().get(str(level).upper())
    if number is None:
        raise InvalidConfigError(
            f"log_level={level!r} is not allowed: use 'debug', 'info', 'warning', 'error' or 'critical'"
        )
    logging.getLogger("ramet").setLevel(number)
