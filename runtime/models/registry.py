"""The architectures this engine has, by their Hugging Face class names."""

from __future__ import annotations

from typing import Protocol

from ...kernels.interface import Kernels
from ..parallel.group import Group
from .base import Model, ModelConfig
from .errors import UnknownArchitectureError
from .hf_config import HFConfig
from .llama import LlamaForCausalLM
from .mistral import MistralForCausalLM
from .opt import OPTForCausalLM
from .parameters import ParameterReader
from .qwen2 import Qwen2ForCausalLM
from .qwen3 import Qwen3ForCausalLM


class Architecture(Protocol):
    """What a model class offers: read its configuration, then build itself from parameters."""

    def read_config(self, hf: HFConfig) -> ModelConfig: ...

    def __call__(
        self, config: ModelConfig, parameters: ParameterReader, kernels: Kernels, max_model_len: int, group: Group
    ) -> Model: ...


ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": LlamaForCausalLM,
    "MistralForCausalLM": MistralForCausalLM,
    "Qwen2ForCausalLM": Qwen2ForCausalLM,
    "Qwen3ForCausalLM": Qwen3ForCausalLM,
    "OPTForCausalLM": OPTForCausalLM,
}


def find_architecture(hf: HFConfig) -> Architecture:
    """The class for a configuration's `architectures` entry. Raises UnknownArchitectureError, which lists all."""
    names = hf.raw.get("architectures")
    if isinstance(names, list):
        for name in names:
            if name in ARCHITECTURES:
                return ARCHITECTURES[name]
    raise UnknownArchitectureError(
        f"{hf.source}: architectures={names!r} is not supported; supported are {', '.join(ARCHITECTURES)}"
    )
