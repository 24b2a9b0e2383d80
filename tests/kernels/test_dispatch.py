"""Choosing a backend."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

from ramet.kernels.dispatch import (
    KERNELS,
    UnknownKernelsError,
    UnsupportedDeviceError,
    select_kernels,
    why_unavailable,
)

RUNNABLE = {name for name in KERNELS if why_unavailable(name, torch.device("cpu")) is None}
"""All backends; without Triton, all but that one."""


@pytest.mark.parametrize("name", sorted(RUNNABLE))
def test_each_backend_is_found_by_its_own_name(name: str) -> None:
    kernels = select_kernels("cpu", name)
    assert kernels.name == name
    assert kernels.device == torch.device("cpu")


def test_the_default_computes_in_fp32() -> None:
    assert select_kernels("cpu").name == "torch"


def test_auto_takes_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert select_kernels("auto").device.type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert select_kernels("auto").device.type == "cuda"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnknownKernelsError, match=r"'fast'.*reference, torch"):
        select_kernels("cpu", "fast")


def test_a_cuda_device_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UnsupportedDeviceError, match=r"'cuda:0'.*sees no CUDA device"):
        select_kernels("cuda:0")


def test_a_backend_for_cpus_is_refused_elsewhere_and_auto_finds_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UnsupportedDeviceError, match=r"device='cuda' is not supported; use one of cpu"):
        select_kernels("cuda", "torch_int8")
    assert select_kernels("auto", "torch_int8").device.type == "cpu"


OTHER_DEVICES: list[Any] = [
    *("gpu", "", "meta", "cpu:x", "cpu:99", torch.device("cpu:1")),
    *(None, True, 0, 1.5, [], {}, b"cpu", object(), 10**30),
]


@pytest.mark.parametrize("device", OTHER_DEVICES, ids=lambda device: repr(device)[:20])
def test_other_devices_are_refused(device: Any) -> None:
    with pytest.raises(UnsupportedDeviceError, match="use"):
        select_kernels(device)


def test_triton_on_a_cpu_needs_its_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(
        UnsupportedDeviceError, match=r"kernels='triton' cannot run on device='cpu'.*TRITON_INTERPRET=1"
    ):
        select_kernels("cpu", "triton")


def test_without_triton_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedDeviceError, match=r"Triton is not installed; .* pip install '\.\[gpu\]'"):
        select_kernels("cpu", "triton")


@pytest.mark.parametrize(("capability", "is_fine"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_cards_that_are_too_old_are_refused(
    capability: tuple[int, int], is_fine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Old Card")
    reason = why_unavailable("triton", torch.device("cuda"))
    assert is_fine == (reason is None)
    assert is_fine or "Old Card has compute capability 7.5, the kernels need 8.0" in str(reason)


def test_the_interpreter_is_not_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert "unset it" in str(why_unavailable("triton", torch.device("cuda")))
