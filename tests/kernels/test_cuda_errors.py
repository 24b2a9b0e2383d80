"""What is said where a GPU was asked for and cannot be had. There is none here: torch is made to answer for one."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable

import pytest
import torch

from ramet.kernels.dispatch import UnsupportedDeviceError, check_device, kernels_device, why_unavailable
from ramet.kernels.triton import availability

CUDA = torch.device("cuda")
Cuda = Callable[..., None]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """cuda(names, capability=(9, 0), cuda="12.9", hip=None, says=None): PyTorch sees cards of these names. With none,
    starting CUDA raises what it `says`."""

    def pretend(
        *names: str,
        capability: tuple[int, int] = (9, 0),
        cuda: str | None = "12.9",
        hip: str | None = None,
        says: str | None = None,
    ) -> None:
        def init() -> None:
            if says is not None:
                raise RuntimeError(says)

        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.version, "hip", hip)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(names))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(names))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=0: names[device if device == 1 else 0])
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
        monkeypatch.setattr(torch.cuda, "init", init)
        monkeypatch.setattr(availability, "_is_interpreting", lambda: False)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return pretend


def refusal(device: str) -> str:
    with pytest.raises(UnsupportedDeviceError) as caught:
        check_device(device)
    return str(caught.value)


def test_a_torch_for_cpus(cuda: Cuda) -> None:
    cuda(cuda=None)
    message = refusal("cuda")
    assert f"device='cuda' was asked for, but this torch ({torch.__version__}) sees no CUDA device" in message
    assert "it was built for CPUs only; install a build of torch for CUDA" in message


@pytest.mark.parametrize(
    "says",
    [
        "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver",
        "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver",
        "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, use the 'spawn' method",
    ],
)
def test_no_driver_and_drivers_that_do_not_do(cuda: Cuda, says: str) -> None:
    cuda(says=f"{says}\nand more lines")
    message = refusal("cuda:0")
    assert message.endswith(f"it was built for CUDA 12.9 and says: {says}. Or use device='cpu'")


def test_devices_that_are_hidden(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda(says="No CUDA GPUs are available")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "No CUDA GPUs are available (CUDA_VISIBLE_DEVICES='' says which ones are shown)" in refusal("cuda")


def test_an_amd_build_without_a_card(cuda: Cuda) -> None:
    cuda(cuda=None, hip="6.4", says="No HIP GPUs are available")
    assert "it was built for ROCm 6.4 and says: No HIP GPUs are available" in refusal("cuda")


def test_auto_takes_the_cpu_where_no_device_is_seen(cuda: Cuda) -> None:
    cuda(says="Found no NVIDIA driver on your system")
    assert check_device("auto") == torch.device("cpu")


def test_an_index_that_there_is_not(cuda: Cuda) -> None:
    cuda("NVIDIA H200", "NVIDIA L4")
    assert check_device("cuda:1") == torch.device("cuda:1")
    assert refusal("cuda:2").endswith(
        "device='cuda:2' is not among the CUDA devices here: there are 2: cuda:0 (NVIDIA H200), cuda:1 (NVIDIA L4)"
    )
    cuda("NVIDIA H100 MIG 1g.10gb")
    assert "there is one: cuda:0 (NVIDIA H100 MIG 1g.10gb); a process sees one MIG instance" in refusal("cuda:1")


def test_names_of_devices(cuda: Cuda) -> None:
    cuda("AMD Instinct MI300X", cuda=None, hip="6.4")
    assert refusal("hip").endswith("use one of cpu, cuda; an AMD card is called 'cuda' too")
    for name in ("gpu", "cuda:", "cuda:-1", "", " cpu", 0, None, 1.5, ["cuda"]):
        assert refusal(name).endswith(  # type: ignore[arg-type]
            f"device={name!r} is not a device name; use 'auto', 'cpu', 'cuda', or one of several such as 'cuda:1'"
        )
    assert kernels_device("triton", "auto") == CUDA


def test_a_card_that_another_process_has_for_itself(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda("NVIDIA H200")

    def busy(device: torch.device) -> None:
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nCompile with ...")

    monkeypatch.setattr(torch.cuda, "get_device_capability", busy)
    with pytest.raises(UnsupportedDeviceError) as caught:
        kernels_device("triton", "cuda")
    assert str(caught.value) == (
        "kernels='triton' cannot run on device='cuda': it cannot be used: CUDA error: all CUDA-capable devices are "
        "busy or unavailable"
    )


@pytest.mark.parametrize(
    ("version", "is_fine"), [("3.2.0", False), ("3.6.0", True), ("3.10.1+git5", True), ("4.0", True), (None, True)]
)
def test_a_triton_that_is_too_old(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch, version: str | None, is_fine: bool
) -> None:
    cuda("NVIDIA H200")
    monkeypatch.setattr(availability, "triton_version", lambda: version)
    reason = why_unavailable("triton", CUDA)
    assert (reason is None) == is_fine
    assert is_fine or "Triton 3.2.0 is too old, the kernels need 3.6" in str(reason)


def test_the_version_is_that_of_whichever_package_brings_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"pytorch-triton-rocm": "3.7.0"}

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert availability.triton_version() == "3.7.0"
    versions.clear()
    assert availability.triton_version() is None
