"""How much does it save to read a shared prefix once? Run: python benchmarks/attention.py

One layer of decode attention for 32 sequences behind one prefix of 1,024 tokens with 16 tokens of their own, shapes of
SmolLM2-135M. Three ways, timed in turn in one run, the best of several rounds:

    gather    each sequence's blocks are gathered and attended over, one request at a time
    unshared  the torch kernels, told nothing of the sharing (every block a private one)
    cascade   the torch kernels with the plan of shared runs
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from ramet.kernels.attention_plan import build_attention_metadata
from ramet.kernels.dispatch import select_kernels
from ramet.kernels.interface import AttentionMetadata

BLOCK_SIZE = 16
NUM_KV_HEADS, GROUP_SIZE, HEAD_DIM = 3, 3, 64
SCALE = HEAD_DIM**-0.5


def gather_attention(query: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata) -> Tensor:
    """Decode attention with one gather per request; caches [num_blocks, block_size, Hk, D]."""
    outputs = []
    for row, (table, context_len) in enumerate(zip(metadata.block_tables, metadata.context_lens, strict=True)):
        block_ids = torch.tensor(table)
        key = key_cache.index_select(0, block_ids).flatten(0, 1)[:context_len]
        value = value_cache.index_select(0, block_ids).flatten(0, 1)[:context_len]
        grouped = query[row].view(1, NUM_KV_HEADS, GROUP_SIZE, HEAD_DIM)
        output = F.scaled_dot_product_attention(
            grouped, key.transpose(0, 1)[None], value.transpose(0, 1)[None], scale=SCALE
        )
        outputs.append(output.view(NUM_KV_HEADS * GROUP_SIZE, HEAD_DIM))
    return torch.stack(outputs)


def block_tables(num_sequences: int, num_prefix_blocks: int, num_own_blocks: int, is_shuffled: bool) -> list[list[int]]:
    num_blocks = num_prefix_blocks + num_sequences * num_own_blocks
    ids = torch.randperm(num_blocks).tolist() if is_shuffled else list(range(num_blocks))
    prefix, own = ids[:num_prefix_blocks], ids[num_prefix_blocks:]
    return [prefix + own[idx * num_own_blocks : (idx + 1) * num_own_blocks] for idx in range(num_sequences)]


def best_of(functions: dict[str, Callable[[], Tensor]], rounds: int) -> dict[str, float]:
    """Best milliseconds of each; the functions take turns, so that noise hits all alike."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            best[name] = min(best[name], (time.perf_counter() - start) * 1e3)
    return best


def measure(num_sequences: int, prefix_len: int, own_len: int, is_shuffled: bool, rounds: int) -> None:
    kernels = select_kernels("cpu", "torch")
    tables = block_tables(num_sequences, prefix_len // BLOCK_SIZE, -(-own_len // BLOCK_SIZE), is_shuffled)
    num_blocks = max(max(table) for table in tables) + 1
    key_cache, value_cache = kernels.new_kv_cache(num_blocks, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    key_cache.normal_()
    value_cache.normal_()
    query_starts, context_lens = list(range(num_sequences + 1)), [prefix_len + own_len] * num_sequences
    shared = kernels.prepare_attention(build_attention_metadata(tables, query_starts, context_lens, BLOCK_SIZE))
    unshared = kernels.prepare_attention(
        build_attention_metadata(tables, query_starts, context_lens, BLOCK_SIZE, min_shared_blocks=num_blocks + 1)
    )
    query = torch.randn(num_sequences, NUM_KV_HEADS * GROUP_SIZE, HEAD_DIM)
    functions: dict[str, Callable[[], Tensor]] = {
        "gather": lambda: gather_attention(query, key_cache, value_cache, shared),
        "unshared": lambda: kernels.attention(query, key_cache, value_cache, unshared, SCALE),
        "cascade": lambda: kernels.attention(query, key_cache, value_cache, shared, SCALE),
    }
    results = {name: function() for name, function in functions.items()}
    for name, result in results.items():
        assert torch.allclose(result, results["gather"], atol=1e-5), name
    best = best_of(functions, rounds)
    figures = "  ".join(f"{name} {milliseconds:7.3f} ms" for name, milliseconds in best.items())
    order = "shuffled blocks" if is_shuffled else "consecutive blocks"
    print(f"{num_sequences:3d} x ({prefix_len} + {own_len}), {order:18s}  {figures}   ", end="")
    print(f"gather / cascade = {best['gather'] / best['cascade']:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time of shared-prefix decode attention, one layer.")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    with torch.inference_mode():
        for num_sequences in (1, 8, 32):
            for is_shuffled in (False, True):
                measure(num_sequences, 1024, 16, is_shuffled, arguments.rounds)


if __name__ == "__main__":
    main()
