"""Every kernel compiles for GPUs that are not here, within its budget of registers. About a minute with two processes,
seconds when Triton's cache has them.

In a process of its own, because here the kernels are interpreted.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ramet.kernels.aot import TARGETS, Measured, jobs, main, problems, read_budgets
from ramet.kernels.triton.kv_cache import KV_DTYPES, LARGEST_CODE
from ramet.kernels.triton.tiles import tiles_for


def run_compiling(*arguments: str) -> str:
    """Standard output of Python where kernels are not interpreted."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    result = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout


def test_every_kernel_compiles_within_its_budget() -> None:
    measured = [json.loads(line) for line in run_compiling("-m", "ramet.kernels.aot", "--jobs", "2").splitlines()]
    assert {(entry["target"], entry["variant"]) for entry in measured} == set(jobs(list(TARGETS)))


def test_what_is_measured_is_what_is_launched() -> None:
    """To the letter: the launcher's own idea of constants, of what is divisible by 16, and of options."""
    names = ["attention_smollm_16", "merge", "store_kv", "add_rms_norm", "rotary_store", "edit_logits", "argmax_pieces"]
    script = Path(__file__).with_name("launched_kernels.py")
    assert json.loads(run_compiling(str(script), *names)) == dict.fromkeys(names, True)


def test_budgets_are_for_what_is_compiled() -> None:
    """With the locked version and the newest for all targets, with the oldest for the H200."""
    budgets = read_budgets()
    for version, targets in (("3.9", list(TARGETS)), ("3.7", list(TARGETS)), ("3.6", ["sm_90"])):
        entries = {(target, variant) for target, listed in budgets[version].items() for variant in listed}
        assert entries == set(jobs(targets))


def test_the_locked_version_has_budgets() -> None:
    lock = (Path(__file__).parents[3] / "requirements" / "lock.txt").read_text(encoding="utf-8")
    locked = re.search(r"^triton==(\d+\.\d+)", lock, re.MULTILINE)
    assert locked is not None
    assert locked[1] in read_budgets()


FINE = Measured(
    "sm_90", "attention_llama_128", 100, 0, 1000, 1, num_wide_products=4, num_async_copies=3, num_wide_copies=2
)
BUDGETS = {"sm_90": {"attention_llama_128": 100, "merge": 32}, "gfx942": {"attention_llama_128": 100}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stack": 8}, "registers are spilled: 8 bytes of stack"),
        ({"shared": 233_000}, "233000 bytes of shared memory, the card has 232448"),
        ({"target": "sm_80", "shared": 102_000}, "102000 bytes of shared memory, the card has 101376"),
        ({"num_resident": 0}, "0 programs a multiprocessor, the planner counts on 1"),
        ({"num_wide_copies": 0}, "no asynchronous copies of 8 bytes or more"),
        ({"registers": 101}, "101 registers, the budget is 100"),
        ({"variant": "attention_llama_64"}, "no budget; 100 registers measured"),
        ({"num_wide_products": 0, "num_products": 4}, "no product of a warp group"),
        ({"num_async_copies": 0}, "no asynchronous copies"),
        ({"target": "gfx942", "num_wide_products": 0}, "the matrix unit is not used"),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, object], message: str) -> None:
    assert problems(FINE, BUDGETS) == []
    (problem,) = problems(replace(FINE, **changes), BUDGETS)  # type: ignore[arg-type]
    assert message in problem


def test_kernels_without_products_are_not_asked_for_any() -> None:
    assert problems(Measured("sm_90", "merge", 30, 0, 0, 16), BUDGETS) == []


def test_a_version_without_budgets_is_checked_but_for_registers() -> None:
    assert problems(replace(FINE, registers=255), None) == []
    assert problems(replace(FINE, stack=4), None) != []


@pytest.mark.parametrize(
    ("kv_dtype", "head_dim", "group_size"),
    [(dtype, dim, group) for dtype in KV_DTYPES for dim in (64, 80, 128, 256) for group in (1, 4, 8, 71)],
    ids=str,
)
@pytest.mark.parametrize("is_hip", [False, True])
def test_products_are_at_least_as_large_as_the_matrix_unit_takes(
    kv_dtype: torch.dtype, head_dim: int, group_size: int, is_hip: bool
) -> None:
    """The interpreter multiplies any shape; a GPU at least 16 x 16 x 16."""
    itemsize = 4 if kv_dtype == torch.float32 else 2
    for tile in tiles_for(head_dim, itemsize, group_size, is_quantised=kv_dtype in LARGEST_CODE, is_hip=is_hip):
        assert tile.block_m >= 16
        assert tile.block_n >= 16
        assert tile.block_m & (tile.block_m - 1) == tile.block_n & (tile.block_n - 1) == 0


def test_it_says_that_the_interpreter_compiles_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert "TRITON_INTERPRET is set" in capsys.readouterr().err
