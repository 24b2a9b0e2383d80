"""One run of everything: jobs in their order, and what came of each."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .catalogue import ENGINES, OURS, REFERENCE, EngineSpec
from .inputs import Inputs
from .process import JobError, run_job
from .workloads import WORKLOADS

PARTS = ("engines", "limits", "steps", "quality")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Attributes:
    model: a GGUF file or "smollm2".
    engines, workloads, parts: what to run, names.
    pythons: interpreter by family of engines.
    repeat: how often each engine is started anew.
    timeout: seconds one process may take.
    log: file that gets what the processes print; None drops it.
    """

    model: str
    engines: Sequence[str]
    workloads: Sequence[str]
    parts: Sequence[str]
    pythons: Mapping[str, str]
    threads: int
    repeat: int
    is_quick: bool
    timeout: float
    kernels: str | None
    log: Path | None


def run_plan(plan: Plan) -> dict[str, Any]:
    """Everything the report needs, as plain JSON.

    Raises:
        JobError: the model could not be prepared. Whatever fails later is a reason in the results.
    """
    with tempfile.TemporaryDirectory(prefix="ramet-bench-") as folder:
        return _Campaign(plan, Path(folder)).run()


class _Campaign:
    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._inputs = folder / "inputs.json"
        self._windows = folder / "windows.json"
        self._model: dict[str, Any] = {}

    def run(self) -> dict[str, Any]:
        plan = self._plan
        has_quality = "quality" in plan.parts
        named = [*plan.engines, *([REFERENCE] if has_quality else [])]
        self._model = self._job(
            "ramet",
            "prepare",
            {
                "model": plan.model,
                "is_quick": plan.is_quick,
                "needs": sorted({need for name in named for need in ENGINES[name].needs}),
                "inputs": str(self._inputs),
                "windows": str(self._windows),
            },
        )
        results: dict[str, Any] = {"model": self._model_facts(), "engines": {}, "limits": [], "steps": []}
        results["descriptions"] = _descriptions(Inputs.load(self._inputs))
        results["engines"] = {name: {"runs": [], "reason": self._prepare(name)} for name in plan.engines}
        if has_quality:
            results["quality"] = self._quality()
        for idx in range(plan.repeat):
            _say(f"round {idx + 1} of {plan.repeat}")
            self._round(results)
        return results

    def _model_facts(self) -> dict[str, Any]:
        """What the report says of the model; no paths."""
        facts = {name: value for name, value in self._model.items() if name.startswith(("num_", "weight_"))}
        return {"name": Path(self._model["gguf"]).name, **facts}

    def _round(self, results: dict[str, Any]) -> None:
        """Every engine once, one after the other: what the machine does meanwhile falls on all alike."""
        seconds = 0.5 if self._plan.is_quick else 3.0
        if "limits" in self._plan.parts:
            options = {"weight_bytes": self._model["weight_bytes"], "seconds": seconds}
            results["limits"] += self._tried(lambda: self._job("ramet", "limits", options))
        if "steps" in self._plan.parts:
            options = {**self._model, "seconds": seconds, "kernels": self._plan.kernels}
            results["steps"] += self._tried(lambda: self._job("ramet", "steps", options))
        if "engines" not in self._plan.parts:
            return
        for name, found in results["engines"].items():
            if found["reason"] is None:
                self._run_engine(name, found)

    def _run_engine(self, name: str, found: dict[str, Any]) -> None:
        _say(f"  {ENGINES[name].label}")
        start = time.monotonic()
        options: dict[str, Any] = {"inputs": str(self._inputs), "workloads": list(self._plan.workloads)}
        options["is_rehearsed"] = ENGINES[name].is_rehearsed
        try:
            found["runs"].append(self._engine_job(name, "engine_job", options))
        except JobError as error:
            found["reason"] = str(error)
            _say(f"    {error}")
        _say(f"    {time.monotonic() - start:.0f} s")

    def _prepare(self, name: str) -> str | None:
        """The reason why the engine cannot be run; None if it can."""
        if not ENGINES[name].is_prepared or not {"engines", "quality"} & set(self._plan.parts):
            return None
        _say(f"preparing {ENGINES[name].label}")
        try:
            self._engine_job(name, "engine_prepare", {})
        except JobError as error:
            _say(f"  {error}")
            return str(error)
        return None

    def _quality(self) -> dict[str, Any]:
        """The scores of the engines that have any, the reference's among them; or a reason."""
        scores: dict[str, Any] = {}
        wanted = {name: ENGINES[name] for name in {*self._plan.engines, OURS, REFERENCE}}
        for name, spec in sorted(wanted.items()):
            if spec.has_scores:
                _say(f"scoring text with {spec.label}")
                try:
                    scores[name] = self._engine_job(name, "quality_job", {"windows": str(self._windows)})
                except JobError as error:
                    scores[name] = {"reason": str(error)}
        return scores

    def _engine_job(self, name: str, module: str, options: Mapping[str, Any]) -> Any:
        spec: EngineSpec = ENGINES[name]
        all_options = {**self._model, "name": name, "module": spec.module, "packages": spec.packages, **spec.options}
        if name == OURS:
            all_options["kernels"] = self._plan.kernels
        return self._job(spec.family, module, {**all_options, **options})

    def _job(self, family: str, module: str, options: Mapping[str, Any]) -> Any:
        threads = self._plan.threads
        return run_job(
            self._plan.pythons.get(family, sys.executable),
            module,
            {"threads": threads, **options},
            timeout=self._plan.timeout,
            environment={"OMP_NUM_THREADS": str(threads)},
            log=self._plan.log,
        )

    @staticmethod
    def _tried(job: Callable[[], Any]) -> list[Any]:
        """The job's result, or nothing if it failed: this part of the report then has less to go by."""
        try:
            return [job()]
        except JobError as error:
            _say(f"  {error}")
            return []


def _descriptions(inputs: Inputs) -> dict[str, str]:
    return {name: workload.description(inputs) for name, workload in WORKLOADS.items()}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
