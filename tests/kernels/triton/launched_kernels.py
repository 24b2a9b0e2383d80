"""Compile variants as a launch on an H200 would, without one, and print whether AOT made the same code.

A program of its own: `test_triton_aot.py` runs it where kernels are not interpreted."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from ramet.kernels.aot import TARGETS, compile_call
from ramet.kernels.aot_variants import VARIANTS

H200 = TARGETS["sm_90"]


class Driver:
    """All that a launch asks of a driver before it compiles."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget(H200.backend, H200.arch, H200.warp_size)


@dataclass
class Memory:
    """A tensor at an address divisible by 16, as PyTorch allocates them."""

    dtype: torch.dtype

    def data_ptr(self) -> int:
        return 1 << 20

    def ptr_range(self) -> int:
        return 0


def is_same(name: str) -> bool:
    """Whether a launch compiles what AOT compiles: constants, divisibility and options."""
    call = VARIANTS[name].make(False)
    args = [Memory(value.dtype) if isinstance(value, torch.Tensor) else value for value in call.args]
    launched = call.kernel.warmup(*args, **call.constants, **call.options, grid=call.grid)
    return instructions(launched.asm["ptx"]) == instructions(compile_call(call, H200).asm["ptx"])


def instructions(ptx: str) -> str:
    """Without the paths behind, which are those of the checkout that filled Triton's cache."""
    return ptx.partition("\t.file\t")[0]


if __name__ == "__main__":
    driver.set_active(Driver())
    print(json.dumps({name: is_same(name) for name in sys.argv[1:]}))
