"""Choosing a backend."""

from __future__ import annotations

import pytest
import torch

from ramet.kernels.dispatch import KERNELS, UnknownKernelsError, UnsupportedDeviceError, select_kernels


@pytest.mark.parametrize("name", sorted(KERNELS))
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


@pytest.mark.parametrize("device", ["gpu", "", "meta", "cpu:x"])
def test_other_devices_are_refused(device: str) -> None:
    with pytest.raises(UnsupportedDeviceError, match="use"):
        select_kernels(device)
