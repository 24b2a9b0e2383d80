"""Parts 3 to 5: the speed of paged attention. Decodes against bandwidth, chunks of prompts against arithmetic, and
decodes behind a shared prefix against decodes that each read it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from ramet.kernels.triton.kernels import AttentionOptions, TritonKernels

from .baselines import flex_calls, kv_bytes, sdpa_calls
from .bench import Bench
from .break_even import SharingTrial, advice
from .paged import PagedStep, SequenceShape, make_step, new_caches
from .results import Record, Row
from .settings import BLOCK_SIZE, AttentionShape

DECODE_GOAL, EXTEND_GOAL, SHARED_GOAL = 0.75, 0.45, 8.0
FORCED = AttentionOptions(sharing_min_len=BLOCK_SIZE, sharing_break_even=0.0)
"""Share whatever can be shared, so that it is seen where it does not pay."""

Call = Callable[[], object]


def attention_calls(bench: Bench, kernels: TritonKernels, step: PagedStep, num_pools: int) -> list[Call]:
    """Attention of one step over `num_pools` pools that hold random keys and values."""
    heads = bench.settings.heads
    prepared = kernels.prepare_attention(step.metadata)
    calls = []
    for seed in range(num_pools):
        caches = new_caches(kernels, step, heads)
        for idx, cache in enumerate(caches):
            cache.normal_(generator=bench.generator(2 * seed + idx))
        query = bench.randn(step.num_rows, heads.num_heads, heads.head_dim, seed=seed)
        calls.append(partial(kernels.attention, query, *caches, prepared, heads.head_dim**-0.5))
    return calls


def attention_ms(bench: Bench, kernels: TritonKernels, step: PagedStep, num_bytes: int) -> float:
    """Median milliseconds, with as many pools as the cache demands for a step that reads so many bytes."""
    return bench.timer.median_ms(attention_calls(bench, kernels, step, bench.timer.num_rotated(num_bytes)))


def _step_of(shape: AttentionShape, device: torch.device) -> PagedStep:
    context_len = shape.prefix_len + shape.num_new_tokens
    return make_step([SequenceShape(context_len, shape.num_new_tokens)] * shape.num_seqs, device)


def _baseline_ms(record: Record, label: str, bench: Bench, make_calls: Callable[[], list[Call]]) -> float | None:
    """Milliseconds of something torch has; None if it cannot run here, with its reason noted."""
    try:
        return bench.timer.median_ms(make_calls())
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        record.note(f"{label} did not run: {type(error).__name__}: {reason}")
        return None
    finally:
        bench.free_memory()


def _sdpa(bench: Bench, record: Record, shape: AttentionShape, our_ms: float) -> Row:
    """Cells of a row."""
    milliseconds = _baseline_ms(record, f"SDPA at {shape}", bench, lambda: sdpa_calls(bench, shape))
    return {"sdpa_ms": milliseconds, "vs_sdpa": None if milliseconds is None else milliseconds / our_ms}


def _add_flex(bench: Bench, record: Record, rows: dict[AttentionShape, Row]) -> None:
    """Measure FlexAttention where it is wanted, when all else is done. Mutates the rows."""
    wanted = [shape for shape in bench.settings.flex if shape in rows]
    for shape in record.in_time(wanted, seconds_each=10.0 if bench.is_cuda else 0.0):
        calls = partial(flex_calls, bench, shape)
        milliseconds = _baseline_ms(record, f"FlexAttention at {shape}", bench, calls)
        if milliseconds is not None:
            rows[shape].update(flex_ms=milliseconds, vs_flex=milliseconds / rows[shape]["ms"])


@torch.inference_mode()
def measure_decode(bench: Bench, record: Record) -> None:
    """One row a sequence: every key and value is read once and used for a group of heads."""
    kernels = TritonKernels(bench.device, bench.dtype)
    rows: dict[AttentionShape, Row] = {}
    for shape in record.in_time(bench.settings.decode, seconds_each=2.0):
        with record.guard(str(shape)):
            num_bytes = kv_bytes(bench, shape)
            milliseconds = attention_ms(bench, kernels, _step_of(shape, bench.device), num_bytes)
            bench.free_memory()
            share = _share(num_bytes / milliseconds * 1e3, bench.ceilings.copy)
            rows[shape] = {
                **{"sequences": shape.num_seqs, "context": shape.prefix_len + 1, "ms": milliseconds},
                **{"tb_s": num_bytes / milliseconds / 1e9, "share": share},
                **_sdpa(bench, record, shape, milliseconds),
            }
            record.row(rows[shape])
            if (shape.num_seqs, shape.prefix_len) == (64, 4095) and share is not None:
                record.target("decode attention, 64 x 4k: share of the bandwidth of a copy", share, DECODE_GOAL)
    _add_flex(bench, record, rows)


@torch.inference_mode()
def measure_extend(bench: Bench, record: Record) -> None:
    """Chunks of prompts, with and without a cached prefix."""
    kernels, heads = TritonKernels(bench.device, bench.dtype), bench.settings.heads
    rows: dict[AttentionShape, Row] = {}
    for shape in record.in_time(bench.settings.extend, seconds_each=2.0):
        with record.guard(str(shape)):
            step = _step_of(shape, bench.device)
            num_operations = 4 * step.num_pairs * heads.num_heads * heads.head_dim
            milliseconds = attention_ms(bench, kernels, step, kv_bytes(bench, shape))
            bench.free_memory()
            share = _share(num_operations / milliseconds * 1e3, bench.ceilings.matmul)
            rows[shape] = {
                **{"sequences": shape.num_seqs, "new": shape.num_new_tokens, "cached": shape.prefix_len},
                **{"ms": milliseconds, "tflop_s": num_operations / milliseconds / 1e9, "share": share},
                **_sdpa(bench, record, shape, milliseconds),
            }
            record.row(rows[shape])
            if share is not None:
                record.target(f"extend attention, {shape}: share of the rate of a matmul", share, EXTEND_GOAL)
    _add_flex(bench, record, rows)


@torch.inference_mode()
def measure_shared_prefix(bench: Bench, record: Record) -> None:
    """Decodes behind one prefix: read once for all, against each reading it, from the same blocks and from copies.

    Blocks that all read lie in the cache of the device, so what sharing saves over them is less than over copies."""
    settings = bench.settings
    cases = [(num, length) for length in settings.shared_lens for num in settings.num_sharers]
    trials = []
    for num_sharers, shared_len in record.in_time(cases, seconds_each=1.0):
        label = f"{num_sharers} sharers of {shared_len:,}"
        with record.guard(label):
            trial, row = _shared_case(bench, num_sharers, shared_len)
            trials.append(trial)
            record.row(row)
            if (num_sharers, shared_len) == (32, 4096):
                name = "shared-prefix decode, 32 sharers over 4k: times faster than"
                record.target(f"{name} copies of the prefix", row["vs_copies"], SHARED_GOAL)
                record.target(f"{name} private reads of the same blocks", row["vs_private"], SHARED_GOAL)
        bench.free_memory()
    for sentence in advice(trials):
        record.note(sentence)


def _shared_case(bench: Bench, num_sharers: int, shared_len: int) -> tuple[SharingTrial, Row]:
    heads, own_len = bench.settings.heads, bench.settings.own_len
    context_len = shared_len + own_len
    behind_one = [SequenceShape(context_len, 1, (("prefix", shared_len // BLOCK_SIZE),))] * num_sharers
    token_bytes = heads.num_kv_heads * heads.head_dim * 2 * bench.dtype.itemsize
    num_bytes = (shared_len + num_sharers * own_len) * token_bytes
    forced = TritonKernels(bench.device, bench.dtype, FORCED)
    planned = TritonKernels(bench.device, bench.dtype)
    together, apart = make_step(behind_one, bench.device), make_step(behind_one, bench.device, is_sharing=False)
    copies = make_step([SequenceShape(context_len)] * num_sharers, bench.device)
    shared_ms = attention_ms(bench, forced, together, num_bytes)
    planned_ms = attention_ms(bench, planned, together, num_bytes)
    private_ms = attention_ms(bench, planned, apart, num_bytes)
    bench.free_memory()
    copies_ms = attention_ms(bench, planned, copies, num_sharers * context_len * token_bytes)
    tile = planned.plan_rules(heads).tiles[-1]
    trial = SharingTrial.of(heads, bench.dtype.itemsize, tile, num_sharers, shared_len, private_ms / shared_ms)
    row = {
        **{"sharers": num_sharers, "shared": shared_len, "own": own_len},
        **{"shared_ms": shared_ms, "planned_ms": planned_ms, "private_ms": private_ms, "copies_ms": copies_ms},
        **{"vs_private": private_ms / shared_ms, "vs_copies": copies_ms / shared_ms, "saved": trial.saved_over_cost},
    }
    return trial, row


def _share(rate: float, ceiling: float | None) -> float | None:
    return rate / ceiling if ceiling else None
