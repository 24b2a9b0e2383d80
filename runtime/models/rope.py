"""Rotary position embedding (Su et al. 2021) and its scalings, with the values transformers computes.

In transformers two scalings depend on the length of the text at hand: `dynamic` recomputes its base as the text
grows, `longrope` switches from short to long factors. A cached key, though, must mean the same whoever reads it
later, so here the frequencies are fixed by `max_model_len` once, when the model is built:

    dynamic   max_model_len may not exceed max_position_embeddings. Up to there transformers scales nothing, so the
              two are equal; beyond it the rotation of a cached key would depend on what follows: refused.
    longrope  max_model_len <= original length: short factors, equal to transformers.
              max_model_len >  original length: long factors for every text, equal to transformers on texts longer
              than the original length. The default max_model_len is the original length.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .base import RopeConfig, RopeType
from .errors import ModelLoadError

CHUNK_LEN = 2048


class RotaryTable:
    """cos and sin by position, extended as contexts grow and never recomputed.

    Values come in chunks of positions of one fixed size, so each is the same whatever the batch and the history.
    Memory: (longest context so far, rounded up) * (rotated dimensions) fp32 values.
    """

    def __init__(self, inv_freq: Tensor, attention_factor: float, device: torch.device) -> None:
        self._inv_freq = inv_freq
        self._attention_factor = attention_factor
        self._device = device
        self._num_chunks = 1
        self._cos, self._sin = self._chunk(0)

    def at(self, positions: Tensor, context_len: int) -> tuple[Tensor, Tensor]:
        """cos, sin fp32 [T, R/2] of positions int64 [T], all below `context_len`. May extend the table."""
        cos, sin = self.table(context_len)
        return cos.index_select(0, positions), sin.index_select(0, positions)

    def table(self, context_len: int) -> tuple[Tensor, Tensor]:
        """cos, sin fp32 [P, R/2], contiguous, of positions 0 .. P - 1; P is at least `context_len`. May extend them."""
        if context_len > self._num_chunks * CHUNK_LEN:
            self._extend(max(-(-context_len // CHUNK_LEN), 2 * self._num_chunks))
        return self._cos, self._sin

    def _extend(self, num_chunks: int) -> None:
        chunks = [self._chunk(chunk_idx) for chunk_idx in range(self._num_chunks, num_chunks)]
        self._cos = torch.cat([self._cos, *(cos for cos, _ in chunks)])
        self._sin = torch.cat([self._sin, *(sin for _, sin in chunks)])
        self._num_chunks = num_chunks

    def _chunk(self, chunk_idx: int) -> tuple[Tensor, Tensor]:
        positions = torch.arange(chunk_idx * CHUNK_LEN, (chunk_idx + 1) * CHUNK_LEN, dtype=torch.float32)
        angles = positions[:, None] * self._inv_freq[None, :]
        cos, sin = angles.cos() * self._attention_factor, angles.sin() * self._attention_factor
        return cos.to(self._device), sin.to(self._device)


def inverse_frequencies(
    rope: RopeConfig, head_dim: int, max_position_embeddings: int, max_model_len: int
) -> tuple[Tensor, float]:
    """fp32 inverse frequencies [R/2] and the factor for cos and sin.

    Raises:
        ModelLoadError: the rotated dimension is odd, or the number of longrope factors is not R/2.
    """
    rotary_dim = int(head_dim * rope.partial_rotary_factor)
    if rotary_dim < 2 or rotary_dim % 2:
        raise ModelLoadError(
            f"rotary dimension {rotary_dim} (head_dim {head_dim} x partial_rotary_factor "
            f"{rope.partial_rotary_factor:g}) must be even and at least 2"
        )
    base = _default_frequencies(rope.theta, rotary_dim)
    original_len = rope.original_max_position_embeddings or max_position_embeddings
    if rope.type == "longrope":
        return _longrope(rope, base, original_len, is_long=max_model_len > original_len)
    return _SCALINGS[rope.type](rope, base, original_len)


def _default_frequencies(theta: float, rotary_dim: int) -> Tensor:
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    return 1.0 / (theta**exponents)


def _unscaled(rope: RopeConfig, base: Tensor, original_len: int) -> tuple[Tensor, float]:
    return base, 1.0


def _linear(rope: RopeConfig, base: Tensor, original_len: int) -> tuple[Tensor, float]:
    return base / rope.factor, 1.0


def _factors(rope: RopeConfig, base: Tensor, original_len: int) -> tuple[Tensor, float]:
    return base / _factor_tensor(rope.short_factors, base, "frequency factors"), 1.0


def _llama3(rope: RopeConfig, base: Tensor, original_len: int) -> tuple[Tensor, float]:
    """Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, a linear blend between."""
    wavelength = 2 * math.pi / base
    longest_kept = original_len / rope.high_freq_factor
    shortest_stretched = original_len / rope.low_freq_factor
    blend = (original_len / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - blend) * base / rope.factor + blend * base
    scaled = torch.where(wavelength > shortest_stretched, base / rope.factor, base)
    is_between = (wavelength >= longest_kept) & (wavelength <= shortest_stretched)
    return torch.where(is_between, blended, scaled), 1.0


def _yarn(rope: RopeConfig, base: Tensor, original_len: int) -> tuple[Tensor, float]:
    """YaRN (Peng et al. 2023, section 3.2 and 3.3): interpolate slow dimensions, keep fast ones, ramp between."""
    num_freqs = base.shape[0]
    rotary_dim = 2 * num_freqs

    def dimension_of(num_rotations: float) -> float:
        ratio = math.log(original_len / (num_rotations * 2 * math.pi))
        return rotary_dim * ratio / (2 * math.log(rope.theta))

    low, high = dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)
    if rope.is_truncated:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    span = (high - low) or 0.001
    ramp = ((torch.arange(num_freqs, dtype=torch.float32) - low) / span).clamp(0, 1)
    inv_freq = base / rope.factor * ramp + base * (1 - ramp)
    if rope.attention_factor is not None:
        return inv_freq, rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return inv_freq, _yarn_mscale(rope.factor, rope.mscale) / _yarn_mscale(rope.factor, rope.mscale_all_dim)
    return inv_freq, _yarn_mscale(rope.factor, 1.0)


def _yarn_mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _longrope(rope: RopeConfig, base: Tensor, original_len: int, *, is_long: bool) -> tuple[Tensor, float]:
    """LongRoPE (Ding et al. 2024): one divisor per frequency, another set for contexts beyond the original length."""
    divisors = rope.long_factors if is_long else rope.short_factors
    inv_freq = base / _factor_tensor(divisors, base, "long_factor" if is_long else "short_factor")
    if rope.attention_factor is not None:
        return inv_freq, rope.attention_factor
    return inv_freq, 1.0 if rope.factor <= 1 else math.sqrt(1 + math.log(rope.factor) / math.log(original_len))


def _factor_tensor(factors: tuple[float, ...], base: Tensor, name: str) -> Tensor:
    if len(factors) != base.shape[0]:
        raise ModelLoadError(f"rope {name} has {len(factors)} entries, the rotary dimension needs {base.shape[0]}")
    return torch.tensor(factors, dtype=torch.float32)


_SCALINGS: dict[RopeType, Callable[[RopeConfig, Tensor, int], tuple[Tensor, float]]] = {
    "default": _unscaled,
    "dynamic": _unscaled,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "factors": _factors,
}
