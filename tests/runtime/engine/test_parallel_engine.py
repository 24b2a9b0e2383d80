"""Two processes compute what one does: the engine's outputs are those of one rank. And what happens when a rank fails.

Processes take seconds to start: a module has one pair for all that does not end it.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import os
import re
import signal
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from ramet.runtime import engine_loop as engine_loop_module
from ramet.runtime.batch import FlatBatch
from ramet.runtime.config import EngineConfig
from ramet.runtime.engine import Engine
from ramet.runtime.engine_loop import EngineLoop
from ramet.runtime.errors import EngineStoppedError, InvalidConfigError, RequestFailedError, TensorParallelError
from ramet.runtime.models.errors import ModelLoadError
from ramet.runtime.outputs import RequestOutput
from ramet.runtime.parallel import loading as loading_module
from ramet.runtime.parallel import runner as runner_module
from ramet.runtime.parallel import workers as workers_module
from ramet.runtime.parallel.messages import pack_step
from ramet.runtime.parallel.runner import ParallelRunner
from ramet.runtime.runner_factory import build_runner
from ramet.runtime.runner_spec import LoadedRunner, RunnerSpec
from ramet.runtime.weights.resolve import resolve_model

STEM = [(idx * 37 + idx * idx * 5) % 97 for idx in range(70)]
OPTIONS: dict[str, Any] = {"max_num_batched_tokens": 48}
Load = Callable[..., LoadedRunner]


@pytest.fixture(scope="module")
def load() -> Iterator[Load]:
    """load(path, size, kernels="torch", **engine options); what it has started ends with the module."""
    started = []

    def build(path: Path, size: int, kernels: str = "torch", **options: Any) -> LoadedRunner:
        config = EngineConfig(num_blocks=64, tensor_parallel_size=size, **options)
        spec = RunnerSpec(checkpoint=resolve_model(path), config=config, device="cpu", num_threads=2)
        loaded = build_runner((kernels,), spec)
        started.append(loaded)
        return loaded

    yield build
    for loaded in started:
        if loaded.close is not None:
            loaded.close()
            loaded.close()


@pytest.fixture(scope="module")
def tiny_path(make_tiny_model: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = make_tiny_model(seed=3).save(tmp_path_factory.mktemp("tiny"))
    return directory


@pytest.fixture(scope="module")
def single(load: Load, tiny_path: Path) -> LoadedRunner:
    return load(tiny_path, 1)


@pytest.fixture(scope="module")
def pair(load: Load, tiny_path: Path) -> LoadedRunner:
    """A Llama in two ranks; a test that ends them must load its own."""
    return load(tiny_path, 2)


def assert_same(found: dict[str, RequestOutput], expected: dict[str, RequestOutput]) -> None:
    """Equal tokens, and logprobs within 1e-5."""
    assert found.keys() == expected.keys()
    for name, output in found.items():
        other = expected[name]
        assert output.error is None
        assert output.num_cached_tokens == other.num_cached_tokens
        assert [list(each.token_ids) for each in output.outputs] == [list(each.token_ids) for each in other.outputs]
        assert logprobs_of(output) == pytest.approx(logprobs_of(other), abs=1e-5)


def logprobs_of(output: RequestOutput) -> list[float]:
    listings = [listing for each in output.outputs for listing in each.logprobs or []]
    listings += [listing for listing in output.prompt_logprobs or [] if listing is not None]
    found = [listing[token_id].logprob for listing in listings for token_id in sorted(listing)]
    for scores in output.continuations or []:
        found += [logprob for logprob in scores.logprobs if logprob is not None]
    return found


def all_sorts(request_of: Callable[..., Any]) -> list[Any]:
    """A shared prefix, prompts in chunks, forks, beams, choices, prompt logprobs, seeds, penalties."""
    return [
        request_of("greedy", [*STEM, 5, 6], max_tokens=9, logprobs=2),
        request_of("seeded", [*STEM, 7], temperature=0.8, top_p=0.9, seed=11, max_tokens=6, logprobs=0),
        request_of("three", [*STEM, 8], temperature=1.0, seed=5, n=3, max_tokens=5),
        request_of("beams", [*STEM[:40], 9], use_beam_search=True, n=2, max_tokens=4),
        request_of("prompt", STEM[10:50], prompt_logprobs=1, max_tokens=3),
        request_of("own", [3, 1, 4, 1, 5], repetition_penalty=1.2, max_tokens=6, logprobs=1),
        dataclasses.replace(
            request_of("choices", [*STEM, 1], max_tokens=1), continuations=((4, 5, 6), (4, 5, 7, 8), (9,))
        ),
    ]


def run_all(engine: Engine, requests: list[Any], run: Callable[..., Any]) -> dict[str, RequestOutput]:
    for request in requests:
        engine.add_request(request)
    outputs: dict[str, RequestOutput] = run(engine)
    return outputs


@pytest.mark.parametrize("is_overlapping", [False, True])
@pytest.mark.parametrize("is_caching", [True, False])
def test_two_ranks_say_what_one_says(
    pair: LoadedRunner,
    single: LoadedRunner,
    engine_over: Callable[..., Engine],
    request_of: Callable[..., Any],
    run: Callable[..., Any],
    is_overlapping: bool,
    is_caching: bool,
) -> None:
    """Everything at once, and again with whatever is cached then."""
    options = OPTIONS | {"overlap_schedule": is_overlapping, "enable_prefix_caching": is_caching}
    engines = [engine_over(loaded, **options) for loaded in (pair, single)]
    rounds = []
    for _ in range(2):
        found, expected = (run_all(engine, all_sorts(request_of), run) for engine in engines)
        assert_same(found, expected)
        rounds.append(found)
    assert rounds[1]["greedy"].num_cached_tokens == (71 if is_caching else 0)
    assert [output.token_ids for output in rounds[0]["greedy"].outputs] == [
        output.token_ids for output in rounds[1]["greedy"].outputs
    ]
    assert logprobs_of(rounds[0]["greedy"]) == pytest.approx(logprobs_of(rounds[1]["greedy"]), abs=1e-5)
    for engine in engines:
        engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3", "opt"])
def test_two_ranks_of_other_models(
    name: str,
    load: Load,
    make_tiny_model: Callable[..., Any],
    tmp_path: Path,
    engine_over: Callable[..., Engine],
    request_of: Callable[..., Any],
    run: Callable[..., Any],
) -> None:
    if name == "qwen3":
        make_tiny_model(seed=3, architectures=["Qwen3ForCausalLM"]).save(tmp_path)
    else:
        from transformers import AutoModelForCausalLM, OPTConfig

        config = OPTConfig(vocab_size=101, hidden_size=48, ffn_dim=80, num_hidden_layers=2, num_attention_heads=4)
        torch.manual_seed(3)
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    engines = [engine_over(load(tmp_path, size), **OPTIONS) for size in (2, 1)]
    for _ in range(2):
        found, expected = (run_all(engine, all_sorts(request_of), run) for engine in engines)
        assert_same(found, expected)


def test_what_is_loaded_looks_like_the_whole_model(pair: LoadedRunner, single: LoadedRunner) -> None:
    assert pair.model_config == single.model_config
    assert pair.max_model_len == single.max_model_len
    assert (pair.runner.num_blocks, pair.runner.vocab_size) == (single.runner.num_blocks, single.runner.vocab_size)
    assert isinstance(pair.runner, ParallelRunner)


def test_a_step_that_fails_everywhere_fails_alone(
    pair: LoadedRunner, single: LoadedRunner, paged_sequence: Any, forward_parts: Callable[..., Any]
) -> None:
    """A block outside the pool stands for a lack of memory: both ranks raise before they first need each other."""
    good, bad = paged_sequence([1, 2, 3, 4], [5]), paged_sequence([1, 2, 3, 4], [10**6])
    for _ in range(2):
        with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)"):
            forward_parts(pair.runner, [(bad, 0, 4)])
        (found,), (expected,) = (forward_parts(loaded.runner, [(good, 0, 4)]) for loaded in (pair, single))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def processes_of(loaded: LoadedRunner) -> list[Any]:
    assert isinstance(loaded.runner, ParallelRunner)
    return [worker.process for worker in loaded.runner.pool._workers]


def test_a_rank_that_is_killed_fails_what_runs_and_what_comes(
    pair: LoadedRunner,
    load: Load,
    tiny_path: Path,
    engine_over: Callable[..., Engine],
    request_of: Callable[..., Any],
    run: Any,
) -> None:
    """Another model, which was loaded before and whose port and group are its own, goes on."""
    loaded = load(tiny_path, 2)
    engine, other = engine_over(loaded), engine_over(pair)
    engine.add_request(request_of("first", STEM, max_tokens=400))
    other.add_request(request_of("other", STEM, max_tokens=20))
    for _ in range(4):
        engine.step()
        other.step()
    (process,) = processes_of(loaded)
    process.kill()
    reason = r"rank 1 of the model was killed by SIGKILL"
    assert_fails(run(engine)["first"], reason)
    assert_fails(run_all(engine, [request_of("second", STEM)], run)["second"], reason)
    assert process.returncode == -signal.SIGKILL
    assert run(other)["other"].error is None


def assert_fails(output: RequestOutput, reason: str) -> None:
    assert isinstance(output.error, RequestFailedError)
    assert isinstance(output.error.__cause__, TensorParallelError)
    assert re.search(reason, str(output.error))


def test_a_rank_that_hangs_does_not_keep_shutdown_waiting(
    load: Load,
    tiny_path: Path,
    engine_over: Callable[..., Engine],
    request_of: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its step would end in two minutes, with an error of its own. And afterwards nothing is open any more."""
    monkeypatch.setattr(engine_loop_module, "_PATIENCE_SECONDS", 0.1)
    num_sockets = count_sockets()
    loaded = load(tiny_path, 2)
    (process,) = processes_of(loaded)
    loop = EngineLoop(engine_over(loaded))
    handle = loop.submit(request_of("first", STEM, max_tokens=400, ignore_eos=True))
    group: Any = loaded.runner.group  # type: ignore[attr-defined]
    counts: list[int] = []

    def stop_rank(chunk: object) -> None:
        if not counts:
            os.kill(process.pid, signal.SIGSTOP)
            counts.append(group.num_started)

    handle.add_chunk_callback(stop_rank)
    while not counts or group.num_started == counts[0]:  # until rank 0 waits for the other
        assert not handle.is_done
        time.sleep(0.01)
    loop.shutdown(cut_short=loaded.close)
    assert isinstance(handle.wait(30).error, EngineStoppedError)
    assert process.returncode == -signal.SIGKILL
    assert count_sockets() == num_sockets


def count_sockets() -> int:
    """Of this process."""
    num_sockets = 0
    for descriptor in map(int, os.listdir("/dev/fd")):
        with suppress(OSError):  # that of the listing itself
            num_sockets += stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    return num_sockets


def test_a_step_that_fails_on_one_rank_ends_them_all(
    load: Load, tiny_path: Path, paged_sequence: Any, forward_parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cache is not what the others believe."""
    loaded = load(tiny_path, 2)

    def pack_wrong_blocks(step_id: int, flat: FlatBatch, copies: Any) -> bytes:
        wrong = copy.copy(flat)
        wrong.block_tables = [[10**6 for _ in table] for table in flat.block_tables]
        return pack_step(step_id, wrong, copies)

    monkeypatch.setattr(runner_module, "pack_step", pack_wrong_blocks)
    with pytest.raises(
        TensorParallelError, match=r"a step failed on rank 1 of the model and not on rank 0: \w+Error: "
    ):
        forward_parts(loaded.runner, [(paged_sequence([1, 2, 3], [0]), 0, 3)])
    assert [process.wait(30) for process in processes_of(loaded)] == [-signal.SIGKILL]


@pytest.mark.slow
def test_a_rank_that_hangs_is_named(
    load: Load, tiny_path: Path, paged_sequence: Any, forward_parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(tiny_path, 2)
    assert isinstance(loaded.runner, ParallelRunner)
    monkeypatch.setattr(runner_module, "_SETTLE_SECONDS", 2.0)
    loaded.runner.group.timeout = 2.0
    (process,) = processes_of(loaded)
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(TensorParallelError, match="rank 1 of the model does not answer, after rank 0 raised"):
        forward_parts(loaded.runner, [(paged_sequence([1, 2, 3], [0]), 0, 3)])


@pytest.mark.slow
def test_a_step_that_fails_on_rank_0_alone_ends_them_all(
    load: Load, tiny_path: Path, paged_sequence: Any, forward_parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 waits in a collective that rank 0 has not entered."""
    loaded = load(tiny_path, 2)
    runner: Any = loaded.runner
    runner.runner.model.logits = no_memory
    monkeypatch.setattr(runner_module, "_SETTLE_SECONDS", 2.0)
    with pytest.raises(
        TensorParallelError, match=r"rank 1 .* does not answer, after .* raised MemoryError\('no room'\)"
    ):
        forward_parts(runner, [(paged_sequence([1, 2, 3], [0]), 0, 3)])


def no_memory(hidden: torch.Tensor) -> torch.Tensor:
    raise MemoryError("no room")


def test_what_goes_wrong_while_loading_is_said_as_without_ranks(
    load: Load, tiny_path: Path, make_tiny_model: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = make_tiny_model(seed=3)
    del tiny.tensors["model.layers.1.mlp.up_proj.weight"]
    tiny.save(tmp_path)
    messages = []
    for size in (1, 2):
        with pytest.raises(ModelLoadError) as caught:
            load(tmp_path, size)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    with pytest.raises(InvalidConfigError, match=r"tensor_parallel_size=3 does not divide .* work are 1, 2, 4"):
        load(tiny_path, 3)


def test_a_rank_that_cannot_load_is_named(load: Load, tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task_of = loading_module._task

    def elsewhere(kernels_name: str, spec: RunnerSpec, device: str, port: int) -> bytes:
        return task_of(kernels_name, spec, device, port).replace(str(tiny_path).encode(), b"/nowhere.gguf")

    monkeypatch.setattr(loading_module, "_task", elsewhere)
    with pytest.raises(ModelLoadError, match=r"rank 1 of the model: model '/nowhere.gguf' does not exist"):
        load(tiny_path, 2)
    monkeypatch.setattr(workers_module, "MODULE", "ramet.nothing")
    with pytest.raises(TensorParallelError, match="rank 1 of the model ended with exit code 1"):
        load(tiny_path, 2)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton runs on Linux only")
def test_two_ranks_of_the_gpu_runner(
    load: Load,
    single: LoadedRunner,
    tiny_path: Path,
    engine_over: Callable[..., Engine],
    request_of: Callable[..., Any],
    run: Callable[..., Any],
) -> None:
    """Interpreted, over captured steps."""
    loaded = load(tiny_path, 2, "triton", captured_batch_sizes=(1, 2, 4))
    requests = [request_of("one", STEM[:40], max_tokens=4, logprobs=1), request_of("two", STEM[:36], max_tokens=3)]
    found, expected = (run_all(engine_over(each, **OPTIONS), requests, run) for each in (loaded, single))
    assert_same(found, expected)
