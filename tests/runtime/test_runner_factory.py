"""Choosing a runner by name and device, and what happens when one cannot be had."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from ramet.runtime import runner_factory
from ramet.runtime.config import EngineConfig, default_kernels
from ramet.runtime.errors import InvalidConfigError
from ramet.runtime.runner_factory import (
    PREFERRED,
    RUNNERS,
    LoadedRunner,
    RunnerKind,
    RunnerSpec,
    RunnerUnavailableError,
    build_runner,
    runner_candidates,
)


class OnDisk:
    """Stands for a checkpoint that no runner of this file reads."""

    path = Path("model.gguf")


SPEC = RunnerSpec(checkpoint=cast(Any, OnDisk()), config=EngineConfig(), device="cpu", num_threads=1)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> LoadedRunner:
    """What a runner called "works" gives; one called "missing" cannot be had."""
    loaded = LoadedRunner(runner=cast(Any, None), kernels_name="works", model_config=cast(Any, None), max_model_len=7)

    def missing(spec: RunnerSpec) -> LoadedRunner:
        raise RunnerUnavailableError(f"no compiler for {spec.checkpoint.path}")

    kinds = {"missing": RunnerKind(missing, ("cpu",)), "works": RunnerKind(lambda spec: loaded, ("cpu",))}
    monkeypatch.setattr(runner_factory, "RUNNERS", kinds)
    return loaded


@pytest.mark.parametrize("name", sorted(RUNNERS))
def test_a_name_that_is_given_is_the_only_candidate(name: str) -> None:
    assert runner_candidates(name, "cpu") == (name,)


def test_every_preferred_name_exists_and_runs_on_its_device() -> None:
    for device_type, names in PREFERRED.items():
        assert names
        assert all(device_type in RUNNERS[name].device_types for name in names)


def test_without_a_name_the_device_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert runner_candidates(None, "auto") == runner_candidates(None, "cpu") == PREFERRED["cpu"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert runner_candidates(None, "auto") == runner_candidates(None, "cuda:0") == PREFERRED["cuda"]


@pytest.mark.parametrize("name", ["fast", "", "Torch", ["torch"]])
def test_an_unknown_name_lists_the_known_ones(name: Any) -> None:
    with pytest.raises(
        InvalidConfigError, match=r"kernels=.* is unknown; choose one of .*reference, torch.*, or give none"
    ):
        runner_candidates(name, "cpu")


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidConfigError, match=r"device='cuda' was asked for"):
        runner_candidates(None, "cuda")
    with pytest.raises(InvalidConfigError, match=r"kernels='torch': device='tpu' is not"):
        runner_candidates("torch", "tpu")


def test_a_runner_for_another_device_is_refused_but_auto_finds_its_own(
    built: LoadedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(InvalidConfigError, match="kernels='works': device='cuda' is not supported; use one of cpu"):
        runner_candidates("works", "cuda")
    assert runner_candidates("works", "auto") == ("works",)


def test_one_that_cannot_be_had_is_passed_over_with_a_warning(
    built: LoadedRunner, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert build_runner(("missing", "works"), SPEC) is built
    (record,) = caplog.records
    assert record.getMessage() == "no compiler for model.gguf: kernels 'missing' are passed over, trying 'works'"


def test_the_last_candidate_says_why_it_cannot_be_had(built: LoadedRunner) -> None:
    assert built is not None
    with pytest.raises(RunnerUnavailableError, match="no compiler"):
        build_runner(("missing",), SPEC)


def test_the_environment_gives_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAMET_KERNELS", raising=False)
    assert default_kernels() is None
    monkeypatch.setenv("RAMET_KERNELS", "reference")
    assert default_kernels() == "reference"
