"""SGLang's options of a GPU, as those of an LLM; tests/runtime/test_offline_engine.py has the others."""

from __future__ import annotations

import pytest
import torch

from ramet.runtime.config import EngineConfig
from ramet.runtime.errors import InvalidConfigError
from ramet.runtime.server_args import llm_options


def test_options_of_a_gpu_have_sglangs_names() -> None:
    assert llm_options({"mem_fraction_static": 0.8, "kv_cache_dtype": "fp8_e4m3", "dtype": "half"}) == {
        "gpu_memory_utilization": 0.8,
        "kv_cache_dtype": "fp8_e4m3",
        "dtype": "half",
    }
    assert llm_options({"dtype": "auto", "disable_overlap_schedule": True, "mem_fraction_static": None}) == {
        "dtype": "auto",
        "overlap_schedule": False,
    }
    for options in ({"dtype": "fp4"}, {"kv_cache_dtype": "fp8_e5m2"}, {"mem_fraction_static": 2}):
        with pytest.raises(InvalidConfigError):
            EngineConfig(**llm_options(options))


def test_sglangs_graphs_are_sizes_that_are_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for options, sizes in (
        ({"disable_cuda_graph": True, "cuda_graph_bs": [1, 2]}, ()),
        ({"cuda_graph_bs": [1, 2, 40], "disable_cuda_graph": False}, (1, 2, 40)),
        ({"cuda_graph_bs": [1, 2, 40], "cuda_graph_max_bs": 8}, (1, 2)),
        ({"cuda_graph_max_bs": 10}, (1, 2, 4, 8, 10)),
        ({"cuda_graph_max_bs": 10, "max_running_requests": 3}, (1, 2, 3)),
        ({"cuda_graph_max_bs": 10, "max_num_batched_tokens": 2}, (1, 2)),
    ):
        assert llm_options(options)["captured_batch_sizes"] == sizes
    assert llm_options({"cuda_graph_max_bs": 10000})["captured_batch_sizes"][-1] == EngineConfig().max_num_seqs
    assert llm_options({"disable_cuda_graph": False}) == {}
    for bad, message in (
        ({"disable_cuda_graph": 1}, "disable_cuda_graph=1 must be True or False"),
        ({"cuda_graph_bs": [0]}, r"cuda_graph_bs=\[0\] must be a list of positive"),
        ({"cuda_graph_bs": 8}, "cuda_graph_bs=8 must be a list"),
        ({"cuda_graph_max_bs": True}, "cuda_graph_max_bs=True must be a positive integer"),
        ({"captured_batch_sizes": (1,), "disable_cuda_graph": True}, "given twice, once as disable_cuda_graph"),
    ):
        with pytest.raises(InvalidConfigError, match=message):
            llm_options(bad)


def test_a_cpu_captures_no_graphs_whatever_they_say() -> None:
    """Given to its kernels, the sizes would pad decodes, and the fastest kernels do not pad."""
    options = {"cuda_graph_bs": [1, 2], "device": "cpu"}
    assert llm_options(options) == {"device": "cpu"}
    assert llm_options({"cuda_graph_max_bs": 4, "device": "no-such-device"}) == {"device": "no-such-device"}
