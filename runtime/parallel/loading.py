"""Builds the runner of a model in several ranks: this process is rank 0."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from ...kernels.dispatch import UnsupportedDeviceError, kernels_device
from ..errors import InvalidConfigError, TensorParallelError
from ..runner_spec import LoadedRunner, RunnerSpec, RunnerUnavailableError
from ..weights.load import model_config
from .channel import Kind
from .shards import check_divisible
from .workers import WorkerPool

_FILES_OF_RANK_0 = 32
_FILES_OF_A_RANK = 8


def load_parallel_runner(
    kernels_name: str, load: Callable[[RunnerSpec], LoadedRunner], spec: RunnerSpec
) -> LoadedRunner:
    """Start the other ranks, load a part of the model here with `load` and the others there, and join them.

    Raises:
        InvalidConfigError: the model does not divide, or there are fewer devices than ranks.
        TensorParallelError: a rank ended while it loaded, or the system does not let this process open what it needs.
        As `load`, also for what another rank raises, which the message names.
    """
    config, size = model_config(spec.checkpoint), spec.config.tensor_parallel_size
    check_divisible(config, size)
    _check_system(size)
    try:
        device = kernels_device(kernels_name, spec.device)
    except UnsupportedDeviceError as error:
        raise RunnerUnavailableError(str(error)) from error
    devices = _devices_here(device, size)
    spec = dataclasses.replace(spec, device=devices[0], num_threads=max(1, spec.num_threads // size))
    from .distributed import open_store  # which needs torch.distributed

    _check_files(_FILES_OF_RANK_0 + _FILES_OF_A_RANK * size)
    store, port = open_store(size)
    pool = WorkerPool([_task(kernels_name, spec, devices[rank], port) for rank in range(1, size)])
    try:
        loaded = _join(pool, store, spec, load)
    except BaseException:
        pool.close(patience=0.0)
        raise
    return dataclasses.replace(loaded, model_config=config)


def check_ranks(device: torch.device, size: int) -> None:
    """Raises InvalidConfigError if so many ranks cannot be had here, from this device on."""
    _check_system(size)
    _devices_here(device, size)


def _check_system(size: int) -> None:
    if os.name != "posix" or not torch.distributed.is_available():
        raise InvalidConfigError(
            f"tensor_parallel_size={size} needs Linux or macOS and a torch with torch.distributed; leave it at 1"
        )


def _devices_here(device: torch.device, size: int) -> list[str]:
    return rank_devices(device, size, torch.cuda.device_count() if device.type == "cuda" else 0)


def rank_devices(device: torch.device, size: int, num_devices: int) -> list[str]:
    """The devices of the ranks: the CPU for all, or CUDA devices one after another from the one that was asked for.

    Raises:
        InvalidConfigError: there are too few.
    """
    if device.type == "cpu":
        return ["cpu"] * size
    first = device.index or 0
    if first + size > num_devices:
        raise InvalidConfigError(
            f"tensor_parallel_size={size} needs {size} CUDA devices from {device.type}:{first} on, and there are "
            f"{num_devices}; lower it, or use one device and a smaller model"
        )
    return [f"{device.type}:{first + rank}" for rank in range(size)]


def _check_files(count: int) -> None:
    """Raises TensorParallelError if so many more files cannot be opened: connections would be tried again for
    minutes."""
    with ExitStack() as opened:
        try:
            for _ in range(count):
                opened.enter_context(open(os.devnull, "rb"))
        except OSError as error:
            raise TensorParallelError(
                f"to compute a model together, processes need {count} more files and sockets open in this one, which "
                f"the system refuses: {error}; raise the limit (`ulimit -n`), or close some"
            ) from error


def _task(kernels_name: str, spec: RunnerSpec, device: str, port: int) -> bytes:
    task = {
        "port": port,
        "size": spec.config.tensor_parallel_size,
        "model": str(spec.checkpoint.path),
        "kernels": kernels_name,
        "device": device,
        "num_threads": spec.num_threads,
        "config": dataclasses.asdict(spec.config),
    }
    return json.dumps(task).encode()


def _join(pool: WorkerPool, store: Any, spec: RunnerSpec, load: Callable[[RunnerSpec], LoadedRunner]) -> LoadedRunner:
    from .distributed import START_SECONDS, STEP_SECONDS, DistributedGroup, connect
    from .runner import ParallelRunner

    if silent := pool.silent_ranks(pool.answers(Kind.HELLO, START_SECONDS)):
        pool.fail(f"rank {silent[0]} of the model did not start within {START_SECONDS:.0f} seconds")
    pool.send(Kind.CONNECT)
    group: DistributedGroup | None = None
    try:
        group = connect(store, 0, spec.config.tensor_parallel_size, torch.device(spec.device))
        pool.on_failure = group.abort
        pool.check()
        torch.set_num_threads(spec.num_threads)
        loaded = load(dataclasses.replace(spec, group=group))
        pool.answers(Kind.READY)
    except Exception as error:
        if group is None or group.is_broken:  # then the cause is another rank's, which is known or about to be
            pool.explain(f"rank 0 of the model lost the others while it loaded: {error}")
        raise
    group.timeout = STEP_SECONDS
    runner: Any = loaded.runner
    parallel = ParallelRunner(runner, group, pool)
    return dataclasses.replace(loaded, runner=parallel, blocks=None, close=parallel.close)
