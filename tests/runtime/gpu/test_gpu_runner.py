"""GpuRunner on a CPU: steps equal the reference kernels', captured or not; graphs are replaced by plain calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ramet.kernels.triton.kernels import AttentionOptions, TritonKernels
from ramet.radix.prefix_cache import BlockCopy
from ramet.runtime.batch import Batch, ScheduledSequence
from ramet.runtime.gpu.runner import GpuRunner
from ramet.runtime.gpu.step_graphs import StepGraphs
from ramet.runtime.weights.load import load_model
from ramet.runtime.weights.resolve import resolve_model

CPU = torch.device("cpu")
NUM_BLOCKS = 64
NO_OPTIONS = AttentionOptions()
LENS = [3, 17, 40, 1, 33]
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}


class CountingSteps:
    """Stands for graphs: counts, and gives every result in the tensor of the capture, as a graph does."""

    def __init__(self) -> None:
        self.num_captured = 0
        self.num_replays = 0

    def capture(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.num_captured += 1
        output = step()

        def replay() -> Tensor:
            self.num_replays += 1
            return output.copy_(step())

        return replay


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory, make_tiny_model: Callable[..., Any]) -> Path:
    directory: Path = make_tiny_model(seed=3, num_hidden_layers=1).save(tmp_path_factory.mktemp("tiny"))
    return directory


@pytest.fixture(scope="module")
def make_runner(tiny_path: Path) -> Callable[..., GpuRunner]:
    """make_runner(sizes=(), graphs=None, dtype=torch.float32, options=NO_OPTIONS)"""

    def make(
        sizes: tuple[int, ...] = (),
        graphs: StepGraphs | None = None,
        dtype: torch.dtype = torch.float32,
        options: AttentionOptions = NO_OPTIONS,
    ) -> GpuRunner:
        kernels = TritonKernels(CPU, dtype, options)
        model = load_model(resolve_model(tiny_path), kernels, dtype)
        return GpuRunner(model, kernels, NUM_BLOCKS, 16, sizes, graphs)

    return make


@pytest.fixture
def sequences(paged_sequence: Callable[..., Any]) -> list[Any]:
    return [
        paged_sequence(
            [(7 * idx * idx + 3 * seq_idx + 1) % 100 for idx in range(length)], [3 * seq_idx + idx for idx in range(3)]
        )
        for seq_idx, length in enumerate(LENS)
    ]


def prefill(runner: Any, sequences: list[Any]) -> Tensor:
    """All tokens but the last, with logits of the last of them; nothing of a sequence of one token."""
    parts = [(sequence, sequence.num_tokens - 1) for sequence in sequences if sequence.num_tokens > 1]
    logits: Tensor = runner.forward(
        Batch(scheduled=[ScheduledSequence(sequence, 0, count, count - 1) for sequence, count in parts])
    )
    return logits


def decodes(sequences: list[Any], **fields: Any) -> Batch:
    return Batch(scheduled=[ScheduledSequence(seq, seq.num_tokens - 1, 1, 0) for seq in sequences], **fields)


def test_steps_are_those_of_the_reference_kernels(
    tiny_path: Path, make_runner: Callable[..., GpuRunner], load_runner: Callable[..., Any], sequences: list[Any]
) -> None:
    """Prompts in one step, then decodes of every batch size: with the graph of that size, a larger one, and none."""
    steps = CountingSteps()
    runner = make_runner((1, 2, 4), steps)
    assert steps.num_captured == 3
    reference = load_runner(tiny_path, "reference", num_blocks=NUM_BLOCKS).runner
    torch.testing.assert_close(prefill(runner, sequences), prefill(reference, sequences), **CLOSE)
    assert steps.num_replays == 0
    for num_seqs in range(1, 6):
        logits = runner.forward(decodes(sequences[:num_seqs]))
        assert logits.shape == (num_seqs, 101)
        torch.testing.assert_close(logits, reference.forward(decodes(sequences[:num_seqs])), **CLOSE)
        assert steps.num_replays == min(num_seqs, 4)
    assert runner.num_uncaptured == 0


def test_a_step_is_prepared_while_another_is_in_flight(
    make_runner: Callable[..., GpuRunner], sequences: list[Any]
) -> None:
    """Both use the buffers of size 2, and the results of the first are kept while the second is computed."""
    runner = make_runner((2,), CountingSteps())
    prefill(runner, sequences)
    batches = [decodes(sequences[:2]), decodes(sequences[2:4])]
    expected = [runner.forward(batch).clone() for batch in batches]
    steps = [runner.prepare(batch) for batch in batches]
    for logits, wanted in zip([step() for step in steps], expected, strict=True):
        assert torch.equal(logits, wanted)


@pytest.mark.parametrize("sizes", [(), (4,)], ids=["eager", "captured"])
def test_pending_tokens_are_found_on_the_device(
    make_runner: Callable[..., GpuRunner], sequences: list[Any], sizes: tuple[int, ...]
) -> None:
    """Some tokens of the step are known to the host and others in a tensor, in another order; rows of padding stay."""
    runner = make_runner(sizes)
    prefill(runner, sequences)
    expected = runner.forward(decodes(sequences[:3])).clone()
    batch = decodes(sequences[:3])
    drawn = torch.full((6,), 1 << 40)  # what is no token is not looked at
    for part, row in zip(batch.scheduled, (4, None, 2), strict=True):
        if row is not None:
            drawn[row] = part.sequence.token_ids.pop()
            part.sequence.pending_row = row
    batch.drawn_token_ids = drawn
    step = runner.prepare(batch)
    sequences[0].token_ids.append(7)  # known by now, but the step is prepared
    assert torch.equal(step(), expected)


def test_a_pending_token_that_could_not_be_drawn_reads_nothing_beyond_the_vocabulary(
    make_runner: Callable[..., GpuRunner], sequences: list[Any]
) -> None:
    runner = make_runner()
    prefill(runner, sequences)
    batch = decodes(sequences[:2])
    sequences[0].token_ids.pop()
    sequences[0].pending_row = 0
    batch.drawn_token_ids = torch.tensor([1 << 40])
    assert runner.forward(batch).isfinite().all()


def test_only_the_wanted_rows_come_back(make_runner: Callable[..., GpuRunner], sequences: list[Any]) -> None:
    runner = make_runner((4,))
    prefill(runner, sequences)
    everything = runner.forward(decodes(sequences[:4]))
    batch = decodes(sequences[:4])
    batch.scheduled[1] = ScheduledSequence(sequences[1], sequences[1].num_tokens - 1, 1, 1)
    assert torch.equal(runner.forward(batch), everything)  # none of it was wanted; its last row comes in any case
    none = [ScheduledSequence(sequence, 0, sequence.num_tokens, sequence.num_tokens) for sequence in sequences[1:3]]
    assert runner.forward(Batch(scheduled=none)).shape == (2, 101)


def test_blocks_are_copied_before_the_step(make_runner: Callable[..., GpuRunner], paged_sequence: Any) -> None:
    runner = make_runner((1,))
    token_ids = [(5 * idx) % 90 for idx in range(20)]
    original, copy = paged_sequence(token_ids, [4, 5]), paged_sequence(token_ids, [4, 9])
    prefill(runner, [original])
    expected = runner.forward(decodes([original]))
    assert torch.equal(runner.forward(decodes([copy], block_copies=[BlockCopy(5, 9, 4)])), expected)


def test_a_plan_too_large_for_its_buffers_runs_without_the_graph(
    make_runner: Callable[..., GpuRunner], paged_sequence: Any
) -> None:
    """A chain of prefixes, each shared by one sequence fewer: rows are in more runs than buffers have room for."""
    steps = CountingSteps()
    options = AttentionOptions(sharing_min_len=64, sharing_break_even=0.0)
    captured, eager = make_runner((8,), steps, options=options), make_runner(options=options)
    chain, own = iter(range(28)), iter(range(28, NUM_BLOCKS))
    stem: list[int] = []
    sequences = []
    for depth in range(8):
        stem = stem + [next(chain) for _ in range(4)] if depth < 7 else stem
        sequences.append(paged_sequence([3] * (len(stem) * 16 + 5), [*stem, next(own)]))
    noise = torch.Generator().manual_seed(0)
    for cache, other in zip(captured.kv_cache.layers[0], eager.kv_cache.layers[0], strict=True):
        other.copy_(torch.randn(other.shape, generator=noise))
        cache[:NUM_BLOCKS] = other
    logits, expected = captured.forward(decodes(sequences)), eager.forward(decodes(sequences))
    assert (captured.num_uncaptured, steps.num_replays) == (1, 0)
    torch.testing.assert_close(logits, expected, **CLOSE)
    captured.forward(decodes(sequences[:1]))
    assert (captured.num_uncaptured, steps.num_replays) == (1, 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_weights_and_caches(
    make_runner: Callable[..., GpuRunner], sequences: list[Any], dtype: torch.dtype
) -> None:
    """Logits are fp32, and as close to the exact ones as a few roundings of that dtype leave them."""
    narrow, exact = make_runner((4,), dtype=dtype), make_runner((4,))
    assert narrow.kv_cache.layers[0][0].dtype == dtype
    tolerance = 0.15 if dtype == torch.bfloat16 else 0.02
    for runner_logits, wanted in (
        (prefill(narrow, sequences), prefill(exact, sequences)),
        (narrow.forward(decodes(sequences[:3])), exact.forward(decodes(sequences[:3]))),
    ):
        assert runner_logits.dtype == torch.float32
        torch.testing.assert_close(runner_logits, wanted, rtol=0, atol=tolerance * float(wanted.abs().max()))


def test_no_device_memory_says_what_to_lower(make_runner: Callable[..., GpuRunner], sequences: list[Any]) -> None:
    runner = make_runner()
    runner.model.logits = out_of_memory  # type: ignore[method-assign]
    with pytest.raises(MemoryError, match=r"step of 2 tokens: lower gpu_memory_utilization, max_num_batched_tokens"):
        runner.forward(decodes(sequences[:2]))


def out_of_memory(hidden: Tensor) -> Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory")
