"""Options under other names: what is taken, and what the error says of what is not."""

from __future__ import annotations

import dataclasses
import inspect
import re

import pytest

from ramet import LLM, Engine, EngineConfig, InvalidConfigError
from ramet.runtime.config import DTYPE_NAMES, DTYPES
from ramet.runtime.option_names import ELSEWHERE, LLM_OPTIONS, OPTION_ALIASES, engine_config

FIELDS = {field.name for field in dataclasses.fields(EngineConfig)}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tp_size", ": it is tensor_parallel_size here"),
        ("mem_fraction_static", ": it is gpu_memory_utilization here"),
        ("chunked_prefill_size", ": it is max_num_batched_tokens here"),
        ("disable_radix_cache", ": write enable_prefix_caching=False"),
        ("disable_cuda_graph", ": write captured_batch_sizes=()"),
        ("enforce_eager", ": write captured_batch_sizes=()"),
        ("cudagraph_capture_sizes", ": it is captured_batch_sizes here"),
        ("tokenizer", ": a model brings its tokenizer"),
        ("port", ": nothing listens on the network here: use Runtime(port=...), or `ramet serve`"),
        ("tensor_parallel", "; did you mean 'tensor_parallel_size'? help(ramet.LLM) and"),
        ("gpu_memory", "; did you mean 'gpu_memory_utilization'? help(ramet.LLM) and"),
        ("max_num_seq", "; did you mean 'max_num_seqs' or 'max_num_logit_rows'?"),
        ("zzz", "; help(ramet.LLM) and help(ramet.EngineConfig) say what there is"),
    ],
)
def test_an_unknown_option_is_answered_with_ours(name: str, said: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        LLM("no-such-model.gguf", **{name: 1})
    assert str(caught.value).startswith(f"unknown option {name!r}{said}")
    assert len(str(caught.value)) < 160


def test_what_is_named_instead_exists() -> None:
    assert not ELSEWHERE.keys() & (FIELDS - {"schedule_conservativeness"})
    assert set(OPTION_ALIASES.values()) <= FIELDS
    assert {*LLM_OPTIONS} <= inspect.signature(LLM).parameters.keys()
    for text in ELSEWHERE.values():
        for own in re.findall(r"it is (\w+)|write (\w+)|with (\w+_\w+)", text):
            assert {*own} - {""} <= {*FIELDS, *LLM_OPTIONS}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mem_fraction_static": 2}, "mem_fraction_static=2 must lie in (0, 1]"),
        ({"max_running_requests": 0}, "max_running_requests=0 must be a positive integer"),
        ({"chunked_prefill_size": 0}, "chunked_prefill_size=0 must be a positive integer"),
        ({"tp_size": 2, "kernels": "torch_int8"}, "tp_size=2 does not go with kernels='torch_int8'"),
        ({"gpu_memory_utilization": 2}, "gpu_memory_utilization=2 must lie in (0, 1]"),
        ({"scheduling_policy": "fast"}, "scheduling_policy='fast' is unknown"),
    ],
)
def test_an_error_has_the_name_that_was_given(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        Engine("no-such-model.gguf", **options)
    assert str(caught.value).startswith(message)


def test_an_alias_and_our_name_are_one_too_many() -> None:
    with pytest.raises(InvalidConfigError, match="scheduling_policy and schedule_policy are the same option"):
        engine_config({"scheduling_policy": "lpm", "schedule_policy": "lpm"})


def test_other_names_of_dtypes_are_taken_everywhere() -> None:
    for name, own in DTYPE_NAMES.items():
        assert own in DTYPES
        assert engine_config({"dtype": name}).dtype == own
    assert EngineConfig(dtype="half") == EngineConfig(dtype="float16")
    for wrong in ("fp4", 16, ["half"], None):
        with pytest.raises(InvalidConfigError, match=r"dtype=.* is unknown; choose one of"):
            engine_config({"dtype": wrong})
