"""Logits of the C++ step have the same bits however they come about.

The expected ones are computed alone, in one piece, on one thread, without sharing. Then the same texts run as an engine
would run them: behind cached blocks and copies of partial ones, in chunks of all sizes, beside strangers and relatives,
on one to three threads, in blocks that others have left behind.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Quantization
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ramet.kernels.cpu.isa import supported_isas
from ramet.kernels.cpu.memory import MemoryArena
from ramet.radix.prefix_cache import BlockCopy
from ramet.runtime.native_model import NativeModel
from ramet.runtime.native_runner import NativeRunner
from ramet.runtime.weights.load import model_config
from ramet.runtime.weights.resolve import resolve_model

pytestmark = pytest.mark.compiler

BLOCK = 16
NUM_BLOCKS = 128
FAMILY_LEN = 9 * BLOCK
NUM_FAMILIES = 2
CHUNKS = [1, 1, 2, 7, 16, 23, 64, 1000]
MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "8 bits": ({"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 64}, "safetensors"),
    "4 bits": ({"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 48, "hidden_size": 96}, "Q4_0"),
    "4 bits with minima": ({"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 80}, "Q4_1"),
    "windows, biases and norms": (
        {
            "architectures": ["Qwen3ForCausalLM"],
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 37,
            "max_window_layers": 1,
            "num_key_value_heads": 1,
        },
        "safetensors",
    ),
}


@dataclass(frozen=True)
class Member:
    """A sequence of a step: family[: shared_len] + own tokens, of which `num_cached` need not be computed."""

    family: int
    shared_len: int
    own_len: int
    num_cached: int
    chunks: tuple[int, ...]
    """Sizes of its chunks in turn, again and again; a 0 sits the step out."""


@dataclass(frozen=True)
class Composition:
    """What runs together, and on how many threads, with sharing or without, step after step."""

    members: tuple[Member, ...]
    family_chunk: int
    threads: tuple[int, ...]
    is_sharing: tuple[bool, ...]
    seed: int


@st.composite
def members(draw: st.DrawFn) -> Member:
    shared_len = draw(st.one_of(st.integers(0, FAMILY_LEN), st.sampled_from([64, 128, FAMILY_LEN])))
    own_len = draw(st.sampled_from([1, 1, 2, 5, 17, 33, 60]))
    chunks = draw(st.lists(st.sampled_from([0, *CHUNKS]), min_size=1, max_size=3).filter(any))
    num_cached = draw(st.sampled_from([0, shared_len // BLOCK * BLOCK, shared_len]))
    return Member(draw(st.integers(0, NUM_FAMILIES - 1)), shared_len, own_len, num_cached, tuple(chunks))


compositions = st.builds(
    Composition,
    st.lists(members(), min_size=1, max_size=7).map(tuple),
    st.sampled_from([7, 16, 23, 64, 1000]),
    st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple),
    st.lists(st.booleans(), min_size=1, max_size=2).map(tuple),
    st.integers(0, 99),
)


class Bench:
    """A model behind two runners: one computes texts alone, the other runs compositions."""

    def __init__(
        self, model: NativeModel, library: Any, paged_sequence: Any, forward_parts: Any, num_blocks: int = NUM_BLOCKS
    ) -> None:
        self.alone = NativeRunner(library, model, 16, 1, is_sharing=False)
        self.runner = NativeRunner(library, model, num_blocks, 1)
        self.vocab_size = model.config.vocab_size
        self._sequence, self._forward = paged_sequence, forward_parts
        self._known: dict[tuple[int, ...], Tensor] = {}
        self.families = [self.random_tokens(FAMILY_LEN, seed) for seed in range(NUM_FAMILIES)]
        self._fill(num_blocks)

    def _fill(self, num_blocks: int) -> None:
        """Nothing is ever computed in fresh memory: a strange text lies in all blocks."""
        stranger = self._sequence(self.random_tokens(16 * BLOCK, 1000), list(range(16)))
        self._forward(self.runner, [(stranger, 0, 16 * BLOCK)])
        copies = [BlockCopy(block_id % 16, block_id, BLOCK) for block_id in range(16, num_blocks)]
        self._forward(self.runner, [(stranger, 16 * BLOCK - 1, 16 * BLOCK)], block_copies=copies)

    def random_tokens(self, count: int, seed: int) -> list[int]:
        rng = random.Random(seed)
        return [rng.randrange(self.vocab_size) for _ in range(count)]

    def forget(self) -> None:
        """Let go of the logits computed so far."""
        self._known.clear()

    def expected(self, tokens: list[int]) -> Tensor:
        """Logits of all positions, computed alone and at once."""
        key = tuple(tokens)
        if key not in self._known:
            (self._known[key],) = self._forward(self.alone, [(self._sequence(tokens, list(range(16))), 0, len(tokens))])
        return self._known[key]

    def check(self, composition: Composition) -> None:
        free = list(range(self.runner.num_blocks))
        random.Random(composition.seed).shuffle(free)
        step_idx = 0

        def step(parts: list[tuple[Any, int, int]], copies: list[BlockCopy]) -> None:
            nonlocal step_idx
            self.runner.num_threads = composition.threads[step_idx % len(composition.threads)]
            self.runner.is_sharing = composition.is_sharing[step_idx % len(composition.is_sharing)]
            step_idx += 1
            logits = self._forward(self.runner, parts, block_copies=copies)
            for (sequence, start, end), rows in zip(parts, logits, strict=True):
                assert torch.equal(rows, self.expected(sequence.token_ids)[start:end]), (step_idx, start, end)

        leaders = [self._sequence(tokens, [free.pop() for _ in range(9)]) for tokens in self.families]
        for start in range(0, FAMILY_LEN, composition.family_chunk):
            end = min(FAMILY_LEN, start + composition.family_chunk)
            step([(leader, start, end) for leader in leaders], [])

        copies: list[BlockCopy] = []
        sequences, starts = [], []
        for idx, member in enumerate(composition.members):
            tokens = self.families[member.family][: member.shared_len] + self.random_tokens(member.own_len, 50 + idx)
            num_shared, num_copied = divmod(member.num_cached, BLOCK)
            table = leaders[member.family].block_ids[:num_shared]
            while len(table) * BLOCK < len(tokens):
                table.append(free.pop())
            if num_copied:
                source = leaders[member.family].block_ids[num_shared]
                copies.append(BlockCopy(source, table[num_shared], num_copied))
            sequences.append(self._sequence(tokens, table))
            starts.append(member.num_cached)
        turns = [0] * len(sequences)
        while any(start < sequence.num_tokens for start, sequence in zip(starts, sequences, strict=True)):
            parts = []
            for idx, (member, sequence) in enumerate(zip(composition.members, sequences, strict=True)):
                size = member.chunks[turns[idx] % len(member.chunks)]
                turns[idx] += 1
                end = min(sequence.num_tokens, starts[idx] + size)
                if end > starts[idx]:
                    parts.append((sequence, starts[idx], end))
                    starts[idx] = end
            if parts:
                step(parts, copies)
                copies = []


@pytest.fixture(scope="module")
def bench_of(
    cpu_library_of: Callable[[str], Any],
    make_tiny_model: Callable[..., Any],
    paged_sequence: Any,
    forward_parts: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, str], Bench]:
    benches: dict[tuple[str, str], Bench] = {}

    def make(isa: str, name: str) -> Bench:
        if (isa, name) not in benches:
            options, kind = MODELS[name]
            directory: Path = tmp_path_factory.mktemp("tiny")
            tiny = make_tiny_model(**options)
            path = (
                tiny.save(directory)
                if kind == "safetensors"
                else tiny.save_gguf(directory / "tiny.gguf", lambda tensor: Quantization[kind])
            )
            library, checkpoint = cpu_library_of(isa), resolve_model(path)
            model = NativeModel(library, MemoryArena(library), checkpoint, model_config(checkpoint), 512, 1)
            benches[isa, name] = Bench(model, library, paged_sequence, forward_parts)
        return benches[isa, name]

    return make


def random_compositions(max_examples: int) -> settings:
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=max_examples, deadline=None, suppress_health_check=checks)


@pytest.mark.parametrize("isa", supported_isas())
@random_compositions(20)
@given(name=st.sampled_from(list(MODELS)), composition=compositions)
def test_logits_have_the_same_bits_in_any_composition(bench_of, isa, name, composition):
    bench_of(isa, name).check(composition)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("isa", supported_isas())
@random_compositions(150)
@given(composition=compositions)
def test_logits_have_the_same_bits_in_many_compositions(bench_of, isa, name, composition):
    bench_of(isa, name).check(composition)


@pytest.mark.parametrize("isa", supported_isas())
@pytest.mark.parametrize("num_members", [5, 32, 60])
def test_a_batch_behind_one_prefix_has_the_bits_of_its_members(bench_of, isa, num_members):
    """Tiles of many sequences, which random compositions are too small for: 128 shared tokens, the rest their own."""
    group = tuple(Member(0, 128, 1 + idx % 3, 128, (1,)) for idx in range(num_members))
    for threads, is_sharing in (((1,), (True,)), ((2, 3), (True, False))):
        bench_of(isa, "8 bits").check(Composition(group, 64, threads, is_sharing, seed=num_members))


@pytest.fixture(scope="module", params=[isa for isa in supported_isas() if isa != "portable"] or ["portable"])
def bundled_bench(request, cpu_library_of, paged_sequence, forward_parts):
    """The bundled model. The portable build takes too long for it, and is told apart by no more than its vectors."""
    library, checkpoint = cpu_library_of(request.param), resolve_model("smollm2")
    model = NativeModel(library, MemoryArena(library), checkpoint, model_config(checkpoint), 512, 2)
    return Bench(model, library, paged_sequence, forward_parts, num_blocks=80)


SMALL_GROUP = (Member(0, 70, 9, 70, (1,)), Member(0, 64, 5, 64, (2, 1)), Member(1, 37, 3, 0, (16, 7, 1)))
"""Cached and not, a copied block, chunks and single tokens, and two sequences of one tile."""


@pytest.mark.model
@random_compositions(1)
@given(composition=st.builds(replace, compositions, members=st.lists(members(), min_size=2, max_size=4).map(tuple)))
@example(composition=Composition(SMALL_GROUP, 64, (1, 2), (True, False), seed=1))
def test_logits_of_the_bundled_model_have_the_same_bits_in_any_composition(bundled_bench, composition):
    bundled_bench.check(composition)
    bundled_bench.forget()


@pytest.mark.skipif("avx2" not in supported_isas(), reason="the builds for x86 are meant")
@pytest.mark.parametrize("name", MODELS)
def test_all_builds_with_fused_vectors_have_the_same_bits(bench_of, name):
    """So what a machine printed, the next one prints. (The portable build rounds a multiplication and its addition.)"""
    best = bench_of(supported_isas()[0], name)
    tokens = best.random_tokens(200, seed=5)
    for isa in ("avx512", "avx2"):
        if isa in supported_isas():
            assert torch.equal(best.expected(tokens), bench_of(isa, name).expected(tokens)), isa
