"""Part 8: workloads W1 to W5 on whole models: ours with the prefix cache and without, and transformers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from benchmarks.cpu.inputs import Inputs, make_inputs
from benchmarks.cpu.text import GROUPS
from benchmarks.cpu.workloads import WORKLOADS, Session, Workload

from .bench import Bench
from .engine_session import EngineSession, TimeIsUpError
from .peers import ContinuousBatchingSession, GenerateSession, PeerModels
from .results import Deadline, Record, Row

WANTED = ("W3-together", "W5", "W1", "W2", "W4")
"""The most telling first, for whoever has little time."""

OURS, UNCACHED, GENERATE, CONTINUOUS = "ramet", "ramet, cache off", "transformers generate", "transformers continuous"
ENGINES = (OURS, UNCACHED, GENERATE, CONTINUOUS)


class TimedSession(Session, Protocol):
    """A session that gives up a workload when time is over, with TimeIsUpError."""

    deadline: Deadline


@dataclass(frozen=True)
class Entrant:
    """An engine with one model.

    Attributes:
        open: loads it; its time counts as loading.
        is_slow: computes the prefix of W3 for each request, and is given `num_slow_requests` of them.
    """

    model: str
    engine: str
    open: Callable[[], TimedSession]
    is_slow: bool = True

    def __str__(self) -> str:
        return f"{self.engine} on {self.model}"


def measure_end_to_end(bench: Bench, record: Record) -> None:
    """Ours on every model first; then peers, as far as time goes."""
    inputs = model_inputs(bench)
    peers = PeerModels(bench.models, bench.device, bench.dtype)
    entrants = [*_our_entrants(bench), *_peer_entrants(bench, peers)]
    for idx, entrant in enumerate(record.in_time(entrants, seconds_each=15.0 if bench.is_cuda else 0.0)):
        # What is left, in equal parts; who takes less leaves more.
        deadline = record.deadline.earlier(record.deadline.left / (len(entrants) - idx) * 1.5)
        with record.guard(str(entrant)), _opened(bench, entrant) as (session, load_seconds):
            session.deadline = deadline
            for name in WANTED:
                with record.guard(f"{entrant}, {name}"):
                    record.result.rows += _run_workload(bench, record, entrant, session, WORKLOADS[name], inputs)
                bench.free_memory()
            record.note(f"{entrant}: {load_seconds:.0f} s to load and for a first short run.")
        bench.free_memory()
    compare(record.result.rows, bench.settings.models)
    if any(row["requests_note"] for row in record.result.rows):
        record.note(
            f"W3 marked with *: {bench.settings.num_slow_requests} of {bench.settings.workloads.shared[0]} requests, "
            "because the engine computes the prefix for each of them; tokens a second are of those."
        )


def compare(rows: list[Row], models: Sequence[str]) -> None:
    """Sort rows by workload; say how many times faster ours generates, and how many replies begin with the token that
    ours begin with. Mutates `rows`."""
    ours = {(row["model"], row["name"]): row for row in rows if row["engine"] == OURS}
    for row in rows:
        expected = row if row["engine"] == OURS else ours.get((row["model"], row["name"]))
        row["ours_faster"] = row["agreement"] = None
        if expected is not None:
            pairs = list(zip(row["answers"], expected["answers"], strict=False))
            row["agreement"] = sum(one == other for one, other in pairs) / len(pairs)
            row["ours_faster"] = None if row is expected else expected["tokens_s"] / row["tokens_s"]
    rows.sort(key=lambda row: (models.index(row["model"]), row["name"], ENGINES.index(row["engine"])))


def model_inputs(bench: Bench) -> Inputs:
    """Token ids below 300, which every model has: a made-up vocabulary of numbers in place of words."""
    pieces = [".", ",", *(piece for group in GROUPS.values() for piece in group)]
    return make_inputs({piece: idx + 3 for idx, piece in enumerate(pieces)}, bench.settings.workloads, 1)


def fewer_requests(inputs: Inputs, num_requests: int) -> Inputs:
    """The same W3 with its first requests only."""
    shared = (num_requests, *inputs.sizes.shared[1:])
    return replace(inputs, questions=inputs.questions[:num_requests], sizes=replace(inputs.sizes, shared=shared))


def _our_entrants(bench: Bench) -> Iterator[Entrant]:
    for model in bench.settings.models:
        yield Entrant(model, OURS, partial(_our_session, bench, model), is_slow=False)
        yield Entrant(model, UNCACHED, partial(_our_session, bench, model, enable_prefix_caching=False))


def _our_session(bench: Bench, model: str, **options: bool) -> EngineSession:
    return EngineSession(bench.models.load(model), bench.models.config(model, **options))


def _peer_entrants(bench: Bench, peers: PeerModels) -> Iterator[Entrant]:
    def continuous(model: str) -> ContinuousBatchingSession:
        return ContinuousBatchingSession(peers.load(model), is_tiny=bench.settings.is_tiny)

    for model in bench.settings.models:
        yield Entrant(model, GENERATE, lambda model=model: GenerateSession(peers.load(model)))
        yield Entrant(model, CONTINUOUS, partial(continuous, model))


@contextmanager
def _opened(bench: Bench, entrant: Entrant) -> Iterator[tuple[TimedSession, float]]:
    """The session and the seconds that loading and a first short run took."""
    start = time.perf_counter()
    session = entrant.open()
    try:
        session.generate([[5, 6, 7], [8, 9, 10]], 2)
        bench.timer.synchronize()
        seconds = time.perf_counter() - start
        bench.timer.compile_seconds += seconds
        yield session, seconds
    finally:
        session.close()


def _run_workload(
    bench: Bench, record: Record, entrant: Entrant, session: TimedSession, workload: Workload, inputs: Inputs
) -> list[Row]:
    """Its row; none if time was up before it was done."""
    is_cut = workload.name == "W3-together" and entrant.is_slow
    if is_cut:
        inputs = fewer_requests(inputs, bench.settings.num_slow_requests)
    label = f"{entrant}, {workload.name}"
    if session.deadline.is_over:
        record.note(f"{label}: left out for lack of time.")
        return []
    try:
        outcome = workload.run(session, inputs)
    except TimeIsUpError as error:
        record.note(f"{label}: {error}.")
        return []
    wanted = workload.num_tokens(inputs)
    if outcome.num_tokens != wanted:
        raise RuntimeError(f"{label}: {outcome.num_tokens} tokens were generated instead of {wanted}")
    return [
        {
            "model": entrant.model,
            "name": workload.name,
            "workload": f"{workload.name.removesuffix('-together')}: {workload.description(inputs)}",
            "engine": entrant.engine,
            "seconds": outcome.seconds,
            "first_token_s": outcome.prefill_seconds,
            "tokens": outcome.num_tokens,
            "tokens_s": outcome.num_tokens / outcome.seconds,
            "answers": outcome.answers,
            "requests_note": "*" if is_cut else "",
        }
    ]
