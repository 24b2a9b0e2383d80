"""All figures by name, in the order in which they are listed. A new one is its file and a line here."""

from __future__ import annotations

from . import (
    orca_selective_batching,
    orca_steps,
    orca_throughput,
    paged_beam_search,
    paged_block_size,
    paged_memory,
    paged_parallel_sampling,
    sarathi_capacity,
    sarathi_chunk_size,
    sarathi_tbt,
    sglang_cache_speedup,
    sglang_hit_rate,
    sglang_long_queue,
    sglang_optimal,
    sglang_starvation,
    sglang_tree_overhead,
    tensorrt_capacity,
    tensorrt_overlap,
    tensorrt_padding,
    tensorrt_phases,
)
from .figure import Figure

FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        orca_steps.FIGURE,
        orca_throughput.FIGURE,
        orca_selective_batching.FIGURE,
        paged_memory.FIGURE,
        paged_block_size.FIGURE,
        paged_parallel_sampling.FIGURE,
        paged_beam_search.FIGURE,
        sarathi_tbt.FIGURE,
        sarathi_capacity.FIGURE,
        sarathi_chunk_size.FIGURE,
        sglang_hit_rate.FIGURE,
        sglang_optimal.FIGURE,
        sglang_long_queue.FIGURE,
        sglang_starvation.FIGURE,
        sglang_cache_speedup.FIGURE,
        sglang_tree_overhead.FIGURE,
        tensorrt_phases.FIGURE,
        tensorrt_overlap.FIGURE,
        tensorrt_padding.FIGURE,
        tensorrt_capacity.FIGURE,
    )
}  # fmt: skip
