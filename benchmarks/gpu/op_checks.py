"""Checks of the other ops against fp64, and of the sampler against the distribution it is to draw from."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ramet.kernels.triton import argmax as argmax_op
from ramet.kernels.triton import sampling
from ramet.kernels.triton.kernels import TritonKernels

from .bench import Bench
from .checks import LIMITS, Check, Finding, close_to, same_bits
from .settings import BLOCK_SIZE

DTYPES = (torch.bfloat16, torch.float16)
EPS = 1e-5
MIN_P_VALUE = 1e-4
"""Of the chi-square test; seeds are fixed, so the test passes always or never."""


def op_checks(bench: Bench) -> list[Check]:
    checks = []
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        checks.append(Check(f"norms, {name}", partial(_norms, bench, dtype)))
        checks.append(Check(f"silu_mul, {name}", partial(_silu_mul, bench, dtype)))
        checks.append(Check(f"rotary, {name}", partial(_rotary, bench, dtype)))
    checks.append(Check("argmax", partial(_argmax, bench)))
    checks += [Check(f"draws, {name}", partial(_draws, bench, *cuts)) for name, cuts in CUTS.items()]
    return checks


def _norms(bench: Bench, dtype: torch.dtype) -> list[Finding]:
    kernels, limit = TritonKernels(bench.device, dtype), LIMITS[dtype]
    rows, width = bench.settings.num_rows + 1, bench.settings.hidden_size
    x, residual = (bench.randn(rows, width, seed=seed, dtype=dtype) for seed in (0, 1))
    weight, bias = (bench.randn(width, seed=seed, dtype=dtype) for seed in (2, 3))
    summed = x.double() + residual.double()
    normed, total = kernels.add_rms_norm(x, residual, weight, EPS)
    centred = x.double() - x.double().mean(-1, keepdim=True)
    exact_layer = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + EPS) * weight.double() + bias.double()
    return [
        close_to("rms_norm", kernels.rms_norm(x, weight, EPS), _exact_rms(x.double(), weight), limit),
        close_to("add_rms_norm", normed, _exact_rms(summed, weight), limit),
        close_to("its sum", total, summed, limit),
        close_to("layer_norm", kernels.layer_norm(x, weight, bias, EPS), exact_layer, limit),
        same_bits("rms_norm a second time", kernels.rms_norm(x, weight, EPS), kernels.rms_norm(x, weight, EPS)),
    ]


def _exact_rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight.double()


def _silu_mul(bench: Bench, dtype: torch.dtype) -> list[Finding]:
    kernels = TritonKernels(bench.device, dtype)
    gate_up = bench.randn(bench.settings.num_rows + 1, 2 * bench.settings.intermediate_size, seed=4, dtype=dtype) * 4
    gate, up = gate_up.double().chunk(2, dim=-1)
    exact = gate * torch.sigmoid(gate) * up
    return [close_to("against fp64", kernels.silu_mul(gate_up), exact, LIMITS[dtype])]


def _rotary(bench: Bench, dtype: torch.dtype) -> list[Finding]:
    kernels, heads, limit = TritonKernels(bench.device, dtype), bench.settings.heads, LIMITS[dtype]
    rows = bench.settings.num_rows
    qkv = bench.randn(rows, heads.num_heads + 2 * heads.num_kv_heads, heads.head_dim, seed=5, dtype=dtype)
    angle = bench.randn(rows, heads.head_dim // 2, seed=6, dtype=torch.float32)
    cos, sin = angle.cos(), angle.sin()
    num_blocks = -(-rows // BLOCK_SIZE)
    caches = kernels.new_kv_cache(num_blocks, BLOCK_SIZE, heads.num_kv_heads, heads.head_dim)
    order = torch.randperm(num_blocks * BLOCK_SIZE, generator=bench.generator(7), device=bench.device)
    slots = order[:rows]
    query = kernels.rotary_store(qkv, heads.num_kv_heads, cos, sin, *caches, slots)
    exact = _exact_rotary(qkv, cos, sin)
    views = kernels.views(*caches, heads.num_kv_heads, heads.head_dim)
    key, value = (view.rows[slots // BLOCK_SIZE, :, slots % BLOCK_SIZE] for view in views)
    return [
        close_to("rotary", kernels.rotary(qkv, cos, sin), exact, limit),
        close_to("queries of rotary_store", query, exact[:, : heads.num_heads], limit),
        close_to("keys of rotary_store", key, exact[:, heads.num_heads : -heads.num_kv_heads], limit),
        same_bits("values of rotary_store", value, qkv[:, -heads.num_kv_heads :]),
    ]


def _exact_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.double().chunk(2, dim=-1)
    cosine, sine = cos.double()[:, None], sin.double()[:, None]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


def _argmax(bench: Bench) -> list[Finding]:
    """With ties: of equal logits the lowest id is taken, as by the CPU's samplers."""
    settings = bench.settings
    logits = bench.randn(settings.num_logit_rows, settings.vocab_size, seed=8, dtype=torch.float32).mul_(4).round_()
    token_ids, peaks = argmax_op.argmax(logits)
    is_peak = logits == logits.amax(-1, keepdim=True)
    return [
        same_bits("token ids", token_ids, is_peak.int().argmax(-1)),
        same_bits("peaks", peaks, logits.amax(-1)),
    ]


CUTS = {
    "temperature 0.8": (0.8, 0, 1.0, 0.0),
    "top-k 5": (1.0, 5, 1.0, 0.0),
    "top-p 0.8": (1.0, 0, 0.8, 0.0),
    "min-p 0.2": (1.0, 0, 1.0, 0.2),
}
"""Temperature, top-k, top-p, min-p."""


def _draws(bench: Bench, temperature: float, top_k: int, top_p: float, min_p: float) -> list[Finding]:
    """Many rows of the same logits, a seed each, by a chi-square test."""
    num_rows, num_choices = bench.settings.num_draws, bench.settings.num_choices
    row = bench.randn(num_choices, seed=10, dtype=torch.float32)
    logits = row.expand(num_rows, -1).contiguous()
    token_ids, peaks = argmax_op.argmax(logits)

    def column(value: float, dtype: torch.dtype) -> Tensor:
        return torch.full((num_rows,), value, dtype=dtype, device=bench.device)

    wanted = sampling.SamplingTensors(
        temperatures=column(temperature, torch.float32),
        top_ks=column(top_k, torch.int32),
        top_ps=column(top_p, torch.float64),
        min_ps=column(min_p, torch.float32),
        seeds=torch.arange(num_rows, device=bench.device) * 7919 + 1,
        sample_indices=column(0, torch.int64),
        positions=column(5, torch.int64),
    )
    sampling.sample(logits, token_ids, peaks, wanted)
    counts = torch.bincount(token_ids.cpu(), minlength=num_choices).double()
    shares = kept_shares(row.double().cpu() / temperature, top_k, top_p, min_p)
    return [
        Finding("tokens that were cut off", float(counts[shares == 0].sum()), 0.0),
        Finding("1 - p of chi-square", 1.0 - chi_square_p_value(counts, shares), 1.0 - MIN_P_VALUE),
    ]


def kept_shares(logits: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Of each token in the distribution after the cuts; fp64 [vocab]."""
    shares = logits.softmax(-1)
    ordered, token_ids = shares.sort(descending=True)
    is_kept = torch.ones_like(ordered, dtype=torch.bool)
    if top_k:
        is_kept[top_k:] = False
    inside = ordered.masked_fill(~is_kept, 0.0)
    if top_p < 1.0:
        is_kept &= inside.cumsum(0) - inside < top_p * inside.sum()
    is_kept &= ordered >= min_p * ordered[0]
    kept = torch.zeros_like(shares)
    kept[token_ids] = ordered.masked_fill(~is_kept, 0.0)
    return kept / kept.sum()


def chi_square_p_value(counts: Tensor, shares: Tensor) -> float:
    """How likely counts at least so far from the shares are; tokens that are expected less than five times are one."""
    expected = shares * counts.sum()
    is_rare = expected < 5
    observed = torch.cat([counts[~is_rare], counts[is_rare].sum()[None]])
    wanted = torch.cat([expected[~is_rare], expected[is_rare].sum()[None]])
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    if len(wanted) < 2:
        return 1.0
    statistic = ((observed - wanted).square() / wanted).sum()
    degrees = torch.tensor((len(wanted) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, statistic / 2))
