"""EngineMetrics: counters and phase times of an engine, cheap enough to be always on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from .tiers.base import TierStats

PHASES = ("intake", "schedule", "forward", "sample", "commit")


@dataclass(slots=True)
class EngineMetrics:
    """Counts over the engine's life.

    Attributes:
        num_failed_steps: steps that raised. They are not among num_steps, and their tokens not among the computed ones.
        num_retried_sequences: sequences that were computed again because a step failed in which others were, too.
        num_prompt_tokens: prompt tokens of all sequences that were admitted (each once).
        num_cached_tokens: those of them found in the cache.
        num_computed_tokens: tokens that went through the model, recompute after preemption included.
        num_wasted_tokens: those of them that were computed for a sequence which had ended meanwhile (overlap, aborts),
            or from a drawn token that its grammar replaced.
        num_forced_tokens: generated tokens that a grammar forced, which were not sampled.
        tiers: of the tiers behind the pool, by name; in a snapshot only.
        phase_seconds: time spent in each of the five phases of a step.
    """

    num_steps: int = 0
    num_requests: int = 0
    num_finished: int = 0
    num_aborted: int = 0
    num_failed: int = 0
    num_failed_steps: int = 0
    num_retried_sequences: int = 0
    num_preemptions: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    num_wasted_tokens: int = 0
    num_generated_tokens: int = 0
    num_forced_tokens: int = 0
    tiers: dict[str, TierStats] = field(default_factory=dict)
    phase_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    @property
    def cache_hit_rate(self) -> float:
        """Share of the prompt tokens that came from the cache, in [0, 1]."""
        return self.num_cached_tokens / self.num_prompt_tokens if self.num_prompt_tokens else 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.phase_seconds[name] += time.perf_counter() - start

    def snapshot(self) -> EngineMetrics:
        """A copy that does not change any more."""
        return replace(self, phase_seconds=dict(self.phase_seconds))
