"""Builds a model from a checkpoint."""

from __future__ import annotations

import torch

from ...kernels.interface import Kernels
from ..models.base import Model, ModelConfig
from ..models.context_len import resolve_max_model_len
from ..models.errors import ModelLoadError
from ..models.hf_config import HFConfig
from ..models.parameters import ParameterReader, ProgressCallback
from ..models.registry import find_architecture
from ..parallel.group import ALONE, Group
from ..quantization.linear_reader import linear_reader
from .base import Checkpoint

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def model_config(checkpoint: Checkpoint) -> ModelConfig:
    """The checkpoint's sizes and switches, without its weights. Raises as `load_model` does."""
    hf = HFConfig(checkpoint.config, str(checkpoint.path))
    return find_architecture(hf).read_config(hf)


def load_model(
    checkpoint: Checkpoint,
    kernels: Kernels,
    dtype: torch.dtype = torch.float32,
    max_model_len: int | None = None,
    on_progress: ProgressCallback | None = None,
    quantization: str | None = None,
    group: Group = ALONE,
) -> Model:
    """Read all weights onto the device of `kernels`, or the part that is this rank's in a group.

    Args:
        dtype: of the weights and of the hidden states.
        max_model_len: longest sequence in tokens; None takes the model's own limit (see `context_len.py`).
        on_progress: called with (tensors done, tensors in all).
        quantization: how linear layers are rounded, a key of `quantization.registry.SCHEMES`; None takes them as they
            are in the checkpoint.
        group: the ranks that hold the model; its sizes must divide by their number.

    Raises:
        InvalidConfigError: `quantization` does not go with the kernels or the checkpoint.
        UnknownArchitectureError: there is no class for the checkpoint's architecture.
        ModelLoadError: weights are missing, damaged or of another shape, or `max_model_len` is out of range.

    Cost: one pass over the weights; peak memory is the model plus a few megabytes on a CPU.
    """
    if dtype not in DTYPES:
        raise ModelLoadError(f"dtype={dtype} is not supported; supported are {', '.join(map(str, DTYPES))}")
    hf = HFConfig(checkpoint.config, str(checkpoint.path))
    architecture = find_architecture(hf)
    config = architecture.read_config(hf)
    context_len = resolve_max_model_len(config, max_model_len)
    reader = linear_reader(checkpoint, quantization, kernels.name)
    parameters = ParameterReader(checkpoint, dtype, kernels.device, on_progress, reader)
    model = architecture(config, parameters, kernels, context_len, group)
    parameters.finish()
    return model
