"""The random numbers of a draw, a function of (seed, sample index, position, token id) and of nothing else.

    state = mix(mix(mix(seed + g) ^ sample ...) ...)          hash of a token = mix(mix((token ^ state) + g) + g)
    uniform = top 53 bits of the hash * 2^-53                 waiting time = -log(1 - uniform)

mix and g are SplitMix64's (Steele, Lea and Flood, OOPSLA 2014). The numbers are those of `runtime/random_stream.py`,
bit for bit, so a seed means the same tokens on a CPU and on a GPU. Arithmetic is modulo 2^64.
"""

from __future__ import annotations

import triton
import triton.language as tl

_GAMMA = tl.constexpr(0x9E3779B97F4A7C15)


@triton.jit
def _mix(value):
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB
    return value ^ (value >> 31)


@triton.jit
def stream_state(seed, sample_idx, position):
    """The uint64 that a row's tokens are hashed with; the seed's bits and the indices are uint64 too."""
    state = _mix(seed + _GAMMA)
    state = _mix((state ^ sample_idx) + _GAMMA)
    return _mix((state ^ position) + _GAMMA)


@triton.jit
def uniform_bits(state, token_id):
    """53 random bits per token, uint64; token_id is uint64."""
    return _mix(_mix((token_id ^ state) + _GAMMA) + _GAMMA) >> 11
