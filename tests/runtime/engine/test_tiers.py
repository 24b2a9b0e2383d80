"""Engines with tiers, over a runner that knows what every slot must hold: whatever was given up, kept, loaded back or
lost by a restart, the outputs are those of an engine without any of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramet.runtime.engine import Engine
from ramet.runtime.runner import BlockStorage
from ramet.runtime.tiers import disk_files
from ramet.runtime.tiers.base import KVTier
from ramet.runtime.tiers.disk_format import header_bytes
from ramet.runtime.tiers.disk_store import DiskStore
from ramet.runtime.tiers.disk_tier import DiskTier
from ramet.runtime.tiers.host_tier import HostTier

BLOCK_SIZE = 4
STEM = [(idx * 37 + idx * idx * 5) % 97 for idx in range(48)]


@dataclass(frozen=True)
class Tiers:
    """Which tiers an engine has, and how many blocks they hold; called with the runner's memory."""

    num_host: int = 0
    num_disk: int = 0
    path: Path | None = None

    def __call__(self, blocks: BlockStorage) -> tuple[KVTier, ...]:
        tiers: list[KVTier] = []
        if self.num_host:
            tiers.append(HostTier(self.num_host, BLOCK_SIZE, blocks.bytes_per_block, blocks.device))
        if self.num_disk:
            assert self.path is not None
            folder = disk_files.open_directory(self.path)
            num_bytes = self.num_disk * (4096 + header_bytes(BLOCK_SIZE))
            store = DiskStore(folder, b"{}", BLOCK_SIZE, blocks.bytes_per_block, num_bytes)
            tiers.append(DiskTier(store, BLOCK_SIZE))
        return tuple(tiers)


def settle(engine: Engine) -> None:
    """Wait until the disk has all that it was given."""
    for tier in engine._tiers._tiers:
        while isinstance(tier, DiskTier) and any(stored.data_digest is None for stored in tier._stored.values()):
            assert tier.stats.max_held_blocks


@pytest.fixture
def build(make_engine: Callable[..., Engine]) -> Callable[..., Engine]:
    def engine(tiers: Tiers | None, num_blocks: int = 64, **options: Any) -> Engine:
        return make_engine(num_blocks=num_blocks, block_size=BLOCK_SIZE, tiers=tiers, **options)

    return engine


@pytest.fixture
def kept(build, request_of, run, tmp_path) -> Tiers:
    """A disk on which an engine that has ended left STEM."""
    tiers = Tiers(num_disk=64, path=tmp_path)
    engine = build(tiers)
    engine.add_request(request_of("a", STEM, max_tokens=1))
    run(engine)
    engine.close()
    return tiers


def test_a_restart_computes_only_what_is_new(build, request_of, run, tmp_path):
    tiers = Tiers(num_disk=64, path=tmp_path)
    first = build(tiers)
    first.add_request(request_of("a", STEM, max_tokens=9))
    expected = run(first)["a"]
    first.close()
    second = build(tiers)
    second.add_request(request_of("a", STEM, max_tokens=9))
    found = run(second)["a"]
    assert found.outputs[0].token_ids == expected.outputs[0].token_ids
    assert (expected.num_cached_tokens, found.num_cached_tokens) == (0, 44)
    assert second.metrics.num_computed_tokens == 4 + 8
    stats = second.metrics_snapshot().tiers["disk"]
    assert (stats.num_hits, stats.num_loaded_blocks, stats.num_held_blocks) == (1, 11, 14)
    assert second.cache.stats.num_queried_tokens == second.cache.stats.num_hit_tokens + 4 == 48
    second.add_request(request_of("b", [*STEM, *expected.outputs[0].token_ids, 5], max_tokens=1))
    assert run(second)["b"].num_cached_tokens == 56
    second.close()


@pytest.mark.parametrize("overlap", [False, True, "pipelined"])
def test_what_a_small_pool_gives_up_comes_back_from_the_host(build, request_of, run, overlap):
    engine = build(Tiers(num_host=64), num_blocks=16, overlap_schedule=overlap)
    others = [[idx + 1] * 44 for idx in range(3)]
    outputs = []
    for turn in range(2):
        for idx, prompt in enumerate([STEM, *others]):
            engine.add_request(request_of(f"{turn}/{idx}", prompt, max_tokens=4))
            outputs.append(run(engine)[f"{turn}/{idx}"])
    assert [output.num_cached_tokens for output in outputs] == [0, 0, 0, 0, 44, 40, 40, 40]
    assert [output.outputs[0].token_ids for output in outputs[:4]] == [
        output.outputs[0].token_ids for output in outputs[4:]
    ]
    assert engine.metrics_snapshot().tiers["host"].num_hits >= 4
    engine.close()


def test_reset_forgets_the_tiers_too(build, request_of, run, tmp_path):
    engine = build(Tiers(64, 64, tmp_path))
    engine.add_request(request_of("a", STEM))
    run(engine)
    settle(engine)
    assert engine.reset_prefix_cache().wait() > 0
    assert {stats.num_held_blocks for stats in engine.metrics_snapshot().tiers.values()} == {0}
    engine.add_request(request_of("b", STEM))
    assert run(engine)["b"].num_cached_tokens == 0
    engine.close()


def test_prompt_logprobs_are_computed_where_nothing_is_noted(build, request_of, run, tmp_path):
    tiers = Tiers(num_disk=64, path=tmp_path)
    outputs = []
    for _ in range(2):
        engine = build(tiers)
        for name, fields in (("all", {}), ("from 40 on", {"prompt_logprobs_start": 40}), ("again", {})):
            engine.add_request(request_of(name, STEM, prompt_logprobs=2, max_tokens=2, **fields))
            outputs.append(run(engine)[name])
            settle(engine)
            if name != "again":
                engine.cache.reset()
        engine.close()
    assert [output.num_cached_tokens for output in outputs] == [0, 36, 0, 0, 36, 0]
    assert outputs[0].prompt_logprobs == outputs[2].prompt_logprobs == outputs[3].prompt_logprobs
    assert outputs[1].prompt_logprobs == outputs[4].prompt_logprobs
    assert outputs[1].prompt_logprobs[40:] == outputs[0].prompt_logprobs[40:]


def test_what_fails_or_is_aborted_is_not_kept(build, request_of, run, tmp_path):
    engine = build(Tiers(num_disk=64, path=tmp_path))
    engine.runner.nan_at.add(("bad", 49))
    engine.add_request(request_of("bad", STEM, max_tokens=20, ignore_eos=True))
    assert run(engine)["bad"].error is not None
    engine.add_request(request_of("gone", STEM[::-1], max_tokens=20, ignore_eos=True))
    for _ in range(3):
        engine.step()
    engine.abort_request("gone")
    run(engine)
    assert engine.metrics_snapshot().tiers["disk"].num_held_blocks == 0
    engine.close()


def test_a_long_prefix_is_loaded_over_several_steps_and_others_go_on(build, request_of, run, kept, monkeypatch):
    monkeypatch.setattr("ramet.runtime.tiers.prefix_tiers.MAX_BYTES_PER_STEP", 3 * 8 * BLOCK_SIZE)
    engine = build(kept)
    engine.add_request(request_of("other", [1, 2, 3], max_tokens=30, ignore_eos=True))
    engine.step()
    engine.add_request(request_of("long", STEM, max_tokens=1))
    engine.add_request(request_of("behind", [9, 9, 9], max_tokens=1))
    recorder = engine.start_trace("fake")
    chunks = [[(chunk.request_id, chunk.output) for chunk in engine.step()] for _ in range(4)]
    assert [[name for name, _ in step] for step in chunks[:3]] == [["other"]] * 3
    output = dict(chunks[3])["long"]
    assert output.num_cached_tokens == 44
    reasons = [{waiting.reason for waiting in step.waiting} for step in recorder.trace.steps[:3]]
    assert all("loading" in found for found in reasons)
    run(engine)
    engine.close()


def test_a_pool_that_has_no_room_is_not_thrashed(build, request_of, run, kept):
    """Blocks that running sequences hold stay; the one that waits loads when it can start, and once."""
    engine = build(kept, num_blocks=16)
    engine.add_request(request_of("big", [3] * 24, max_tokens=24, ignore_eos=True))
    engine.step()
    for idx in range(5):
        engine.add_request(request_of(f"long {idx}", [*STEM[:44], idx, idx], max_tokens=1))
    outputs = run(engine)
    assert [outputs[f"long {idx}"].num_cached_tokens for idx in range(5)] == [44] * 5
    assert engine.metrics_snapshot().tiers["disk"].num_loaded_blocks <= 22
    assert engine.scheduler.num_preemptions == 0
    engine.close()


def test_a_sequence_does_not_load_for_ever(build, request_of, run, kept, monkeypatch):
    """Even if all that is loaded is given up again at once."""
    monkeypatch.setattr("ramet.runtime.tiers.prefix_tiers.MAX_BYTES_PER_STEP", 2 * 8 * BLOCK_SIZE)
    engine = build(kept)
    engine.add_request(request_of("a", STEM, max_tokens=1))
    for _ in range(20):
        chunks = engine.step()
        if chunks:
            break
        engine.cache.reset()
    assert chunks[0].output is not None
    engine.close()


def test_room_that_is_made_for_nothing_is_not_counted_on(build, request_of, run, tmp_path, monkeypatch):
    """Where the disk has nothing good after all, what the sequence was to go on with may have been given up for it."""
    tiers = Tiers(num_disk=64, path=tmp_path)
    engine = build(tiers, num_blocks=14)
    engine.add_request(request_of("a", STEM[:40], max_tokens=1))
    expected = run(engine)["a"]
    settle(engine)
    engine.cache.reset()
    engine.add_request(request_of("beginning", STEM[:18], max_tokens=1))
    engine.add_request(request_of("later", [9] * 36, max_tokens=1))
    run(engine)
    assert engine.cache.num_free_blocks == 0
    assert engine.cache.match(STEM[:40]).num_tokens == 18
    monkeypatch.setattr(DiskStore, "read", lambda *args: False)
    engine.add_request(request_of("again", STEM[:40], max_tokens=1))
    found = run(engine)["again"]
    assert found.outputs[0].token_ids == expected.outputs[0].token_ids
    assert found.num_cached_tokens == 16
    assert engine.metrics_snapshot().tiers["disk"].num_damaged_blocks == 1
    engine.close()


@pytest.mark.parametrize("overlap", [False, True, "pipelined"])
@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
@pytest.mark.parametrize("name", ["read_blocks", "write_blocks"])
def test_where_there_is_no_memory_for_copies_tiers_save_nothing(
    build, request_of, run, tmp_path, monkeypatch, caplog, name, error, overlap
):
    def fail(*args: Any) -> Any:
        raise error("no memory")

    engine = build(Tiers(16, 64, tmp_path), num_blocks=16, overlap_schedule=overlap)
    others = [[idx + 1] * 44 for idx in range(3)]
    outputs = []
    for turn in range(3):
        with monkeypatch.context() as patch:
            if turn == 1:
                patch.setattr(engine._tiers._storage.blocks, name, fail)
            for idx, prompt in enumerate([STEM, *others]):
                engine.add_request(request_of(f"{turn}/{idx}", prompt, max_tokens=4))
                outputs.append(run(engine)[f"{turn}/{idx}"])
                settle(engine)
        assert ("no memory" in caplog.text) == (turn > 0)
    assert [[sample.token_ids for sample in output.outputs] for output in outputs] == [
        [sample.token_ids for sample in output.outputs] for output in outputs[:4]
    ] * 3
    assert engine.cache.num_private_blocks == 0
    assert all(output.num_cached_tokens for output in outputs[8:])
    engine.close()


@dataclass(frozen=True)
class Ask:
    stem_len: int
    tail: int
    fields: int
    namespace: str | None
    is_after_restart: bool

    def request(self, request_of: Any, name: str) -> Any:
        fields: dict[str, Any] = [
            {"max_tokens": 6, "logprobs": 1},
            {"max_tokens": 9, "temperature": 1.0, "seed": 3, "n": 2},
            {"max_tokens": 3, "prompt_logprobs": 1},
            {"max_tokens": 4, "prompt_logprobs": 0, "prompt_logprobs_start": self.stem_len // 2},
            {"max_tokens": 5, "use_beam_search": True, "best_of": 2, "n": 2, "logprobs": None},
        ][self.fields]
        prompt = [*STEM[: self.stem_len], self.tail, 7]
        return request_of(name, prompt, cache_namespace=self.namespace, **fields)


asks = st.builds(
    Ask,
    stem_len=st.sampled_from([0, 4, 13, 20, 33, 48]),
    tail=st.integers(0, 3),
    fields=st.integers(0, 4),
    namespace=st.sampled_from([None, None, "other"]),
    is_after_restart=st.booleans(),
)


def facts(output: Any) -> Any:
    return (
        [(each.token_ids, each.logprobs, each.finish_reason) for each in output.outputs],
        output.prompt_logprobs,
        output.error,
    )


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    program=st.lists(asks, min_size=2, max_size=10),
    num_blocks=st.sampled_from([24, 30, 80]),
    num_host=st.sampled_from([0, 3, 64]),
    num_disk=st.sampled_from([0, 7, 64]),
    overlap=st.sampled_from([False, True, "pipelined"]),
    max_bytes=st.sampled_from([64, 1 << 20]),
    reserve=st.sampled_from(["estimate", "none"]),
)
def test_tiers_change_no_output(
    build, request_of, run, tmp_path_factory, program, num_blocks, num_host, num_disk, overlap, max_bytes, reserve
):
    reference = build(None, num_blocks=200, enable_prefix_caching=False)
    for idx, ask in enumerate(program):
        reference.add_request(ask.request(request_of, str(idx)))
    expected = {name: facts(output) for name, output in run(reference).items()}
    tiers = Tiers(num_host, num_disk, tmp_path_factory.mktemp("store"))
    options = {"num_blocks": num_blocks, "overlap_schedule": overlap, "reserve": reserve}
    found: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ramet.runtime.tiers.prefix_tiers.MAX_BYTES_PER_STEP", max_bytes)
        engine = build(tiers, **options)
        for idx, ask in enumerate(program):
            if ask.is_after_restart:
                found |= run(engine)
                engine.close()
                engine = build(tiers, **options)
            engine.add_request(ask.request(request_of, str(idx)))
        found |= run(engine)
        engine.close()
    assert {name: facts(output) for name, output in found.items()} == expected


def numbers(samples: Any) -> list[float]:
    return [entry.logprob for _, logprobs in samples for listing in logprobs for entry in listing]


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("kernels", "is_overlapping"),
    [("cpu", False), ("cpu", True), ("torch", True), pytest.param("triton", True, marks=pytest.mark.slow)],
)
def test_real_blocks_come_back(
    make_tiny_model, load_runner, engine_over, request_of, run, tmp_path, kernels, is_overlapping
):
    """From the host, and after a restart from the disk; decodes go on meanwhile. Triton's are launched ahead. C++'s
    results are the same to the last bit; the others' depend a little on what is computed together."""
    if kernels == "triton":
        pytest.importorskip("triton", reason="Triton runs on Linux only")
    model_dir = make_tiny_model(seed=3).save(tmp_path / "model")
    stem = [(idx * 37 + idx * idx * 5) % 97 for idx in range(70)]
    counts = (2, 1, 2) if kernels == "triton" else (4, 3, 2, 4)  # Triton's interpreter takes its time
    prompts = [[*stem[: 16 * count], count] for count in counts]

    def outputs(tiers_of: Callable[[BlockStorage], tuple[KVTier, ...]], num_blocks: int) -> tuple[Any, Engine]:
        loaded = load_runner(model_dir, kernels, num_blocks=num_blocks)
        engine = engine_over(loaded, tiers_of(loaded.blocks), overlap_schedule=is_overlapping)
        found = {}
        for idx, prompt in enumerate(prompts):
            engine.add_request(request_of(f"{idx}", prompt, logprobs=2, max_tokens=3))
            engine.add_request(request_of(f"other {idx}", [idx] * 20, max_tokens=2, logprobs=2))
            found |= run(engine)
        samples = [output.outputs[0] for _, output in sorted(found.items())]
        return [(sample.token_ids, [list(each.values()) for each in sample.logprobs]) for sample in samples], engine

    expected, _ = outputs(lambda blocks: (), 40)

    def tiers_of(blocks: BlockStorage) -> tuple[KVTier, ...]:
        folder = disk_files.open_directory(tmp_path)
        store = DiskStore(folder, b"{}", 16, blocks.bytes_per_block, 1 << 22)
        return HostTier(32, 16, blocks.bytes_per_block, blocks.device), DiskTier(store, 16)

    for num_hits in (0, 1):
        found, engine = outputs(tiers_of, 2 * max(counts))
        assert [token_ids for token_ids, _ in found] == [token_ids for token_ids, _ in expected]
        margin = 0.0 if kernels == "cpu" else 1e-4
        assert numbers(found) == pytest.approx(numbers(expected), abs=margin, rel=0)
        settle(engine)
        stats = engine.metrics_snapshot().tiers
        assert stats["host"].num_stored_blocks > 0
        assert stats["disk"].num_hits >= num_hits
        assert stats["host"].num_hits + stats["disk"].num_hits > 0
        engine.close()


def test_data_is_what_was_read(make_engine, request_of, run):
    """FakeBlocks itself: what it reads is what it wrote."""
    seen: list[Any] = []
    engine = make_engine(tiers=lambda blocks: seen.append(blocks) or ())
    engine.add_request(request_of("a", list(range(40)), max_tokens=1))
    run(engine)
    data = seen[0].read_blocks([1, 0])
    seen[0].write_blocks([5, 6], data)
    assert torch.equal(seen[0].read_blocks([6, 5]), data[[1, 0]])
