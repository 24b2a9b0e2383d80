"""Which runner computes a model: an explicit table of names, and the order in which they are tried.

A name is what a user gives as `LLM(kernels=...)`. Each entry of RUNNERS loads the weights of a checkpoint in the form
its kernels want and returns a runner over its own KV cache. Where no name is given, those of PREFERRED for the device
are tried in order; one that cannot be had here says so with RunnerUnavailableError, and the next one is taken.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch

from ..kernels.dispatch import (
    KERNELS,
    UnsupportedDeviceError,
    check_device,
    kernels_device,
    select_kernels,
    why_unavailable,
)
from .config import EngineConfig
from .errors import InvalidConfigError
from .kernel_options import check_kernel_options, check_kv_cache_dtype, why_options_unsupported
from .models.errors import ModelLoadError
from .runner import ModelRunner
from .runner_spec import (
    LoadedRunner,
    RunnerSpec,
    RunnerUnavailableError,
    kv_cache_blocks,
    kv_cache_too_large,
    torch_numerics,
)
from .weights.load import load_model

logger = logging.getLogger(__name__)


def _kernels_runner(kernels_name: str, spec: RunnerSpec) -> LoadedRunner:
    """A ModelRunner over a backend of `kernels/dispatch.py`."""
    try:
        kernels = select_kernels(spec.device, kernels_name)
    except UnsupportedDeviceError as error:
        raise RunnerUnavailableError(str(error)) from error
    model = load_model(
        spec.checkpoint,
        kernels,
        max_model_len=spec.config.max_model_len,
        on_progress=spec.on_progress,
        quantization=spec.config.quantization,
        group=spec.group,
    )
    num_blocks = spec.group.smallest(kv_cache_blocks(spec.config, model.config))
    try:
        runner = ModelRunner(model, kernels, num_blocks, spec.config.block_size, spec.config.captured_batch_sizes or ())
    except (OSError, OverflowError, MemoryError) as error:
        raise kv_cache_too_large(num_blocks) from error
    return LoadedRunner(
        runner=runner,
        kernels_name=kernels_name,
        model_config=model.config,
        max_model_len=model.max_model_len,
        blocks=runner,
        numerics=torch_numerics(kernels.device, spec.num_threads),
    )


@dataclass(frozen=True, slots=True)
class RunnerKind:
    """An entry of RUNNERS.

    Attributes:
        load: builds the runner; raises RunnerUnavailableError where it cannot be had.
        device_types: what it runs on.
        is_recommended: whether to take it on this machine when nobody names it.
        can_be_parallel: whether several ranks can compute a model with it.
    """

    load: Callable[[RunnerSpec], LoadedRunner]
    device_types: tuple[str, ...]
    is_recommended: Callable[[], bool] = lambda: True
    can_be_parallel: bool = False


def _over_kernels(
    kernels_name: str, is_recommended: Callable[[], bool] = lambda: True, *, can_be_parallel: bool = True
) -> RunnerKind:
    load = partial(_kernels_runner, kernels_name)
    return RunnerKind(load, KERNELS[kernels_name].device_types, is_recommended, can_be_parallel)


def _is_int8_fast() -> bool:
    from ..kernels.torch_int8.capability import is_fast

    return is_fast()


def _native_runner(spec: RunnerSpec) -> LoadedRunner:
    from .native_loading import load_native_runner

    return load_native_runner(spec)


def _gpu_runner(spec: RunnerSpec) -> LoadedRunner:
    try:
        kernels_device("triton", spec.device)  # before Triton is imported, which may not be there
    except UnsupportedDeviceError as error:
        raise RunnerUnavailableError(str(error)) from error
    from .gpu.loading import load_gpu_runner

    return load_gpu_runner(spec)


RUNNERS: dict[str, RunnerKind] = {
    "cpu": RunnerKind(_native_runner, ("cpu",)),
    "torch": _over_kernels("torch"),
    "torch_int8": _over_kernels("torch_int8", _is_int8_fast, can_be_parallel=False),
    "reference": _over_kernels("reference"),
    "triton": RunnerKind(_gpu_runner, KERNELS["triton"].device_types, can_be_parallel=True),
}
PREFERRED: dict[str, tuple[str, ...]] = {
    "cpu": ("cpu", "torch_int8", "torch"),
    "cuda": ("triton", "torch"),
}
"""By device type, the fastest first; the last one runs everywhere."""


def runner_candidates(kernels_name: str | None, device: str, num_ranks: int = 1) -> tuple[str, ...]:
    """The names to try in order: the one given, or those preferred on the device and recommended on this machine, as
    far as so many ranks can compute with them.

    Raises:
        InvalidConfigError: no such name, no such device, or the one does not run on the other or in several ranks.
    """
    if kernels_name is not None and kernels_name not in list(RUNNERS):
        raise InvalidConfigError(
            f"kernels={kernels_name!r} is unknown; choose one of {', '.join(sorted(RUNNERS))}, or give none (nor "
            "RAMET_KERNELS) for the fastest"
        )
    try:
        if kernels_name is None:
            names = PREFERRED[check_device(device).type]
            if num_ranks > 1:
                names = tuple(name for name in names if RUNNERS[name].can_be_parallel)
            return tuple(name for name in names if RUNNERS[name].is_recommended())
        check_device(device, RUNNERS[kernels_name].device_types)
    except ValueError as error:
        named = "" if kernels_name is None else f"kernels={kernels_name!r}: "
        raise InvalidConfigError(f"{named}{error}") from error
    if num_ranks > 1 and not RUNNERS[kernels_name].can_be_parallel:
        able = ", ".join(sorted(name for name, kind in RUNNERS.items() if kind.can_be_parallel))
        raise InvalidConfigError(
            f"tensor_parallel_size={num_ranks} does not go with kernels={kernels_name!r}; use one of {able}, or give "
            "none for the fastest"
        )
    return (kernels_name,)


def passed_over(candidates: Sequence[str], config: EngineConfig, device: torch.device) -> dict[str, str]:
    """The first of the candidates that `build_runner` would pass over, and why, as far as that can be told without a
    model; all of them if none can be had.

    Args:
        device: one that exists, of the candidates' types.

    Raises:
        InvalidConfigError: what `build_runner` would raise for these options.
    """
    reasons: dict[str, str] = {}
    for name in candidates:
        check_kernel_options(name, config)
        reason = why_unavailable(name, device) or why_options_unsupported(name, config)
        if reason is None:
            check_kv_cache_dtype(config.kv_cache_dtype, device)
            if config.tensor_parallel_size > 1:
                from .parallel.loading import check_ranks

                check_ranks(device, config.tensor_parallel_size)
            break
        reasons[name] = reason
    return reasons


def build_runner(candidates: Sequence[str], spec: RunnerSpec) -> LoadedRunner:
    """Load the first of the candidates that can be had here; the ones passed over are logged as warnings.

    Raises:
        ModelLoadError: the weights are missing, damaged or of an unknown architecture.
        InvalidConfigError: the KV cache does not fit, or the runner does not go with the device.
        RunnerUnavailableError: none can be had; the message is that of the last one.
    """
    for kernels_name, next_name in pairwise(candidates):
        try:
            return _load(kernels_name, spec)
        except RunnerUnavailableError as reason:
            logger.warning("%s: kernels %r are passed over, trying %r", reason, kernels_name, next_name)
    return _load(candidates[-1], spec)


def _load(kernels_name: str, spec: RunnerSpec) -> LoadedRunner:
    check_kernel_options(kernels_name, spec.config)
    try:
        return _load_in_thread(kernels_name, spec)
    except torch.OutOfMemoryError as error:
        raise ModelLoadError(
            f"{spec.checkpoint.path}: the device has no room for the weights and the KV cache: take a smaller model, "
            "lower num_blocks or kv_cache_memory, or end other programs on it"
        ) from error


def _load_in_thread(kernels_name: str, spec: RunnerSpec) -> LoadedRunner:
    """Load in a thread that ends with it.

    OpenMP gives each thread that uses it workers of its own, and a forked process inherits the record of them without
    the workers: were the record the caller's, an LLM made in the child would wait for them for ever.
    """
    load = RUNNERS[kernels_name].load
    if spec.config.tensor_parallel_size > 1:
        from .parallel.loading import load_parallel_runner

        load = partial(load_parallel_runner, kernels_name, load)
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="ramet-load") as pool:
        future = pool.submit(load, spec)
        try:
            return future.result()
        except BaseException:  # Ctrl-C: what comes of it nobody will have
            future.add_done_callback(_close_unused)
            raise


def _close_unused(future: Future[LoadedRunner]) -> None:
    if future.exception() is None and (close := future.result().close) is not None:
        close()
