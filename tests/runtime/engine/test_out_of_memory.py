"""A step for which a device has no memory fails the requests it was computing; the engine goes on, with its cache."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from ramet.runtime.errors import RequestFailedError

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton runs on Linux only")

PROMPT = [(idx * 37 + 5) % 97 for idx in range(40)]


@pytest.fixture(scope="module")
def model_dir(make_tiny_model, tmp_path_factory):
    return make_tiny_model(seed=3, num_hidden_layers=1).save(tmp_path_factory.mktemp("memory") / "model")


def out_of_memory(*args: object) -> torch.Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    """Let the next call run out of memory, and those after it not."""
    plain = getattr(owner, name)

    def failing(*args: object) -> torch.Tensor:
        monkeypatch.setattr(owner, name, plain)
        return out_of_memory()

    monkeypatch.setattr(owner, name, failing)


@pytest.mark.parametrize(("place", "is_overlapping"), [("model", False), ("model", True), ("sampler", True)])
def test_only_the_requests_of_the_step_fail(
    model_dir, load_runner, engine_over, request_of, run, monkeypatch, is_overlapping, place
):
    from ramet.runtime.gpu import sampler as triton_sampler

    loaded = load_runner(model_dir, "triton", num_blocks=16, captured_batch_sizes=(1,))
    engine = engine_over(loaded, max_num_seqs=1, overlap_schedule=is_overlapping)
    engine.add_request(request_of("before", PROMPT, max_tokens=3))
    outputs = run(engine)
    engine.add_request(request_of("running", [*PROMPT, 7], max_tokens=30, ignore_eos=True))
    engine.add_request(request_of("waiting", PROMPT, max_tokens=3))
    engine.step()
    engine.step()
    owner, name = (loaded.runner.model, "logits") if place == "model" else (triton_sampler, "argmax")
    fail_once(monkeypatch, owner, name)
    outputs |= run(engine)
    assert isinstance(outputs["running"].error, RequestFailedError)
    told = "lower gpu_memory_utilization, max_num_batched_tokens" if place == "model" else "CUDA out of memory"
    assert told in str(outputs["running"].error)
    assert outputs["waiting"].error is None
    assert outputs["waiting"].outputs[0].token_ids == outputs["before"].outputs[0].token_ids
    assert outputs["waiting"].num_cached_tokens > 0
    assert engine.cache.num_private_blocks == 0


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
    ids=["torch", "device", "cublas"],
)
def test_a_step_of_several_is_tried_again_whoever_says_that_memory_is_lacking(
    model_dir, load_runner, engine_over, request_of, run, monkeypatch, error
):
    """A device that says so is not a dead one."""
    loaded = load_runner(model_dir, "triton", num_blocks=16)
    engine = engine_over(loaded)
    for name, prompt in (("a", PROMPT[:8]), ("b", PROMPT[8:16])):
        engine.add_request(request_of(name, prompt, max_tokens=2))
    plain, errors = loaded.runner.model.logits, [error]

    def logits(*args: object) -> torch.Tensor:
        if errors:
            raise errors.pop()
        return plain(*args)

    monkeypatch.setattr(loaded.runner.model, "logits", logits)
    outputs = run(engine)
    assert [output.error for output in outputs.values()] == [None, None]
    assert engine.metrics.num_failed_steps == 1


def test_prompt_logprobs_are_computed_on_the_host_then(
    model_dir, load_runner, engine_over, request_of, run, monkeypatch
):
    """They are read when the step has been accepted: failing there would leave its tokens half counted."""
    from ramet.runtime.gpu import device_logprobs

    listings = []
    for is_full in (False, True):
        if is_full:
            monkeypatch.setattr(device_logprobs, "token_ranks", out_of_memory)
        engine = engine_over(load_runner(model_dir, "triton", num_blocks=16))
        engine.add_request(request_of("a", PROMPT, max_tokens=2, prompt_logprobs=2))
        output = run(engine)["a"]
        assert output.error is None
        listings.append(output.prompt_logprobs[1:])
    for on_device, on_host in zip(*listings, strict=True):
        assert [(key, entry.rank) for key, entry in on_device.items()] == [
            (key, entry.rank) for key, entry in on_host.items()
        ]
        assert [entry.logprob for entry in on_device.values()] == pytest.approx(
            [entry.logprob for entry in on_host.values()], abs=1e-12
        )
