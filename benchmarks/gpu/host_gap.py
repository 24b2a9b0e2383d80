"""Part 7: how long the device waits for the host between two decoding steps of the engine."""

from __future__ import annotations

import time
from collections.abc import Iterable

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from ramet.sampling_params import SamplingParams

from .bench import Bench
from .engine_session import EngineSession
from .results import Record

GOAL = 0.05
NUM_WARM_STEPS = 10


def measure_host_gap(bench: Bench, record: Record) -> None:
    for name in record.in_time(bench.settings.models, seconds_each=10.0 if bench.is_cuda else 0.0):
        with record.guard(name):
            _measure_model(bench, record, name)
    for sentence in bench.models.notes:
        record.note(sentence)


def _measure_model(bench: Bench, record: Record, name: str) -> None:
    """Steps are timed without the profiler, which slows the host down; what the device did is from steps with it."""
    settings = bench.settings
    start = time.perf_counter()
    loaded = bench.models.load(name)
    bench.timer.synchronize()
    bench.timer.compile_seconds += time.perf_counter() - start
    session = EngineSession(loaded, bench.models.config(name))
    try:
        request_ids = _decode_together(bench, session)
        step_ms = _run_steps(bench, session, settings.gap_steps)
        kind = ProfilerActivity.CUDA if bench.is_cuda else ProfilerActivity.CPU
        with profile(activities=[kind]) as profiler:
            profiled_ms = _run_steps(bench, session, settings.gap_steps)
        wanted = DeviceType.CUDA if bench.is_cuda else DeviceType.CPU
        spans = [
            (event.time_range.start, event.time_range.end)
            for event in profiler.events()
            if event.device_type == wanted and event.time_range.end > event.time_range.start
        ]
        busy_ms = busy_time(spans) / 1e3 / settings.gap_steps
        session.abort(request_ids)
    finally:
        session.close()
    idle_share = max(0.0, 1.0 - busy_ms / step_ms)
    record.row(
        model=name, batch=settings.gap_batch, step_ms=step_ms, busy_ms=busy_ms, idle_share=idle_share,
        profiled_step_ms=profiled_ms,
    )  # fmt: skip
    record.target(f"host gap of {name} at batch {settings.gap_batch}", idle_share, GOAL, is_at_least=False)


def _decode_together(bench: Bench, session: EngineSession) -> list[str]:
    """Bring all sequences to where each step decodes one token of every one. Returns the ids of their requests."""
    settings = bench.settings
    num_steps = 2 * settings.gap_steps + 2 * NUM_WARM_STEPS
    num_prompt_steps = settings.gap_batch * settings.gap_prompt_len // session.engine.config.max_num_batched_tokens + 2
    params = SamplingParams(temperature=0.0, max_tokens=num_steps + num_prompt_steps + 2, ignore_eos=True)
    prompts = [
        [(idx * 31 + position * 7) % 290 for position in range(settings.gap_prompt_len)]
        for idx in range(settings.gap_batch)
    ]
    request_ids = session.submit(prompts, params)
    scheduler = session.engine.scheduler
    for _ in range(num_prompt_steps):
        session.step()
    assert len(scheduler.running) == settings.gap_batch
    assert all(sequence.num_uncomputed_tokens <= 1 for sequence in scheduler.running)
    for _ in range(1 if settings.is_tiny else NUM_WARM_STEPS):
        session.step()
    return request_ids


def _run_steps(bench: Bench, session: EngineSession, num_steps: int) -> float:
    """Milliseconds a step on the wall. A step ends when its tokens are on the host."""
    bench.timer.synchronize()
    start = time.perf_counter()
    for _ in range(num_steps):
        session.step()
    bench.timer.synchronize()
    return (time.perf_counter() - start) * 1e3 / num_steps


def busy_time(spans: Iterable[tuple[float, float]]) -> float:
    """The length of the union of (start, end) spans."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
