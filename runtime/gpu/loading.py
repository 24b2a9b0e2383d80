"""Builds the GPU runner: device, dtype, weights, the size of the pool, and graphs."""

from __future__ import annotations

import torch

from ...kernels.dispatch import kernels_device
from ...kernels.triton.kernels import TritonKernels
from ...kernels.triton.tiles import MAX_HEAD_DIM
from ...sampling_params import SamplingParams
from ..batch import Batch, FlatBatch
from ..config import EngineConfig, kv_cache_memory_from_env
from ..errors import InvalidConfigError
from ..kv_cache import KVCache
from ..models.base import Model
from ..models.errors import ModelLoadError
from ..runner_spec import LoadedRunner, RunnerSpec, RunnerUnavailableError, kv_cache_blocks, kv_cache_too_large
from ..sampler import SamplingRow
from ..weights.load import load_model, model_config
from .memory import graphs_bytes, measure, pool_bytes
from .runner import GpuRunner, head_shape
from .sampler import TritonSampler
from .step_graphs import step_graphs_for
from .upload import on_device

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Small ones where a row of padding costs most; above, no more than a third of a step is padding."""


def load_gpu_runner(spec: RunnerSpec) -> LoadedRunner:
    """Load weights onto the device and make a runner over as large a pool as the options allow.

    Raises:
        UnsupportedDeviceError: Triton's kernels do not run here.
        RunnerUnavailableError: they do not compute this model.
        ModelLoadError: the weights are missing, damaged, or larger than the device's memory.
        InvalidConfigError: no memory is left for the KV cache.
    """
    device = kernels_device("triton", spec.device)
    head_dim = model_config(spec.checkpoint).head_dim
    if head_dim > MAX_HEAD_DIM:
        raise RunnerUnavailableError(
            f"{spec.checkpoint.path}: head_dim={head_dim} is more than the {MAX_HEAD_DIM} that Triton kernels take; "
            "use kernels='torch'"
        )
    dtype = resolve_dtype(spec.config.dtype, device)
    kernels = TritonKernels(device, dtype)
    with on_device(device):
        model = _load_weights(spec, kernels, dtype)
        sizes = captured_sizes(spec.config, device)
        num_blocks = spec.group.smallest(_num_blocks(spec.config, model, kernels, sizes))
        graphs = spec.group.counted(step_graphs_for(device))
        try:
            runner = GpuRunner(model, kernels, num_blocks, spec.config.block_size, sizes, graphs)
        except (torch.OutOfMemoryError, OSError, OverflowError, MemoryError) as error:
            raise kv_cache_too_large(num_blocks) from error
    sampler = TritonSampler(device)
    if device.type == "cuda":
        warm_up(sampler, model.config.vocab_size, device)
    return LoadedRunner(
        runner=runner,
        kernels_name="triton",
        model_config=model.config,
        max_model_len=model.max_model_len,
        sampler=sampler,
    )


def warm_up(sampler: TritonSampler, vocab_size: int, device: torch.device) -> None:
    """Sample once with every kernel, so that none is compiled while requests wait. (Those of the model are compiled by
    the trial step and the captures.)"""
    params = SamplingParams(temperature=1.0, top_k=2, top_p=0.9, min_p=0.1, repetition_penalty=1.1)
    allowed = torch.ones(vocab_size, dtype=torch.bool)
    row = SamplingRow(params, seed=0, sample_idx=0, token_ids=[0], num_prompt_tokens=1, allowed=allowed)
    sampler.sample(torch.zeros((1, vocab_size), device=device), [row])


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of weights and cache: "auto" is bf16 on a GPU, and fp32 where kernels are interpreted."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return _DTYPES[name]


def captured_sizes(config: EngineConfig, device: torch.device) -> tuple[int, ...]:
    """The sizes asked for; if none are named, a row of them up to max_num_seqs on a GPU."""
    if config.captured_batch_sizes is not None:
        return config.captured_batch_sizes
    if device.type != "cuda":
        return ()
    most = min(config.max_num_seqs, config.max_num_batched_tokens, _SIZES[-1])
    return (*(size for size in _SIZES if size < most), most)


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
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise InvalidConfigError(
            f"a step of max_num_batched_tokens={config.max_num_batched_tokens} and "
            f"max_num_logit_rows={config.max_num_logit_rows} does not fit beside the weights: lower them, or take a "
            "smaller model"
        ) from error
    budget = pool_bytes(use, config.gpu_memory_utilization)
    return KVCache.num_blocks_in(budget, model.config, config.block_size, kernels.kv_dtype)


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
