"""Every kernel compiles for GPUs that are not here, within its budget of registers. About a minute with two processes,
seconds when Triton's cache has them.

In a process of its own, because here the kernels are interpreted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from ramet.kernels.aot import TARGETS, Measured, jobs, main, problems, read_budgets


def test_every_kernel_compiles_within_its_budget() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    result = subprocess.run(
        [sys.executable, "-m", "ramet.kernels.aot", "--jobs", "2"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    measured = [json.loads(line) for line in result.stdout.splitlines()]
    assert {(entry["target"], entry["variant"]) for entry in measured} == set(jobs(list(TARGETS)))


def test_budgets_are_for_what_is_compiled() -> None:
    budgets = read_budgets()
    assert {(target, variant) for target in budgets for variant in budgets[target]} == set(jobs(list(TARGETS)))


FINE = Measured("sm_90", "attention_llama_128", 100, 0, 1000, num_wide_products=4, num_async_copies=3)
BUDGETS = {"sm_90": {"attention_llama_128": 100, "merge": 32}, "gfx942": {"attention_llama_128": 100}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stack": 8}, "registers are spilled: 8 bytes of stack"),
        ({"shared": 233_000}, "233000 bytes of shared memory, the card has 232448"),
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
    assert problems(Measured("sm_90", "merge", 30, 0, 0), BUDGETS) == []


def test_it_says_that_the_interpreter_compiles_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert "TRITON_INTERPRET is set" in capsys.readouterr().err
