"""The C++ step computes the model: against the models of `runtime/models` on the same weights."""

from __future__ import annotations

import ctypes
import math
import random
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Quantization
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cosine_similarity

from ramet.kernels.cpu.memory import MemoryArena
from ramet.kernels.cpu.packed_matrix import PackedMatrix, Source
from ramet.kernels.interface import AttentionMetadata
from ramet.kernels.reference import ReferenceKernels
from ramet.radix.prefix_cache import BlockCopy
from ramet.runtime.batch import Batch, ScheduledSequence
from ramet.runtime.models.parameters import Piece
from ramet.runtime.runner import ModelRunner, Runner
from ramet.runtime.weights.base import Checkpoint
from ramet.runtime.weights.load import load_model
from ramet.runtime.weights.resolve import resolve_model

pytestmark = pytest.mark.compiler

MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, tied": {"tie_word_embeddings": True},
    "llama, biases everywhere": {"attention_bias": True, "mlp_bias": True},
    "llama, one kv head of narrow heads": {"head_dim": 16, "num_attention_heads": 6, "num_key_value_heads": 1},
    "llama, a kv head for each head": {"num_attention_heads": 3, "num_key_value_heads": 3},
    "llama, part of a head rotated": {"head_dim": 80, "partial_rotary_factor": 0.5},
    "llama 3's positions": {
        "rope_scaling": {"rope_type": "llama3", "factor": 4.0, "original_max_position_embeddings": 128}
    },
    "mistral": {"architectures": ["MistralForCausalLM"], "sliding_window": 21},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "vocab_size": 96},
    "qwen2, windows above": {
        "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
    },
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "vocab_size": 33, "head_dim": 48},
    "qwen3, wide": {
        "architectures": ["Qwen3ForCausalLM"],
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
    },
}
TEXT_LENS = (75, 3, 40)


class StepCheckpoint:
    """A checkpoint whose matrices are what the C++ kernels make of them: integers of up to 16 bits, a scale a row."""

    def __init__(self, checkpoint: Checkpoint, library: ctypes.CDLL) -> None:
        self._checkpoint, self._library = checkpoint, library

    def __getattr__(self, name: str) -> Any:
        return getattr(self._checkpoint, name)

    def read_into(self, name: str, values: Tensor, piece: Piece | None = None) -> None:
        assert piece is None
        self._checkpoint.read_into(name, values)
        if values.ndim == 2:
            values.copy_(torch.from_numpy(self._packed(name, values)))

    def _packed(self, name: str, values: Tensor) -> NDArray[np.float32]:
        source, rows = Source.F32, values.numpy()
        kind = self._checkpoint.quantized_type(name)
        if kind is not None:
            source, rows = Source[kind], self._checkpoint.quantized_rows(name).rows
        arena = MemoryArena(self._library)
        matrix = PackedMatrix(self._library, arena, source, *values.shape)
        row_ids = np.arange(len(values), dtype=np.int32)
        matrix.pack(rows, row_ids, 1)
        matrix.finish(1)
        unpacked = matrix.unpack(row_ids)
        arena.close()
        return unpacked


class StepKernels(ReferenceKernels):
    """The oracle with the roundings of the C++ step that matter: queries, keys and values are bf16.

    Activations have 16 bits in a product, and softmax weights are rounded as well: the thresholds leave room for both.
    """

    def store_kv(self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
        super().store_kv(key.bfloat16().float(), value.bfloat16().float(), key_cache, value_cache, slots)

    def attention(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        metadata: AttentionMetadata,
        scale: float,
        sliding_window: int | None = None,
    ) -> Tensor:
        """Scaled before they are rounded, and for powers of two."""
        query = (query * (scale / math.log(2))).bfloat16().float()
        return super().attention(query, key_cache, value_cache, metadata, math.log(2), sliding_window)


def stepped_runner(path: Path, library: ctypes.CDLL) -> ModelRunner:
    kernels = StepKernels(torch.device("cpu"))
    checkpoint = cast(Checkpoint, StepCheckpoint(resolve_model(path), library))
    return ModelRunner(load_model(checkpoint, kernels), kernels, 64, 16)


@pytest.fixture
def logits_of(paged_sequence, forward_parts):
    """Logits of all positions of some texts: half of each in one batch, then three tokens each, then one by one."""

    def run(runner: Runner, texts: list[list[int]]) -> list[Tensor]:
        free = list(range(runner.num_blocks))
        random.Random(1).shuffle(free)
        sequences = [paged_sequence(text, [free.pop() for _ in range(-(-len(text) // 16))]) for text in texts]
        rows: list[list[Tensor]] = [[] for _ in texts]
        starts = [0] * len(texts)
        for round_idx in range(1000):
            sizes = [max(1, len(text) // 2) if round_idx == 0 else 3 if round_idx == 1 else 1 for text in texts]
            parts = [
                (idx, sequences[idx], starts[idx], min(len(text), starts[idx] + sizes[idx]))
                for idx, text in enumerate(texts)
                if starts[idx] < len(text)
            ]
            if not parts:
                break
            for (idx, _, _, end), logits in zip(parts, forward_parts(runner, [p[1:] for p in parts]), strict=True):
                rows[idx].append(logits)
                starts[idx] = end
        return [torch.cat(chunks) for chunks in rows]

    return run


def random_texts(vocab_size: int) -> list[list[int]]:
    rng = random.Random(3)
    return [[rng.randrange(vocab_size) for _ in range(length)] for length in TEXT_LENS]


def assert_close(actual: Tensor, expected: Tensor, cosine: float, agreement: float) -> None:
    assert expected.std() > 0.3
    similarity = cosine_similarity(actual, expected)
    assert similarity.mean() > cosine
    assert similarity.min() > 1 - 8 * (1 - cosine)
    assert (actual.argmax(-1) == expected.argmax(-1)).float().mean() >= agreement


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_model(tmp_path, make_tiny_model, load_runner, cpu_library_of, logits_of, name):
    """To a rounding here and there with the step's roundings; within what bf16 costs in attention without them."""
    tiny = make_tiny_model(**MODELS[name])
    path = tiny.save(tmp_path)
    native = load_runner(path, "cpu").runner
    texts = random_texts(tiny.config["vocab_size"])
    actual = torch.cat(logits_of(native, texts))
    assert native.vocab_size == actual.shape[1] == tiny.config["vocab_size"]
    stepped = stepped_runner(path, cpu_library_of(None))
    assert_close(actual, torch.cat(logits_of(stepped, texts)), 0.99998, 0.97)
    exact = load_runner(path, "torch").runner
    assert_close(actual, torch.cat(logits_of(exact, texts)), 0.9999, 0.96)


@pytest.mark.parametrize("kinds", [("Q4_0", "Q8_0"), ("Q4_1", "Q8_0"), ("Q4_K", "Q4_0"), ("Q8_0", "F32")], ids=str)
def test_logits_from_gguf_are_those_of_its_dequantised_weights(
    tmp_path, make_tiny_model, load_runner, cpu_library_of, logits_of, kinds
):
    tiny = make_tiny_model(hidden_size=256, intermediate_size=512, num_attention_heads=8, num_key_value_heads=2)
    body, ends = (Quantization[kind] for kind in kinds)
    path = tiny.save_gguf(tmp_path / "tiny.gguf", lambda name: body if "layers" in name else ends)
    texts = random_texts(tiny.config["vocab_size"])
    actual = torch.cat(logits_of(load_runner(path, "cpu").runner, texts))
    stepped = stepped_runner(path, cpu_library_of(None))
    assert_close(actual, torch.cat(logits_of(stepped, texts)), 0.99998, 0.97)


def test_only_the_wanted_and_the_last_rows_have_logits(
    tmp_path, make_tiny_model, load_runner, paged_sequence, forward_parts
):
    runner = load_runner(make_tiny_model().save(tmp_path), "cpu").runner
    first, second = paged_sequence(list(range(40)), [3, 1, 2]), paged_sequence(list(range(50, 70)), [0, 5])
    everything = torch.cat(forward_parts(runner, [(first, 0, 40), (second, 0, 20)]))
    for first_from, second_from in ((39, 19), (40, 17), (12, 20), (40, 20), (0, 0)):
        parts = [ScheduledSequence(first, 0, 40, first_from), ScheduledSequence(second, 0, 20, second_from)]
        wanted = [*range(min(first_from, 39), 40), *range(40 + min(second_from, 19), 60)]
        assert torch.equal(runner.forward(Batch(scheduled=parts)), everything[wanted])


def test_blocks_are_copied_before_anything_is_written(
    tmp_path, make_tiny_model, load_runner, paged_sequence, forward_parts
):
    """Two texts that differ from position 20 on: the second begins with a copy; a third copy goes round in a ring."""
    runner = load_runner(make_tiny_model().save(tmp_path), "cpu").runner
    text = [idx % 101 for idx in range(60)]
    other = text[:20] + [(idx * 7) % 101 for idx in range(40)]
    forward_parts(runner, [(paged_sequence(text, [0, 1, 2, 3]), 0, 60)])
    (expected,) = forward_parts(runner, [(paged_sequence(other, [10, 11, 12, 13]), 0, 60)])
    (copied,) = forward_parts(
        runner, [(paged_sequence(other, [0, 4, 5, 6]), 20, 60)], block_copies=[BlockCopy(1, 4, 4)]
    )
    assert torch.equal(copied, expected[20:])
    ring = [BlockCopy(1, 2, 16), BlockCopy(2, 1, 16), BlockCopy(0, 20, 16)]
    (swapped,) = forward_parts(runner, [(paged_sequence(text, [20, 2, 1, 3]), 48, 60)], block_copies=ring)
    (expected,) = forward_parts(runner, [(paged_sequence(text, [30, 31, 32, 33]), 0, 60)])
    assert torch.equal(swapped, expected[48:])


def test_a_longer_context_extends_the_table_of_positions(
    tmp_path, make_tiny_model, load_runner, paged_sequence, forward_parts
):
    """Positions far beyond those first used are rotated as they would have been from the start."""
    path = make_tiny_model().save(tmp_path)
    text = [(idx * 13) % 101 for idx in range(500)]
    late, early = load_runner(path, "cpu").runner, load_runner(path, "cpu").runner
    blocks = list(range(32))
    (expected,) = forward_parts(early, [(paged_sequence(text, blocks), 0, 500)])
    for start, end in ((0, 1), (1, 17), (17, 400), (400, 500)):
        (logits,) = forward_parts(late, [(paged_sequence(text, blocks), start, end)])
        assert torch.equal(logits, expected[start:end])


def test_phases_are_timed(tmp_path, make_tiny_model, load_runner, paged_sequence, forward_parts):
    runner = load_runner(make_tiny_model().save(tmp_path), "cpu").runner
    assert set(runner.phase_times().values()) == {0.0}
    forward_parts(runner, [(paged_sequence([1, 2, 3], [0]), 0, 3)])
    times = runner.phase_times()
    assert set(times) == {"pointwise", "linear", "attention", "head", "plan"}
    assert all(0 < seconds < 60 for seconds in times.values())


def test_a_row_that_overflows_breaks_no_other(tmp_path, make_tiny_model, load_runner, paged_sequence, forward_parts):
    """Token 77 alone has something in dimension 5, which the norm after attention makes infinite. Its row says so;
    rows beside it, and later ones in the blocks it leaves behind, have the bits they have without it."""
    tiny = make_tiny_model()
    tiny.tensors["model.embed_tokens.weight"][:, 5] = 0
    tiny.tensors["model.embed_tokens.weight"][77, 5] = 1
    tiny.tensors["model.layers.0.post_attention_layernorm.weight"][5] = 3e38
    for name in ("0.self_attn.o_proj", "0.mlp.down_proj", "1.self_attn.o_proj", "1.mlp.down_proj"):
        tiny.tensors[f"model.layers.{name}.weight"][5] = 0
    runner = load_runner(tiny.save(tmp_path), "cpu").runner
    text = [5, 6, 7, 8] * 10
    (expected,) = forward_parts(runner, [(paged_sequence(text, [0, 1, 2]), 0, 40)])
    assert expected.isfinite().all()
    broken = paged_sequence([5, 6, 77, 8] * 10, [3, 4, 5])
    rows, beside = forward_parts(runner, [(broken, 0, 40), (paged_sequence(text, [6, 7, 8]), 0, 40)])
    assert torch.equal(beside, expected)
    assert torch.equal(rows[:2], expected[:2])
    assert not rows[2].isfinite().any()
    for start, end in ((0, 7), (7, 8), (8, 40)):
        (after,) = forward_parts(runner, [(paged_sequence(text, [3, 4, 5]), start, end)])
        assert torch.equal(after, expected[start:end])
