"""What this processor's int8 product is worth: over which range it is exact, and whether it is fast.

Processors with VNNI (or AMX) add products of bytes in 32 bits. Older x86 ones first add pairs of them in 16 bits, which
saturate: oneDNN then returns wrong sums without a word, unless one of the two factors keeps to half the range.
"""

from __future__ import annotations

import functools
import platform

import torch

from .int_mm import int_mm
from .quantize import MAX_LEVELS

HALF_LEVELS = 63
"""2 * 255 * 63 fits in 16 signed bits; oneDNN shifts the other factor to 0 .. 255."""

_X86 = ("x86_64", "AMD64", "amd64", "i686")
_PROBED_ROWS = (1, 4, 40)
"""oneDNN has different code for one row, few and many."""


@functools.cache
def exact_weight_levels() -> int:
    """Largest absolute value of a weight with which `int_mm` is exact here: MAX_LEVELS or HALF_LEVELS."""
    return MAX_LEVELS if all(_is_exact(num_rows) for num_rows in _PROBED_ROWS) else HALF_LEVELS


def is_fast() -> bool:
    """Whether int8 is faster than fp32 here: only where oneDNN has instructions for it.

    Elsewhere torch multiplies int8 matrices in plain loops."""
    return platform.machine() in _X86 and _has_onednn() and exact_weight_levels() == MAX_LEVELS


@functools.cache
def has_amx() -> bool:
    """Whether there are matrix instructions."""
    return torch.cpu._is_amx_tile_supported()


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def _is_exact(num_rows: int) -> bool:
    """The largest sums there are, of either sign."""
    rows = torch.full((num_rows, 128), MAX_LEVELS, dtype=torch.int8)
    weight = torch.full((64, 128), MAX_LEVELS, dtype=torch.int8)
    weight[1::2] = -MAX_LEVELS
    expected = (128 * MAX_LEVELS * weight[:, 0].int()).expand(num_rows, -1)
    products = int_mm(rows, weight.t()), int_mm(weight, rows.t()).t()
    return all(torch.equal(product, expected) for product in products)
