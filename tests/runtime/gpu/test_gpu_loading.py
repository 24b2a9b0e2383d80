"""From options to a GPU runner: device, dtype, sizes that are captured, memory, and what cannot be had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ramet.kernels import dispatch
from ramet.kernels.triton import availability
from ramet.kernels.triton.kernels import TritonKernels
from ramet.kernels.triton.launch import KernelCall
from ramet.kernels.triton.plan_buffers import PlanCapacity
from ramet.kernels.triton.shared_runs import HeadShape
from ramet.runtime.batch import Batch, ScheduledSequence
from ramet.runtime.config import EngineConfig
from ramet.runtime.errors import InvalidConfigError
from ramet.runtime.gpu import loading
from ramet.runtime.gpu.loading import captured_sizes, resolve_dtype, resolve_kv_dtype, trial_step
from ramet.runtime.gpu.memory import BYTES_A_GRAPH, GIB, MemoryUse, graphs_bytes, pool_bytes
from ramet.runtime.gpu.runner import GpuRunner
from ramet.runtime.gpu.sampler import TritonSampler
from ramet.runtime.runner_factory import build_runner, runner_candidates
from ramet.runtime.runner_spec import RunnerSpec, RunnerUnavailableError
from ramet.runtime.weights.load import load_model, model_config
from ramet.runtime.weights.resolve import resolve_model

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(scope="module")
def tiny(make_tiny_model: Callable[..., Any]) -> Any:
    return make_tiny_model(seed=4, num_hidden_layers=1)


@pytest.fixture(scope="module")
def tiny_path(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tiny.save(tmp_path_factory.mktemp("tiny"))
    return path


def test_a_runner_with_its_sampler_in_the_dtype_that_was_asked_for(
    tiny_path: Path, load_runner: Callable[..., Any]
) -> None:
    loaded = load_runner(tiny_path, "triton", dtype="float16", captured_batch_sizes=(2, 1))
    runner = loaded.runner
    assert isinstance(runner, GpuRunner)
    assert isinstance(loaded.sampler, TritonSampler)
    assert runner.captured_batch_sizes == (1, 2)
    assert {cache.dtype for layer in runner.kv_cache.layers for cache in layer} == {torch.float16}
    assert runner.kv_cache.num_physical_blocks == 65


def test_a_quantised_file_gives_the_logits_of_its_plain_numbers(
    tiny: Any, tiny_path: Path, tmp_path: Path, load_runner: Callable[..., Any], paged_sequence: Any
) -> None:
    """Its matrices hold what 8 bits can hold, so GGUF's Q8_0 and safetensors are the same numbers."""
    from gguf import GGMLQuantizationType

    path = tiny.save_gguf(tmp_path / "tiny.gguf", lambda name: GGMLQuantizationType.Q8_0)
    sequence = paged_sequence(list(range(40)), [0, 1, 2])
    batch = Batch(scheduled=[ScheduledSequence(sequence, 0, 40, 37)])
    logits = [load_runner(each, "triton", dtype="bfloat16").runner.forward(batch) for each in (path, tiny_path)]
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-3, atol=1e-3)


def test_what_auto_means() -> None:
    assert resolve_dtype("auto", CUDA) == torch.bfloat16
    assert resolve_dtype("auto", CPU) == torch.float32
    assert resolve_dtype("float16", CUDA) == torch.float16
    sizes = captured_sizes(EngineConfig(max_num_seqs=100), CUDA)
    assert sizes == (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 100)
    assert captured_sizes(EngineConfig(max_num_seqs=1), CUDA) == (1,)
    assert captured_sizes(EngineConfig(max_num_seqs=4000, max_num_batched_tokens=8000), CUDA)[-1] == 512
    assert captured_sizes(EngineConfig(), CPU) == captured_sizes(EngineConfig(captured_batch_sizes=()), CUDA) == ()


def test_a_trial_step_has_all_the_tokens_and_rows_of_logits_that_one_may_have(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = TritonKernels(CPU)
    model = load_model(resolve_model(tiny_path), kernels, max_model_len=24)
    seen = []
    plain = model.logits
    monkeypatch.setattr(model, "logits", lambda hidden: seen.append(tuple(hidden.shape)) or plain(hidden))
    trial_step(EngineConfig(max_num_batched_tokens=60, max_num_logit_rows=33), model, kernels)
    assert seen == [(33, 64)]


def test_the_sampler_is_warmed_up_with_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = []
    plain = KernelCall.run

    def run(call: KernelCall) -> None:
        launched.append(call.kernel.__name__)
        plain(call)

    monkeypatch.setattr(KernelCall, "run", run)
    loading.warm_up(TritonSampler(CPU), 50, CPU)
    changes = {"edit_logits_kernel", "mask_logits_kernel"}
    draws = {"weigh_kernel", "choose_kernel", "gather_kernel", "draw_kernel"}
    others = {"best_of_pieces_kernel", "best_piece_kernel", "token_ranks_kernel"}
    assert set(launched) == {*others, *changes, *draws}


def test_the_pool_is_what_is_left() -> None:
    use = MemoryUse(total=100 * GIB, used=20 * GIB, activations=5 * GIB, graphs=GIB)
    assert pool_bytes(use, 0.5) == 24 * GIB
    with pytest.raises(InvalidConfigError, match=r"gpu_memory_utilization=0.25 of 100.00 GiB is 25.00 GiB, 20.00 GiB"):
        pool_bytes(use, 0.25)


def test_graphs_are_reckoned_with_their_parts() -> None:
    shape, rules = HeadShape(4, 2, 32), TritonKernels(CPU).plan_rules(HeadShape(4, 2, 32))
    num_parts = PlanCapacity.for_decodes(8, 0, shape, rules).num_parts
    assert graphs_bytes((8,), shape, rules) == num_parts * 4 * 33 * 4 + BYTES_A_GRAPH
    assert graphs_bytes((), shape, rules) == 0


def spec_of(path: Path, device: str = "cpu", **options: Any) -> RunnerSpec:
    config = EngineConfig(**{"num_blocks": 8, **options})
    return RunnerSpec(checkpoint=resolve_model(path), config=config, device=device, num_threads=1)


def test_too_old_a_card_is_passed_over_with_its_reason(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    monkeypatch.setattr(availability, "_is_interpreting", lambda: False)
    assert runner_candidates(None, "auto")[0] == "triton"
    with pytest.raises(RunnerUnavailableError, match=r"Tesla T4 has compute capability 7.5, .* use kernels='torch'"):
        build_runner(("triton",), spec_of(tiny_path, "cuda"))


def test_where_triton_is_missing_it_says_what_to_install(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "why_unavailable", lambda name, device: "Triton is not installed; pip install it")
    with pytest.raises(RunnerUnavailableError, match=r"kernels='triton' cannot run on device='cpu': Triton is not"):
        build_runner(("triton",), spec_of(tiny_path))


def test_heads_wider_than_the_kernels_take_are_refused_before_weights_are_read(
    make_tiny_model: Callable[..., Any], tmp_path: Path
) -> None:
    path = make_tiny_model(num_hidden_layers=1, head_dim=288, num_attention_heads=1, num_key_value_heads=1).save(
        tmp_path / "wide"
    )
    with pytest.raises(RunnerUnavailableError, match=r"head_dim=288 is more than the 256"):
        build_runner(("triton",), spec_of(path))


def test_a_dtype_is_for_kernels_that_have_a_choice(tiny_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"dtype='bfloat16' goes with kernels='triton', and 'torch' has"):
        build_runner(("torch",), spec_of(tiny_path, dtype="bfloat16"))


@pytest.mark.parametrize("kernels", ["cpu", "torch", "torch_int8", "reference"])
def test_a_kv_cache_dtype_is_for_kernels_that_have_a_choice(tiny_path: Path, kernels: str) -> None:
    with pytest.raises(
        InvalidConfigError, match=rf"kv_cache_dtype='int8' goes with kernels='triton', and '{kernels}' has"
    ):
        build_runner((kernels,), spec_of(tiny_path, kv_cache_dtype="int8"))


def test_fp8_is_refused_on_cards_that_do_not_convert_it(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = model_config(resolve_model(tiny_path))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A100")
    for name in ("fp8", "fp8_e4m3"):
        with pytest.raises(
            InvalidConfigError, match=rf"kv_cache_dtype='{name}' .* cuda: A100 has compute capability 8.0.*'int8'"
        ):
            resolve_kv_dtype(name, torch.bfloat16, config, CUDA)
    assert resolve_kv_dtype("int8", torch.bfloat16, config, CUDA) == torch.int8
    assert resolve_kv_dtype("auto", torch.bfloat16, config, CUDA) == torch.bfloat16
    with pytest.raises(ValueError, match=r"kv_dtype=torch.float8_e4m3fn is not supported on cuda: it needs"):
        TritonKernels(CUDA, torch.float8_e4m3fn)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    assert resolve_kv_dtype("fp8", torch.bfloat16, config, CUDA) == torch.float8_e4m3fn
    monkeypatch.setattr(torch.version, "hip", "6.4")
    with pytest.raises(InvalidConfigError, match=r"kv_cache_dtype='fp8' .* on AMD cards"):
        resolve_kv_dtype("fp8", torch.bfloat16, config, CUDA)


def test_heads_whose_scales_would_not_be_aligned(make_tiny_model: Callable[..., Any], tmp_path: Path) -> None:
    path = make_tiny_model(num_hidden_layers=1, head_dim=30).save(tmp_path / "odd")
    with pytest.raises(InvalidConfigError, match=r"kv_cache_dtype='int8' does not go with this model: its head_dim=30"):
        build_runner(("triton",), spec_of(path, kv_cache_dtype="int8"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_cache_dtype": "fp16"}, r"kv_cache_dtype='fp16' is unknown; choose one of .*'fp8'"),
        ({"kv_cache_dtype": None}, r"kv_cache_dtype=None is unknown"),
        ({"gpu_memory_utilization": 0}, r"gpu_memory_utilization=0 must lie in \(0, 1\]"),
        ({"gpu_memory_utilization": 90}, r"gpu_memory_utilization=90 must lie"),
        ({"gpu_memory_utilization": True}, r"gpu_memory_utilization=True must lie"),
        ({"dtype": "fp8"}, r"dtype='fp8' is unknown; choose one of .*'bfloat16'"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        EngineConfig(**options)
