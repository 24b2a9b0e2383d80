"""KernelCall: one launch as data, which can be run here or compiled ahead for a GPU that is not here.

Every op of this folder is two functions: `<op>_call` makes a KernelCall from its tensors, and `<op>` runs it. So what
`kernels/aot.py` compiles and measures is what runs: the same arguments, constants and number of warps.

Rules that all kernels keep, because Triton's interpreter holds bf16 as bit patterns and does not say so:

    tl.load(...).to(tl.float32)     every load is cast at once: arithmetic on bf16 would be silently wrong there
    tl.load(...).to(DOT)            operands of tl.dot; DOT is fp32 where a bf16 product would be interpreted
    row.to(tl.int64) * stride       indices are widened before they are multiplied: a pool may pass 2^31 elements
    do_not_specialize               of numbers that change from step to step: else each kernel is compiled anew, while
                                    requests wait, for numbers divisible by 16 and for 1

A launch goes to the current CUDA device; who has several sets it (torch.cuda.device) first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

IS_INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether kernels decorated now are interpreted on a CPU (TRITON_INTERPRET=1). Triton reads it when it decorates, so
it is one choice for the life of a process."""

_TILE = 1 << 18 if IS_INTERPRETED else 1024
"""Elements of an elementwise program. Interpreted, a program costs its number of operations, not of elements."""

MAX_GRID_Y = 65_535
"""Programs along the second and third axis of a CUDA grid; the first takes 2^31."""

_TL_DTYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


Argument = Tensor | int | float | tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A kernel with all that it is launched with.

    Attributes:
        kernel: a `triton.jit` function.
        grid: programs along each axis; nothing is launched where one is 0.
        args: what stands before the constants, in order; None is a pointer that the constants say is not used.
        constants: `tl.constexpr` parameters by name.
    """

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Argument, ...]
    constants: Mapping[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 2

    @property
    def options(self) -> dict[str, int | bool]:
        """What the compiler is told besides. Fused multiply-adds are Triton's default, which is about to change."""
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, "enable_fp_fusion": True}

    def run(self) -> None:
        """Launch. Mutates what the kernel writes; returns before a GPU has done it."""
        if math.prod(self.grid) == 0:
            return
        assert all(count <= MAX_GRID_Y for count in self.grid[1:]), self.grid
        self.kernel[self.grid](*self.args, **self.constants, **self.options)


def next_power_of_2(value: int) -> int:
    """The smallest power of 2 that is at least `value`; 1 for 0."""
    return 1 << max(value - 1, 0).bit_length()


def rows_in_tile(count: int, padded_width: int) -> int:
    """How many of `count` rows of so many elements an elementwise program takes: a power of 2.

    On a GPU it does not depend on the count, so that no step compiles a kernel of its own."""
    num_rows = max(1, _TILE // padded_width)
    return min(num_rows, next_power_of_2(count)) if IS_INTERPRETED else num_rows


def block_of(most: int, width: int) -> int:
    """Elements of a row that a program takes at a time: `most`, or fewer where a short row is interpreted."""
    return min(most, next_power_of_2(width)) if IS_INTERPRETED else most


def dot_dtype(dtype: torch.dtype) -> Any:
    """The Triton dtype in which matrices of `dtype` are multiplied: their own, but fp32 where bf16 is interpreted."""
    return tl.float32 if IS_INTERPRETED and dtype == torch.bfloat16 else _TL_DTYPES[dtype]


def with_packed_rows(x: Tensor) -> Tensor:
    """The same values with the last dimension contiguous; the same memory if it is so already."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def row_strides(x: Tensor) -> tuple[int, int, int]:
    """(rows in a group, stride between groups, stride between rows) of x [..., W] with at most two leading dimensions.

    Heads of a larger tensor, [T, H, W], are so read where they lie."""
    assert x.ndim in (2, 3)
    if x.ndim == 2:
        return 1, x.stride(0), 0
    return x.shape[1], x.stride(0), x.stride(1)


@triton.jit
def tile_rows(num_rows, rows_in_group, group_stride, row_stride, ROWS: tl.constexpr):
    """A program's rows of x: their numbers int64 [ROWS], their offsets in x, and which of them exist."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    return row, (row // rows_in_group) * group_stride + (row % rows_in_group) * row_stride, row < num_rows
