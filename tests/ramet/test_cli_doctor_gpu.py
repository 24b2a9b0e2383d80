"""What `ramet doctor` says of GPUs. There is none here: torch is made to answer for some."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ramet.cli import checks, gpu_checks
from ramet.cli.main import build_parser
from ramet.kernels.triton import availability

GIB = 1 << 30
Cards = Callable[..., None]

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton runs on Linux only")


def findings(*arguments: str) -> dict[str, checks.Check]:
    args = build_parser().parse_args(["doctor", *arguments])
    return {check.name: check for check in checks.run_checks(args)}


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Cards:
    """cards("NVIDIA H200", ..., capability=(9, 0)): torch sees these, with 130 of 140 GiB free."""

    def pretend(*names: str, capability: tuple[int, int] = (9, 0)) -> None:
        monkeypatch.delenv("RAMET_KERNELS", raising=False)
        monkeypatch.delenv("RAMET_KV_CACHE_MEMORY", raising=False)
        monkeypatch.setattr(torch.version, "cuda", "12.9")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(names))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(names))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=0: names[device if device == 1 else 0])
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (130 * GIB, 140 * GIB))
        monkeypatch.setattr(availability, "_is_interpreting", lambda: False)
        monkeypatch.setattr(gpu_checks, "nvidia_driver", lambda: "580.65.06")

    return pretend


def test_the_cards_and_what_runs_there(cards: Cards) -> None:
    cards("NVIDIA H200", "NVIDIA H200")
    found = findings("--quick", "--gpu-memory-utilization", "0.5")
    assert found["gpu"].status == found["triton"].status == found["choice"].status == "ok"
    assert found["gpu"].detail.startswith(
        "cuda:0 NVIDIA H200, compute capability 9.0, 130.0 GiB of 140.0 GiB free; cuda:1 NVIDIA H200"
    )
    assert found["gpu"].detail.endswith(f"driver 580.65.06, torch {torch.__version__} for CUDA 12.9")
    assert found["triton"].detail == (
        f"{availability.triton_version()}; not tried on cuda; kv_cache_dtype may be int8 or fp8"
    )
    assert found["choice"].detail == (
        "triton, then torch on cuda; not tried: cpu (for cpu), torch_int8 (for cpu), reference (only where it is named)"
    )
    assert found["memory"].detail.endswith("of gpu_memory_utilization=0.5, 70.0 GiB")
    asked = findings("--quick", "--kv-cache-memory", "8G")["memory"]
    assert asked.detail == "130.0 GiB free on cuda, cache of 8.0 GiB"


def test_a_card_that_is_too_old(cards: Cards) -> None:
    cards("Tesla T4", capability=(7, 5))
    found = findings("--quick")
    assert found["triton"].status == "warning"
    assert "not used on cuda: Tesla T4 has compute capability 7.5, the kernels need 8.0" in found["triton"].detail
    assert "torch computes" in found["triton"].remedy
    assert found["choice"].status == "ok"
    assert found["choice"].detail.startswith("torch on cuda; triton is passed over, as said above; not tried: ")
    wanted = findings("--quick", "--kv-cache-dtype", "int8")["options"]
    assert wanted.detail == "kv_cache_dtype='int8' goes with kernels='triton', and 'torch' has its own"
    named = findings("--quick", "--kernels", "triton")["choice"]
    assert named.status == "problem"
    assert named.detail.startswith("none on cuda; triton is passed over")
    assert "cpu (others were named)" in named.detail


def test_a_card_without_fp8(cards: Cards) -> None:
    cards("NVIDIA A100", capability=(8, 0))
    wanted = findings("--quick", "--kv-cache-dtype", "fp8")["options"]
    assert wanted.detail.startswith("kv_cache_dtype='fp8' is not supported on cuda: NVIDIA A100 has")
    assert wanted.remedy == "use kv_cache_dtype='int8' or 'auto'"
    detail = findings("--quick")["triton"].detail
    assert detail.endswith(
        "may be int8 (NVIDIA A100 has compute capability 8.0, and fp8 needs 8.9 (Ada, Hopper) or newer)"
    )


def test_more_ranks_than_cards(cards: Cards) -> None:
    cards("NVIDIA H200")
    check = findings("--quick", "--tensor-parallel-size", "2")["options"]
    assert check.detail == "tensor_parallel_size=2 needs 2 CUDA devices from cuda:0 on, and there are 1"
    assert check.remedy.startswith("lower it")


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_no_card_where_one_is_asked_for(device: str, cards: Cards, monkeypatch: pytest.MonkeyPatch) -> None:
    cards()
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(gpu_checks, "nvidia_driver", lambda: None)
    found = findings("--quick", "--device", device)
    assert found["device"].detail.endswith("sees no CUDA device: it was built for CPUs only")
    assert found["device"].remedy.startswith("install a build of torch for CUDA (or ROCm)")
    assert not found["gpu"].remedy
    assert "install" not in found["gpu"].detail


def test_triton_on_a_cpu_is_told_once(cards: Cards) -> None:
    cards()
    found = findings("--quick", "--kernels", "triton")
    assert found["triton"].remedy == "set TRITON_INTERPRET=1 before they are imported, or use other kernels"
    told = [check.detail + check.remedy for check in found.values()]
    assert sum("TRITON_INTERPRET" in text for text in told) == 1
    assert sum("in its interpreter only" in text for text in told) == 1
    assert found["choice"].status == "problem"


def test_a_launch_that_fails_is_a_finding(cards: Cards, monkeypatch: pytest.MonkeyPatch) -> None:
    cards("NVIDIA H200")
    args = build_parser().parse_args(["doctor"])
    monkeypatch.setattr(gpu_checks, "_why_not_launched", lambda device: "RuntimeError: Failed to find C compiler.")
    check = gpu_checks.check_triton(args)
    assert check.status == "warning"
    assert check.detail.endswith("not used on cuda: RuntimeError: Failed to find C compiler.")
    monkeypatch.setattr(gpu_checks, "_why_not_launched", lambda device: None)
    assert "; launches on cuda; " in gpu_checks.check_triton(args).detail


def test_a_launch_is_tried_for_real_under_the_interpreter() -> None:
    args = build_parser().parse_args(["doctor", "--device", "cpu", "--kernels", "triton"])
    assert "; launches on cpu; " in gpu_checks.check_triton(args).detail


def test_a_card_that_cannot_be_used(cards: Cards, monkeypatch: pytest.MonkeyPatch) -> None:
    cards("NVIDIA H200")

    def busy(device: int) -> None:
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nmore")

    monkeypatch.setattr(torch.cuda, "mem_get_info", busy)
    check = findings("--quick")["gpu"]
    assert check.status == "warning"
    assert "cuda:0 cannot be used: CUDA error: all CUDA-capable devices are busy or unavailable; driver" in check.detail
    assert "--device" in check.remedy


def test_a_driver_whose_card_torch_does_not_see(cards: Cards, monkeypatch: pytest.MonkeyPatch) -> None:
    cards()
    monkeypatch.setattr(torch.version, "cuda", None)
    check = findings("--quick")["gpu"]
    assert check.status == "warning"
    assert "NVIDIA driver 580.65.06 is loaded, but torch" in check.detail
    assert "built for CPUs only" in check.detail
    monkeypatch.setattr(gpu_checks, "nvidia_driver", lambda: None)
    assert findings("--quick")["gpu"].status == "ok"


def test_a_device_that_there_is_not_is_one_problem() -> None:
    found = findings("--quick", "--device", "no-such-device")
    assert [found[name].status for name in ("device", "triton", "choice")] == ["problem", "skipped", "skipped"]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.10  Tue Jan 14\nGCC version:  gcc 13.3.0\n",
            "570.86.10",
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n", "580.65.06"),
        ("something else\n", None),
    ],
)
def test_the_version_of_the_driver(
    text: str, version: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "version"
    monkeypatch.setattr(gpu_checks, "DRIVER_FILE", file)
    assert gpu_checks.nvidia_driver() is None
    file.write_text(text, encoding="utf-8")
    assert gpu_checks.nvidia_driver() == version
