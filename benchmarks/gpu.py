"""The GPU table: `python benchmarks/gpu.py --out DIR`, from anywhere, with ramet installed or not.

The same as `python -m benchmarks.gpu` from the root of the checkout; what it measures is told in gpu/README.md.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    # Not this folder, whose modules have everyday names, but the root: `ramet` and `benchmarks` are found there.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    runpy.run_module("benchmarks.gpu", run_name="__main__", alter_sys=True)
