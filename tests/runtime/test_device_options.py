"""What is best for a device holds where nobody has said otherwise."""

from __future__ import annotations

from ramet.runtime.config import EngineConfig
from ramet.runtime.device_defaults import GPU_BATCHED_TOKENS, for_device


def test_a_gpu_takes_larger_steps_and_overlaps() -> None:
    config = for_device(EngineConfig(), "cuda", given=())
    assert config == EngineConfig(overlap_schedule=True, max_num_batched_tokens=GPU_BATCHED_TOKENS)


def test_a_cpu_has_the_defaults_of_the_table() -> None:
    assert for_device(EngineConfig(), "cpu", given=()) == EngineConfig(overlap_schedule=False)


def test_what_was_said_holds() -> None:
    said = {"max_num_batched_tokens": 512, "overlap_schedule": False}
    config = EngineConfig(max_num_batched_tokens=512, overlap_schedule=False)
    assert for_device(config, "cuda", given=said) == config
    assert for_device(EngineConfig(overlap_schedule=True), "cpu", given={"overlap_schedule"}).overlap_schedule is True
