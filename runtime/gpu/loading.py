"""Builds the GPU runner: device, dtype, weights, the size of the pool, and graphs."""

from __future__ import annotations

import torch

from ...kernels.cuda_state import first_line
from ...kernels.dispatch import kernels_device
from ...kernels.kv_dtypes import LARGEST_CODE
from ...kernels.triton.availability import triton_version
from ...kernels.triton.kernels import TritonKernels
from ...kernels.triton.probe import why_not_launched
from ...kernels.triton.tiles import MAX_HEAD_DIM
from ...sampling_params import SamplingParams
from ..batch import Batch, FlatBatch
from ..config import EngineConfig, kv_cache_memory_from_env
from ..errors import InvalidConfigError
from ..kernel_options import KV_CODES, check_kv_cache_dtype
from ..kv_cache import KVCache
from ..models.base import Model, ModelConfig
from ..models.errors import ModelLoadError
from ..padding import sizes_up_to
from ..runner_spec import (
    LoadedRunner,
    RunnerSpec,
    RunnerUnavailableError,
    kv_cache_blocks,
    kv_cache_too_large,
    torch_numerics,
)
from ..sampler import SamplingRow
from ..weights.load import load_model, model_config
from .memory import graphs_bytes, is_out_of_memory, measure, pool_bytes
from .runner import GpuRunner, head_shape
from .sampler import TritonSampler
from .step_graphs import step_graphs_for
from .upload import on_device

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def load_gpu_runner(spec: RunnerSpec) -> LoadedRunner:
    """Load weights onto the device and make a runner over as large a pool as the options allow.

    Raises:
        UnsupportedDeviceError: Triton's kernels do not run here.
        RunnerUnavailableError: they cannot be launched, or do not compute this model.
        ModelLoadError: the weights are missing, damaged, or larger than the device's memory.
        InvalidConfigError: no memory is left for the KV cache, or it cannot have this kv_cache_dtype.
    """
    device = kernels_device("triton", spec.device)
    config = model_config(spec.checkpoint)
    if config.head_dim > MAX_HEAD_DIM:
        raise RunnerUnavailableError(
            f"{spec.checkpoint.path}: head_dim={config.head_dim} is more than the {MAX_HEAD_DIM} that Triton kernels "
            "take; use kernels='torch'"
        )
    dtype = resolve_dtype(spec.config.dtype, device)
    kernels = TritonKernels(device, resolve_kv_dtype(spec.config.kv_cache_dtype, dtype, config, device))
    with on_device(device):
        _check_launch(device)
        model = _load_weights(spec, kernels, dtype)
        sizes = captured_sizes(spec.config, device)
        num_blocks = spec.group.smallest(_num_blocks(spec.config, model, kernels, sizes))
        graphs = spec.group.counted(step_graphs_for(device))
        try:
            runner = GpuRunner(model, kernels, num_blocks, spec.config.block_size, sizes, graphs)
            sampler = TritonSampler(device)
            if device.type == "cuda":
                warm_up(sampler, model.config.vocab_size, device)
        except (RuntimeError, OSError, OverflowError, MemoryError) as error:
            if isinstance(error, RuntimeError) and not is_out_of_memory(error):
                raise
            raise kv_cache_too_large(num_blocks, sizes) from error
    return LoadedRunner(
        runner=runner,
        kernels_name="triton",
        model_config=model.config,
        max_model_len=model.max_model_len,
        sampler=sampler,
        blocks=runner,
        numerics={**torch_numerics(device, spec.num_threads), "triton": triton_version() or "unknown"},
    )


def warm_up(sampler: TritonSampler, vocab_size: int, device: torch.device) -> None:
    """Sample once with every kernel, so that none is compiled while requests wait. (Those of the model are compiled by
    the trial step and the captures.)"""
    params = SamplingParams(temperature=1.0, top_k=2, top_p=0.9, min_p=0.1, repetition_penalty=1.1, logprobs=1)
    allowed = torch.ones(vocab_size, dtype=torch.bool)
    row = SamplingRow(params, seed=0, sample_idx=0, token_ids=[0], num_prompt_tokens=1, allowed=allowed)
    sampler.sample(torch.zeros((1, vocab_size), device=device), [row])


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of the weights: "auto" is bf16 on a GPU, and fp32 where kernels are interpreted."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return _DTYPES[name]


def resolve_kv_dtype(name: str, dtype: torch.dtype, config: ModelConfig, device: torch.device) -> torch.dtype:
    """The dtype of the KV cache: "auto" is that of the weights.

    Raises:
        InvalidConfigError: the card does not convert fp8, or the scales of this model's heads would not be aligned.
    """
    if name == "auto":
        return dtype
    check_kv_cache_dtype(name, device)
    kv_dtype = KV_CODES[name]
    if kv_dtype in LARGEST_CODE and config.head_dim % 4:
        raise InvalidConfigError(
            f"kv_cache_dtype={name!r} does not go with this model: its head_dim={config.head_dim} is not divisible by "
            "4; use kv_cache_dtype='auto'"
        )
    return kv_dtype


def captured_sizes(config: EngineConfig, device: torch.device) -> tuple[int, ...]:
    """The sizes asked for; if none are named, a row of them up to max_num_seqs on a GPU."""
    if config.captured_batch_sizes is not None:
        return config.captured_batch_sizes
    if device.type != "cuda":
        return ()
    return sizes_up_to(min(config.max_num_seqs, config.max_num_batched_tokens))


def _check_launch(device: torch.device) -> None:
    try:
        reason = why_not_launched(device)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise ModelLoadError(
                f"{device} has no free memory at all: end other programs on it, or give another device"
            ) from error
        reason = first_line(error)
    if reason is not None:
        raise RunnerUnavailableError(
            f"kernels='triton' cannot be launched on {device}: {reason}. Triton needs a C compiler (CC names it) and a "
            "driver that is new enough; or use kernels='torch'"
        )


def _load_weights(spec: RunnerSpec, kernels: TritonKernels, dtype: torch.dtype) -> Model:
    try:
        return load_model(
            spec.checkpoint,
            kernels,
            dtype,
            spec.config.max_model_len,
            spec.on_progress,
            spec.config.quantization,
            spec.group,
        )
    except torch.OutOfMemoryError as error:
        raise ModelLoadError(
            f"{spec.checkpoint.path}: the weights do not fit in the memory of {kernels.device} as {dtype}; take a "
            "smaller model, a narrower dtype, quantization='int8' or 'int4', or end other programs on this device"
        ) from error


def _num_blocks(config: EngineConfig, model: Model, kernels: TritonKernels, sizes: tuple[int, ...]) -> int:
    """Blocks of the pool: as many as are asked for, or as the memory that is left holds."""
    is_asked_for = (config.num_blocks or config.kv_cache_memory or kv_cache_memory_from_env()) is not None
    if kernels.device.type != "cuda" or is_asked_for:
        return kv_cache_blocks(config, model.config, kernels.kv_dtype)
    shape = head_shape(model.config)
    graphs = graphs_bytes(sizes, shape, kernels.plan_rules(shape))
    try:
        use = measure(kernels.device, lambda: trial_step(config, model, kernels), graphs)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise InvalidConfigError(
            f"a step of max_num_batched_tokens={config.max_num_batched_tokens} and "
            f"max_num_logit_rows={config.max_num_logit_rows} does not fit beside the weights: lower them, or take a "
            "smaller model"
        ) from error
    budget = pool_bytes(use, config.gpu_memory_utilization)
    num_blocks = KVCache.num_blocks_in(budget, model.config, config.block_size, kernels.kv_dtype)
    return max(1, num_blocks - 1) if sizes else num_blocks  # captured steps have a block of padding


def trial_step(config: EngineConfig, model: Model, kernels: TritonKernels) -> None:
    """Compute a step of the most tokens and rows of logits that one may have, over a pool of its own."""
    max_len = min(config.max_num_batched_tokens, model.max_model_len)
    blocks = list(range(-(-max_len // config.block_size)))
    runner = GpuRunner(model, kernels, len(blocks), config.block_size)
    flat = FlatBatch(Batch())
    left = config.max_num_batched_tokens
    while left:
        count = min(left, max_len)
        flat.token_ids += [0] * count
        flat.positions += range(count)
        flat.query_starts.append(len(flat.token_ids))
        flat.block_tables.append(blocks)
        flat.context_lens.append(count)
        left -= count
    flat.logit_rows += range(min(config.max_num_logit_rows, len(flat.token_ids)))
    runner.prepare_flat(flat, [])()
