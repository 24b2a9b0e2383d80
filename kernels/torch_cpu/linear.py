"""Matrix product with a weight, by the form that is fast for the number of rows."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

TRANSPOSED_ROWS = range(8, 96)
"""Numbers of rows at which x W^T is computed as (W x^T)^T.

MKL's fp32 product is slow for a short and wide left side: on two 2-core x86 servers F.linear took 1.3 to 2.4 times as
long as the transposed form at 16 and 32 rows; below 8 and above about 96 rows there is no gain or a loss. The result
is a transposed view, which the ops that follow read without a copy."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See `interface.Kernels.linear`."""
    if x.shape[0] in TRANSPOSED_ROWS and x.device.type == "cpu":
        product = weight.mm(x.t()).t()
        return product if bias is None else product.add_(bias)
    return F.linear(x, weight, bias)
