"""The versions that are locked go together, whatever build of torch a machine gets."""

from __future__ import annotations

import re
from pathlib import Path

LOCK = Path(__file__).resolve().parents[2] / "requirements" / "lock.txt"
TRITON_OF_TORCH = {"2.13.0": "3.7.1"}
"""What torch's build for CUDA requires to the letter; its build for CPUs, which says nothing of it, may be the one that
was installed when the lock was written. Look it up for a new version: `pip download --no-deps torch` from PyPI."""


def test_triton_is_the_one_that_torch_for_cuda_asks_for() -> None:
    locked = dict(re.findall(r"^([\w.-]+)==([\w.]+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE))
    assert locked["triton"] == TRITON_OF_TORCH[locked["torch"]]
