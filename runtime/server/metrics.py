"""`/metrics` for Prometheus. Names are vLLM's and SGLang's where those have one, with our prefix.

Requests are counted as they end, on the event loop. What the engine counts is asked of it when somebody looks, and what
it said last is told again if a step keeps it from answering.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from starlette.responses import Response

from ...radix.stats import CacheStats
from ..engine import Engine
from ..metrics import EngineMetrics
from ..outputs import FinishReason, RequestOutput
from ..request import Request as EngineRequest
from ..tiers.base import TierStats
from .document import TEXT, answers_as
from .service import EngineService

router = APIRouter(tags=["health"])

_ANSWER_SECONDS = 1.0
_LATENCIES = (0.001, 0.005, *(0.01 * 2**power for power in range(15)))
_LENGTHS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class EngineReading:
    """What an engine told of itself between two steps."""

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_held_blocks: int = 0
    num_cached_blocks: int = 0
    block_size: int = 0
    metrics: EngineMetrics = field(default_factory=EngineMetrics)
    cache: CacheStats = field(default_factory=CacheStats)

    @classmethod
    def of(cls, engine: Engine) -> EngineReading:
        """On the engine's thread. O(1)."""
        scheduler, cache = engine.scheduler, engine.cache
        return cls(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_blocks=cache.num_blocks,
            num_held_blocks=cache.num_blocks - cache.num_available_blocks,
            num_cached_blocks=cache.num_tree_blocks,
            block_size=cache.block_size,
            metrics=engine.metrics_snapshot(),
            cache=cache.stats,
        )


class EngineCollector(Collector):
    """The last reading as metrics."""

    def __init__(self, service: EngineService) -> None:
        self.reading = EngineReading()
        self._service = service

    def collect(self) -> Iterator[Metric]:
        reading, service = self.reading, self._service
        pulse = service.llm.pulse()
        gauges = {
            "num_requests_running": ("Samples in the running batch.", reading.num_running),
            "num_requests_waiting": ("Samples in the engine's queue.", reading.num_waiting),
            "num_requests_live": ("Samples the server has promised to answer.", service.admission.num_live),
            "max_requests_live": ("Samples the server takes at most.", service.admission.max_live),
            "kv_cache_usage_perc": (
                "Share of the cache's blocks that running samples hold, in [0, 1].",
                reading.num_held_blocks / reading.num_blocks if reading.num_blocks else 0.0,
            ),
            "kv_cached_tokens": (
                "Tokens whose blocks the prefix cache has.",
                reading.num_cached_blocks * reading.block_size,
            ),
            "max_total_num_tokens": ("Tokens the cache has room for.", reading.num_blocks * reading.block_size),
            "engine_up": ("1 while the engine is well, as /health says.", float(service.engine_fault() is None)),
            "engine_busy_seconds": ("How long the step has been running that runs now.", pulse.busy_seconds),
            "draining": ("1 while the server shuts down.", float(service.admission.is_draining)),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"ramet:{name}", text, value=value)
        counters = {
            "prefix_cache_queries": ("Tokens looked up in the prefix cache.", reading.cache.num_queried_tokens),
            "prefix_cache_hits": ("Those of them it had.", reading.cache.num_hit_tokens),
            "evicted_tokens": ("Tokens that made room.", reading.cache.num_evicted_blocks * reading.block_size),
            "num_preemptions": ("Times a sample lost its blocks to others.", reading.metrics.num_preemptions),
            "engine_steps": ("Steps of the engine.", reading.metrics.num_steps),
            "computed_tokens": ("Tokens that went through the model.", reading.metrics.num_computed_tokens),
            "requests_rejected": ("Requests turned away: full, or draining.", service.admission.num_rejected),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"ramet:{name}", text, value=value)
        phases = CounterMetricFamily("ramet:step_phase_seconds", "Time in each phase of the steps.", labels=["phase"])
        for phase, seconds in reading.metrics.phase_seconds.items():
            phases.add_metric([phase], seconds)
        yield phases
        yield from _tier_metrics(reading.metrics.tiers)


def _tier_metrics(tiers: Mapping[str, TierStats]) -> Iterator[Metric]:
    """What the tiers behind the pool have done, by the tier's name."""
    counters = {
        "tier_hits": ("Times blocks were loaded from a tier.", "num_hits"),
        "tier_loaded_blocks": ("Blocks a tier gave back to the cache.", "num_loaded_blocks"),
        "tier_loaded_bytes": ("Bytes of those.", "num_loaded_bytes"),
        "tier_stored_blocks": ("Blocks a tier took in.", "num_stored_blocks"),
        "tier_stored_bytes": ("Bytes of those.", "num_stored_bytes"),
        "tier_refused_blocks": ("Blocks not taken in, the tier being behind or failing.", "num_refused_blocks"),
        "tier_failed_blocks": ("Blocks that could not be written.", "num_failed_blocks"),
        "tier_evicted_blocks": ("Blocks dropped to make room.", "num_evicted_blocks"),
        "tier_damaged_blocks": ("Blocks dropped because they were not what was stored.", "num_damaged_blocks"),
    }
    gauges = {
        "tier_held_blocks": ("Blocks a tier holds.", "num_held_blocks"),
        "tier_max_held_blocks": ("Blocks a tier has room for.", "max_held_blocks"),
    }
    for kind, families in ((CounterMetricFamily, counters), (GaugeMetricFamily, gauges)):
        for name, (text, attribute) in families.items():
            family = kind(f"ramet:{name}", text, labels=["tier"])
            for tier, stats in tiers.items():
                family.add_metric([tier], getattr(stats, attribute))
            yield family


class ServerMetrics:
    """All metrics of one server, in a registry of its own. On the event loop."""

    def __init__(self, service: EngineService) -> None:
        self._service = service
        self._registry = CollectorRegistry()
        self._engine = EngineCollector(service)
        self._registry.register(self._engine)
        self._asked: asyncio.Future[EngineReading] | None = None
        self._http = Counter(
            "ramet:http_requests",
            "Answers, by route and status.",
            ["method", "path", "status"],
            registry=self._registry,
        )
        self._prompt_tokens = self._counter("prompt_tokens", "Tokens of the prompts of requests that ended.")
        self._cached_tokens = self._counter("cached_tokens", "Those of them found in the cache.")
        self._generation_tokens = self._counter("generation_tokens", "Generated tokens of requests that ended.")
        self._aborted = self._counter("num_aborted_requests", "Requests cancelled, by clients or time limits.")
        self._finished = Counter(
            "ramet:request_success", "Samples that ended, by reason.", ["finished_reason"], registry=self._registry
        )
        self._first_token = self._histogram("time_to_first_token_seconds", "Arrival to first token.")
        self._per_token = self._histogram("time_per_output_token_seconds", "Mean time of a request's later tokens.")
        self._whole = self._histogram("e2e_request_latency_seconds", "Arrival to end.")
        self._queued = self._histogram("request_queue_time_seconds", "Arrival to the first step.")
        self._prompt_len = self._histogram("request_prompt_tokens", "Tokens of a prompt.", _LENGTHS)
        self._generation_len = self._histogram("request_generation_tokens", "Tokens of a request's samples.", _LENGTHS)

    def note_output(self, request: EngineRequest, output: RequestOutput) -> None:
        """A request has ended, in good or in bad. What is counted is what its client is told."""
        num_prompt_tokens = len(output.prompt_token_ids)
        num_tokens = 0 if request.is_prompt_only else sum(len(sample.token_ids) for sample in output.outputs)
        self._prompt_tokens.inc(num_prompt_tokens)
        self._cached_tokens.inc(output.num_cached_tokens)
        self._generation_tokens.inc(num_tokens)
        reasons = [str(sample.finish_reason) for sample in output.outputs] or ["error" if output.error else "scored"]
        if request.is_prompt_only and output.error is None:
            reasons = [str(FinishReason.LENGTH)]
        for reason in reasons:
            self._finished.labels(reason).inc()
        if "abort" in reasons:
            self._aborted.inc()
        if output.error is not None:
            return
        times = output.metrics
        self._prompt_len.observe(num_prompt_tokens)
        self._generation_len.observe(num_tokens)
        if times.time_to_schedule is not None:
            self._queued.observe(times.time_to_schedule)
        if times.time_to_first_token is not None and num_tokens:
            self._first_token.observe(times.time_to_first_token)
        if times.finished_time is None:
            return
        self._whole.observe(times.finished_time - times.arrival_time)
        num_later = num_tokens - len(output.outputs)
        if times.first_token_time is not None and num_later > 0:
            per_sample = num_later / len(output.outputs)
            self._per_token.observe((times.finished_time - times.first_token_time) / per_sample)

    def note_answer(self, method: str, route: str | None, status: int) -> None:
        """An HTTP request was answered.

        Args:
            route: as the router has it, for paths are the client's and without end; None if there is none.
            status: 0 if the client left before an answer began.
        """
        known = method if method in _METHODS else "other"
        self._http.labels(known, route or "none", str(status) if status else "disconnected").inc()

    async def text(self) -> bytes:
        """In Prometheus's format. Within about a second, whatever the engine does."""
        await self._read_engine()
        return generate_latest(self._registry)

    async def _read_engine(self) -> None:
        """Ask the engine, unless it still owes an answer: whoever looks at a hung one must not pile up questions."""
        if self._asked is None or self._asked.done():
            self._asked = self._service.ask(EngineReading.of)
        await asyncio.wait((self._asked,), timeout=_ANSWER_SECONDS if self._service.engine_fault() is None else 0.0)
        if self._asked.done() and self._asked.exception() is None:
            self._engine.reading = self._asked.result()

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"ramet:{name}", text, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] = _LATENCIES) -> Histogram:
        return Histogram(f"ramet:{name}", text, buckets=buckets, registry=self._registry)


@router.get("/metrics", response_class=Response, responses=answers_as(TEXT))
async def metrics(http: Request) -> Response:
    """Counters and histograms in Prometheus's text format."""
    shown = http.app.state.metrics
    assert isinstance(shown, ServerMetrics)
    return Response(await shown.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)
