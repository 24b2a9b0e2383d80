"""The quantised dtypes of a KV cache, and the bytes of a row of any: the key or the value of one token and head.

fp8 e4m3 and int8 are codes with one fp32 scale for each row (`triton/kv_cache.py`). Imports no Triton.
"""

from __future__ import annotations

import torch

LARGEST_CODE = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
"""The dtypes that are quantised."""

SCALE_BYTES = 4


def row_bytes(head_dim: int, dtype: torch.dtype) -> int:
    """Bytes of a row of `head_dim` elements, its scale included."""
    return head_dim * dtype.itemsize + (SCALE_BYTES if dtype in LARGEST_CODE else 0)
