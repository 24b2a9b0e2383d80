"""Checks of paged attention: against fp64 over what the cache holds, twice with the same bits, and in any batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ramet.kernels.triton.kernels import AttentionOptions, TritonKernels
from ramet.kernels.triton.kv_cache import LARGEST_CODE
from ramet.kernels.triton.shared_runs import HeadShape

from .bench import Bench
from .checks import LIMITS, Check, Finding, close_to, same_bits
from .paged import PagedStep, SequenceShape, exact_attention, make_step, new_caches, stored_rows
from .settings import BLOCK_SIZE

NUM_KV_HEADS = 2
WINDOW = 100
FIXED_CHUNK_LEN = 1024
SHARED = {"sharing_min_len": BLOCK_SIZE, "sharing_break_even": 0.0}
"""So that shared runs are read once, however short."""

CODE_LIMITS = {torch.float8_e4m3fn: 0.04, torch.int8: 0.01}
"""Of what is read back from a quantised cache, against what was stored."""


@dataclass(frozen=True, slots=True)
class AttentionCheck:
    """Attributes:
    kv_dtype: of the cache.
    """

    heads: HeadShape
    dtype: torch.dtype
    kv_dtype: torch.dtype
    window: int | None = None
    fixed_chunk_len: int | None = None

    @property
    def name(self) -> str:
        dtypes = str(self.dtype).removeprefix("torch.")
        if self.kv_dtype != self.dtype:
            dtypes += f" over {str(self.kv_dtype).removeprefix('torch.')}"
        name = f"attention D {self.heads.head_dim}, {self.heads.group_size} heads a key, {dtypes}"
        name += "" if self.window is None else f", window {self.window}"
        return name + ("" if self.fixed_chunk_len is None else ", fixed chunks")


def attention_checks(bench: Bench) -> list[Check]:
    """Every shape of heads in bf16, the last of them in all other ways too."""
    cases = []
    for head_dim, group_size in bench.settings.checked_heads:
        heads = HeadShape(NUM_KV_HEADS * group_size, NUM_KV_HEADS, head_dim)
        cases.append(AttentionCheck(heads, torch.bfloat16, torch.bfloat16))
    cases += [
        AttentionCheck(heads, torch.float16, torch.float16),
        AttentionCheck(heads, torch.bfloat16, torch.float8_e4m3fn),
        AttentionCheck(heads, torch.bfloat16, torch.int8),
        AttentionCheck(heads, torch.bfloat16, torch.bfloat16, window=WINDOW),
        AttentionCheck(heads, torch.bfloat16, torch.bfloat16, fixed_chunk_len=FIXED_CHUNK_LEN),
    ]
    return [Check(case.name, partial(_run, bench, case)) for case in cases]


def checked_step(bench: Bench) -> PagedStep:
    """Decodes and chunks of ragged lengths, and decodes behind two levels of shared prefix, one with a chunk."""
    settings = bench.settings
    num_blocks = settings.checked_prefix_len // BLOCK_SIZE
    stem, twig = ("stem", num_blocks), ("twig", num_blocks)
    behind_stem, behind_twig = settings.checked_prefix_len + 7, 2 * settings.checked_prefix_len + 21
    shapes = [SequenceShape(context_len, num_rows) for context_len, num_rows in settings.checked_lens]
    shapes += [
        SequenceShape(behind_stem, 1, (stem,)),
        SequenceShape(behind_stem + 30, 5, (stem,)),
        SequenceShape(behind_twig, 1, (stem, twig)),
        SequenceShape(behind_twig + 1, 1, (stem, twig)),
    ]
    return make_step(shapes, bench.device)


def _run(bench: Bench, case: AttentionCheck) -> list[Finding]:
    kernels = TritonKernels(
        bench.device, case.kv_dtype, AttentionOptions(**SHARED, fixed_chunk_len=case.fixed_chunk_len)
    )
    step = checked_step(bench)
    caches = new_caches(kernels, step, case.heads)
    for cache in caches:
        cache.fill_(255 if cache.dtype == torch.uint8 else torch.nan)
    views = kernels.views(*caches, NUM_KV_HEADS, case.heads.head_dim)
    findings = _store(bench, case, kernels, step, caches)
    query = bench.randn(step.num_rows, case.heads.num_heads, case.heads.head_dim, seed=9, dtype=case.dtype)
    scale = case.heads.head_dim**-0.5

    def attend(wanted: PagedStep, rows: Tensor) -> Tensor:
        return kernels.attention(rows, *caches, kernels.prepare_attention(wanted.metadata), scale, case.window)

    output = attend(step, query)
    exact = exact_attention(query, views, step, scale, case.window)
    findings.append(close_to("against fp64", output, exact, LIMITS[case.dtype]))
    findings.append(same_bits("a second time", attend(step, query), output))
    if case.fixed_chunk_len is not None:
        for seq_idx in range(0, len(step.context_lens), 3 if bench.settings.is_tiny else 1):
            last = step.query_starts[seq_idx + 1] - 1
            alone = attend(step.alone(seq_idx, bench.device), query[last : last + 1])
            context_len = step.context_lens[seq_idx]
            findings.append(same_bits(f"the last row of {context_len} alone", alone[0], output[last]))
    return findings


def _store(
    bench: Bench, case: AttentionCheck, kernels: TritonKernels, step: PagedStep, caches: tuple[Tensor, Tensor]
) -> list[Finding]:
    """Store random keys and values for every slot that a sequence has, and compare what is read back."""
    num_slots = step.num_blocks * BLOCK_SIZE
    shape = (num_slots, NUM_KV_HEADS, case.heads.head_dim)
    key, value = (bench.randn(*shape, seed=seed, dtype=case.dtype) for seed in (3, 4))
    used = sorted(
        {block * BLOCK_SIZE + offset for idx in range(len(step.tables)) for block, offset in _slots(step, idx)}
    )
    slots = torch.tensor(used, device=bench.device)
    kernels.store_kv(key[slots], value[slots], *caches, slots)
    views = kernels.views(*caches, NUM_KV_HEADS, case.heads.head_dim)
    longest = max(range(len(step.tables)), key=lambda idx: step.context_lens[idx])
    wanted = torch.tensor([block * BLOCK_SIZE + offset for block, offset in _slots(step, longest)], device=bench.device)
    findings = []
    for name, view, rows in (("keys", views[0], key), ("values", views[1], value)):
        read, stored = stored_rows(view, step, longest), rows[wanted].double()
        if case.kv_dtype in LARGEST_CODE:
            findings.append(close_to(f"stored {name}", read, stored, CODE_LIMITS[case.kv_dtype]))
        else:
            findings.append(same_bits(f"stored {name}", read, stored))
    return findings


def _slots(step: PagedStep, seq_idx: int) -> list[tuple[int, int]]:
    return list(zip(*step.kv_slots(seq_idx), strict=True))
