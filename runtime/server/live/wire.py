"""What the live view sends: views of the engine as JSON, with nothing in it that grows with the load."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ....radix.hot_runs import HotRun, HotRuns
from ...cache_namespace import CacheNamespace
from ...metrics import PHASES
from ...tokenizer import Tokenizer
from ...trace.record import StepRecord
from .observer import EngineView, SequenceView

Json = dict[str, Any]
MAX_TEXT_CHARS = 160
MAX_NAME_CHARS = 60

STEP_COLUMNS = (
    "step", "start_s", *(f"{phase}_ms" for phase in PHASES), "prompt_tokens", "decode_tokens", "recomputed_tokens",
    "cached_tokens", "padding_rows", "running", "waiting", "preempted", "used_blocks",
)  # fmt: skip
SAMPLE_COLUMNS = (
    "time_s", "prompt_tokens", "cached_tokens", "computed_tokens", "generated_tokens", "running", "waiting",
    "used_blocks", "tree_blocks",
)  # fmt: skip


class Names:
    """What namespaces are called: a tenant's name, and the salt that a client has chosen."""

    def __init__(self, tenants: Mapping[str, str]) -> None:
        self._tenants = tenants

    def of(self, namespace: Hashable) -> str:
        if namespace is None:
            return ""
        if not isinstance(namespace, CacheNamespace):
            return str(namespace)[:MAX_NAME_CHARS]
        tenant = self._tenants.get(namespace.tenant, namespace.tenant[:8])
        return " · ".join(part for part in (tenant, namespace.salt[:MAX_NAME_CHARS]) if part)


class RunTexts:
    """Texts of cached runs. Keeps those of the last tree, for most of the next are the same."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[tuple[int, ...], str] = {}

    def of(self, runs: Sequence[HotRun]) -> list[str]:
        self._known = {run.token_ids: self._known.get(run.token_ids) or self._decode(run) for run in runs}
        return [self._known[run.token_ids] for run in runs]

    def _decode(self, run: HotRun) -> str:
        return self._tokenizer.decode(run.token_ids, skip_special_tokens=False)[:MAX_TEXT_CHARS]


def counters_json(view: EngineView) -> Json:
    counts = asdict(view.metrics)
    del counts["phase_seconds"]
    return {name.removeprefix("num_"): value for name, value in counts.items()}


def memory_json(view: EngineView) -> Json:
    return {name.removeprefix("num_"): value for name, value in asdict(view.memory).items()}


def sequences_json(views: Sequence[SequenceView], now: float, names: Names) -> list[Json]:
    return [
        {
            "id": view.request_id[:MAX_NAME_CHARS],
            "sample": view.sample_idx,
            "label": view.label and view.label[:MAX_NAME_CHARS],
            "namespace": names.of(view.namespace),
            "age_s": round(now - view.arrival_time, 3),
            "prompt_tokens": view.num_prompt_tokens,
            "cached_tokens": view.num_cached_tokens,
            "computed_tokens": view.num_computed_tokens,
            "generated_tokens": view.num_generated_tokens,
            "max_tokens": view.max_tokens,
            "preemptions": view.num_preemptions,
        }
        for view in views
    ]


def step_row(step: StepRecord) -> list[float]:
    """In the order of STEP_COLUMNS. Phases in milliseconds; `start_s` on the engine's clock."""
    num_prompt = step.num_prompt_tokens
    return [
        step.step_idx,
        round(step.start_time, 4),
        *(round(1000 * step.phase_seconds.get(phase, 0.0), 3) for phase in PHASES),
        num_prompt,
        step.num_tokens - num_prompt,
        step.num_recomputed_tokens,
        sum(part.num_cached_tokens or 0 for part in step.parts),
        step.num_padding_rows,
        step.num_running,
        step.num_waiting,
        len(step.preempted),
        step.memory.num_used_blocks,
    ]


def sample_row(view: EngineView) -> list[float]:
    """In the order of SAMPLE_COLUMNS: the counters at one moment, from which rates are found."""
    metrics, memory = view.metrics, view.memory
    return [
        round(view.time, 3),
        metrics.num_prompt_tokens,
        metrics.num_cached_tokens,
        metrics.num_computed_tokens,
        metrics.num_generated_tokens,
        view.num_running,
        view.num_waiting,
        memory.num_private_blocks + memory.num_locked_blocks,
        memory.num_tree_blocks,
    ]


def tree_json(cache: HotRuns, texts: RunTexts, names: Names) -> Json:
    newest = max((run.last_access for run in cache.runs), default=0)
    return {
        "hidden": cache.num_hidden,
        "runs": [
            {
                "parent": run.parent_idx,
                "namespace": names.of(run.namespace),
                "start": run.start,
                "tokens": run.num_tokens,
                "text": text,
                "hits": run.num_hits,
                "idle": newest - run.last_access,
                "running": run.num_running,
                "hidden": run.num_hidden,
                "partial": run.is_partial,
            }
            for run, text in zip(cache.runs, texts.of(cache.runs), strict=True)
        ],
    }
