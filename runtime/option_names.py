"""Names of engine options: those of vLLM and SGLang that are taken, and what an option is called here that is not."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .config import EngineConfig
from .errors import InvalidConfigError
from .server_args import GRAPHS, NAMES, NEGATIONS, NEUTRAL, REASONS, WITHOUT_EFFECT

OPTION_ALIASES = {"scheduling_policy": "schedule_policy"}
"""vLLM's names for options that are called after SGLang's here."""

LLM_OPTIONS = ("model", "device", "kernels", "num_threads", "show_progress")
"""What an LLM takes beside the fields of EngineConfig."""

ELSEWHERE: Mapping[str, str] = {
    **{name: f"it is {own} here" for name, own in NAMES.items()},
    **{name: f"write {own}=False" for name, own in NEGATIONS.items()},
    **dict.fromkeys(GRAPHS, "say which batch sizes are captured with captured_batch_sizes"),
    **REASONS,
    **dict.fromkeys((*NEUTRAL, *WITHOUT_EFFECT), "there is nothing to set; ramet.Engine takes it, as SGLang's does"),
    "max_prefill_tokens": "say how many tokens a step computes with max_num_batched_tokens",
    "chunked_prefill_size": "it is max_num_batched_tokens here",
    "disable_cuda_graph": "write captured_batch_sizes=()",
    "enforce_eager": "write captured_batch_sizes=()",
    "cudagraph_capture_sizes": "it is captured_batch_sizes here",
    "max_seq_len_to_capture": "say which batch sizes are captured with captured_batch_sizes",
    "num_gpu_blocks_override": "it is num_blocks here",
    "kv_cache_memory_bytes": "it is kv_cache_memory here",
    "async_scheduling": "it is overlap_schedule here",
    "attention_config": "name what computes the model with kernels",
    "tokenizer": "a model brings its tokenizer",
    "speculative_config": "tokens are computed one after the other",
    "pipeline_parallel_size": "split a model with tensor_parallel_size",
    "data_parallel_size": "make an LLM in a process for each device",
    "swap_space": "what is preempted is computed again",
    "cpu_offload_gb": "the weights lie on the device as a whole",
}
"""Of names that an LLM does not take, mostly SGLang's and vLLM's: what to write instead."""


def engine_config(options: Mapping[str, Any]) -> EngineConfig:
    """The options of an LLM's engine.

    Raises:
        InvalidConfigError: a name is unknown, or a value is wrong; the message has the name that was given.
    """
    for alias, name in OPTION_ALIASES.items():
        if alias in options and name in options:
            raise InvalidConfigError(f"{alias} and {name} are the same option: give one of them")
    known = {option.name for option in dataclasses.fields(EngineConfig)}
    own = {OPTION_ALIASES.get(name, name): value for name, value in options.items()}
    unknown = sorted(set(own) - known)
    if unknown:
        raise InvalidConfigError(f"unknown option {unknown[0]!r}{_meant(unknown[0], known)}")
    with named_as_given(options, OPTION_ALIASES):
        return EngineConfig(**own)


@contextmanager
def named_as_given(options: Collection[str], names: Mapping[str, str]) -> Iterator[None]:
    """An InvalidConfigError inside that says our name and value of an option says the name that was given.

    Args:
        options: the names that were given.
        names: from other names to ours.
    """
    try:
        yield
    except InvalidConfigError as error:
        text = str(error)
        for given in options:
            if given in names:
                text = re.sub(rf"\b{names[given]}=", f"{given}=", text)
        if text == str(error):
            raise
        raise InvalidConfigError(text) from error.__cause__


def _meant(name: str, known: Collection[str]) -> str:
    if name in ELSEWHERE:
        return f": {ELSEWHERE[name]}"
    ours = sorted({*known, *LLM_OPTIONS, *OPTION_ALIASES})
    close = difflib.get_close_matches(name, ours, n=2, cutoff=0.6)
    meant = f"; did you mean {' or '.join(map(repr, close))}?" if close else ";"
    return f"{meant} help(ramet.LLM) and help(ramet.EngineConfig) say what there is"
