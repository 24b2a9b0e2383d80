"""Job: one engine through the workloads, once each."""

from __future__ import annotations

import importlib
import importlib.metadata
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .inputs import Inputs
from .memory import peak_rss_bytes
from .workloads import WORKLOADS, Outcome, Session, Shape, UnsupportedError, Workload

WARM_UP_TOKENS = 24


def run(options: dict[str, Any]) -> dict[str, Any]:
    """Options: `module`, `packages`, `workloads` (names), `inputs` (path), `is_rehearsed` (run each workload
    once before it is measured), and those of the engine's `open_session`.

    An engine that fails in one workload goes on with the next.
    """
    start = time.perf_counter()
    module = importlib.import_module(f".engines.{options['module']}", __package__)
    session: Session = module.open_session(options)
    load_seconds = time.perf_counter() - start
    inputs = Inputs.load(Path(options["inputs"]))
    warm_up(session, inputs)
    results = {}
    for name in options["workloads"]:
        if options["is_rehearsed"]:
            _measure(WORKLOADS[name], session, inputs)
        results[name] = _measure(WORKLOADS[name], session, inputs)
    return {
        "workloads": results,
        "load_seconds": load_seconds,
        "peak_rss_bytes": peak_rss_bytes(),
        "versions": _versions(options["packages"]),
        "details": module.details(session),
    }


def warm_up(session: Session, inputs: Inputs) -> None:
    """A short prompt alone and a few together: what is compiled or allocated on first use is not measured."""
    prompt = inputs.prefix[:WARM_UP_TOKENS]
    session.begin(Shape(3, len(prompt) + 4, 3 * (len(prompt) + 4), is_shared=False))
    session.generate([prompt], 4)
    session.generate([prompt[:-1] + question[:1] for question in inputs.questions[:3]], 4)


def _measure(workload: Workload, session: Session, inputs: Inputs) -> dict[str, Any]:
    if workload.name == "W3-together" and not session.primes_prefix:
        return {"same_as": "W3"}
    try:
        outcome = run_checked(workload, session, inputs)
    except UnsupportedError as error:
        return {"error": str(error)}
    except Exception as error:  # any peer may raise anything; it must not end the others' rows
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    return asdict(outcome)


class WrongCountError(Exception):
    """The engine generated more or fewer tokens than it was asked for, so its time says nothing."""


def run_checked(workload: Workload, session: Session, inputs: Inputs) -> Outcome:
    """Raises WrongCountError if the engine did not do all of the work."""
    outcome = workload.run(session, inputs)
    expected = workload.num_tokens(inputs)
    if outcome.num_tokens != expected:
        raise WrongCountError(f"{outcome.num_tokens} instead of {expected} tokens")
    return outcome


def _versions(packages: Sequence[str]) -> dict[str, str]:
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
