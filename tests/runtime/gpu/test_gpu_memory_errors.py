"""What is said where a device lacks memory, or Triton cannot launch: at the first launch, for weights, for the largest
step, for the pool with its graphs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ramet.kernels.torch_cpu.kernels import TorchKernels
from ramet.kernels.triton.kernels import TritonKernels
from ramet.kernels.triton.launch import KernelCall
from ramet.kernels.triton.probe import why_not_launched
from ramet.runtime import runner_factory
from ramet.runtime.config import EngineConfig
from ramet.runtime.errors import InvalidConfigError
from ramet.runtime.gpu import loading
from ramet.runtime.gpu.memory import is_out_of_memory
from ramet.runtime.models.errors import ModelLoadError
from ramet.runtime.runner_factory import build_runner
from ramet.runtime.runner_spec import RunnerSpec, RunnerUnavailableError
from ramet.runtime.weights.load import load_model
from ramet.runtime.weights.resolve import resolve_model

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
OUT_OF_MEMORY: list[Exception] = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
]
lacking = pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=["torch", "cublas", "triton"])


@pytest.fixture(scope="module")
def spec(make_tiny_model: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> RunnerSpec:
    path: Path = make_tiny_model(seed=4, num_hidden_layers=1).save(tmp_path_factory.mktemp("tiny"))
    config = EngineConfig(num_blocks=8, captured_batch_sizes=(2,))
    return RunnerSpec(checkpoint=resolve_model(path), config=config, device="cpu", num_threads=1)


def raising(error: Exception) -> Callable[..., Any]:
    def function(*args: object, **options: object) -> Any:
        raise error

    return function


def test_what_says_that_memory_is_lacking() -> None:
    assert all(is_out_of_memory(error) for error in OUT_OF_MEMORY)
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert not is_out_of_memory(ValueError("out of memory"))


@lacking
def test_a_device_without_any_free_memory(spec: RunnerSpec, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(loading, "why_not_launched", raising(error))
    with pytest.raises(ModelLoadError, match=r"cpu has no free memory at all: end other programs on it, or give"):
        build_runner(("triton",), spec)


def test_weights_that_do_not_fit(spec: RunnerSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "load_model", raising(OUT_OF_MEMORY[0]))
    with pytest.raises(ModelLoadError, match=r"do not fit in the memory of cpu as torch.float32; take a smaller model"):
        build_runner(("triton",), spec)


@lacking
def test_a_largest_step_that_does_not_fit(spec: RunnerSpec, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.delenv("RAMET_KV_CACHE_MEMORY", raising=False)
    kernels = TritonKernels(CPU)
    model = load_model(spec.checkpoint, kernels)
    monkeypatch.setattr(kernels, "device", CUDA)
    monkeypatch.setattr(loading, "measure", raising(error))
    with pytest.raises(InvalidConfigError, match=r"max_num_batched_tokens=512 and max_num_logit_rows=512 does not fit"):
        loading._num_blocks(EngineConfig(), model, kernels, (1,))


@lacking
def test_a_pool_that_does_not_fit_with_its_graphs(
    spec: RunnerSpec, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(loading, "GpuRunner", raising(error))
    with pytest.raises(
        InvalidConfigError,
        match=r"KV cache of 8 blocks and graphs for captured_batch_sizes=\(2,\) does not fit .* "
        r"gpu_memory_utilization.* fewer captured_batch_sizes",
    ):
        build_runner(("triton",), spec)


@pytest.mark.parametrize("place", ["load_model", "_num_blocks", "GpuRunner"])
def test_other_errors_are_not_taken_for_it(spec: RunnerSpec, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    monkeypatch.setattr(loading, place, raising(error))
    with pytest.raises(RuntimeError, match="illegal memory access") as caught:
        build_runner(("triton",), spec)
    assert caught.value is error


def test_torch_kernels_on_a_device_that_is_full(spec: RunnerSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name in ((runner_factory, "load_model"), (TorchKernels, "new_kv_cache")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, raising(OUT_OF_MEMORY[0]))
            with pytest.raises(ModelLoadError, match="no room for the weights and the KV cache: take a smaller model"):
                build_runner(("torch",), spec)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Failed to find C compiler. Please specify via CC environment variable"),
        RuntimeError("Triton Error [CUDA]: device kernel image is invalid"),
        AssertionError("libcuda.so cannot found!\nPossible files are located at"),
    ],
)
def test_what_keeps_triton_from_launching(spec: RunnerSpec, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Found before weights are read; where nobody named the kernels, the next ones are taken."""
    assert why_not_launched(CPU) is None
    monkeypatch.setattr(KernelCall, "run", raising(error))
    with pytest.raises(RunnerUnavailableError) as caught:
        build_runner(("triton",), spec)
    line = str(error).splitlines()[0]
    assert f"kernels='triton' cannot be launched on cpu: {type(error).__name__}: {line}. Triton needs a C compiler" in (
        str(caught.value)
    )
    assert build_runner(("triton", "torch"), spec).kernels_name == "torch"


def test_a_kernel_that_computes_nonsense_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KernelCall, "run", lambda call: call.args[2].fill_(2))  # type: ignore[union-attr]
    assert why_not_launched(CPU) == "a kernel that finds the largest of three numbers found number [2]"
