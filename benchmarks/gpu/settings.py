"""Sizes of everything that is measured: those of a GPU, and tiny ones for Triton's interpreter."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.cpu.inputs import Sizes as WorkloadSizes
from ramet.kernels.triton.shared_runs import HeadShape

LLAMA_8B = HeadShape(32, 8, 128)
BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Attributes:
    prefix_len: tokens of each sequence that are cached.
    num_new_tokens: tokens of each that the step computes, behind those.
    """

    num_seqs: int
    num_new_tokens: int
    prefix_len: int

    def __str__(self) -> str:
        return f"{self.num_seqs} x ({self.prefix_len:,} + {self.num_new_tokens:,})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Attributes:
    is_tiny: timings mean nothing.
    copy_bytes: of the copy that is the ceiling of bandwidth.
    matmul_size: side of the square matrices that are the ceiling of arithmetic.
    heads: of attention where speed is measured.
    checked_heads: (head_dim, query heads of a key/value head) of the checks in bf16; the last one also in fp16, with
        quantised caches, windows and fixed chunks.
    checked_lens: (context, rows) of the sequences in a check of attention; some also share `checked_prefix_len`.
    decode: decode attention, the most telling case first.
    flex: the cases of `decode` and `extend` for which FlexAttention is compiled, which takes long: it comes last.
    num_sharers, shared_lens, own_len: of decodes behind a shared prefix.
    num_rows: tokens of a step of the elementwise ops; hidden_size, vocab_size, num_logit_rows: their widths.
    num_draws, num_choices: of the test of the sampler's distribution.
    gap_batch, gap_prompt_len, gap_steps: sequences and steps in which the device may idle.
    checked_model: name in models.SHAPES, for captured steps.
    models: likewise, for whole steps and workloads.
    workloads: of the engine.
    num_slow_requests: W3's requests for whoever computes the prefix once for each.
    """

    is_tiny: bool
    copy_bytes: int
    matmul_size: int
    heads: HeadShape
    checked_heads: tuple[tuple[int, int], ...]
    checked_lens: tuple[tuple[int, int], ...]
    checked_prefix_len: int
    decode: tuple[AttentionShape, ...]
    extend: tuple[AttentionShape, ...]
    flex: tuple[AttentionShape, ...]
    num_sharers: tuple[int, ...]
    shared_lens: tuple[int, ...]
    own_len: int
    num_rows: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    num_logit_rows: int
    num_draws: int
    num_choices: int
    gap_batch: int
    gap_prompt_len: int
    gap_steps: int
    checked_model: str
    models: tuple[str, ...]
    workloads: WorkloadSizes
    num_slow_requests: int


def _decodes(*cases: tuple[int, int]) -> tuple[AttentionShape, ...]:
    return tuple(AttentionShape(num_seqs, 1, context_len - 1) for num_seqs, context_len in cases)


FULL = Settings(
    is_tiny=False,
    copy_bytes=4 << 30,
    matmul_size=8192,
    heads=LLAMA_8B,
    checked_heads=((64, 1), (64, 3), (64, 4), (64, 8), (128, 1), (128, 3), (128, 8), (128, 4)),
    checked_lens=((1, 1), (17, 1), (300, 1), (2077, 1), (131, 131), (700, 200), (4100, 3)),
    checked_prefix_len=1024,
    decode=_decodes(
        *((64, 4096), (64, 1024), (256, 4096), (16, 4096), (64, 16384)),
        *((16, 1024), (256, 1024), (16, 16384), (256, 16384)),
    ),
    extend=(
        AttentionShape(8, 1024, 0),
        AttentionShape(1, 8192, 0),
        AttentionShape(8, 1024, 4096),
        AttentionShape(1, 2048, 16384),
    ),
    flex=(AttentionShape(64, 1, 4095), AttentionShape(8, 1024, 0)),
    num_sharers=(32, 8, 2, 128),
    shared_lens=(4096, 128, 256, 512, 1024, 2048, 8192),
    own_len=64,
    num_rows=8192,
    hidden_size=4096,
    intermediate_size=14336,
    vocab_size=128_256,
    num_logit_rows=256,
    num_draws=40_000,
    num_choices=24,
    gap_batch=64,
    gap_prompt_len=512,
    gap_steps=100,
    checked_model="small",
    models=("llama-8b", "smollm2"),
    workloads=WorkloadSizes(
        single=(2048, 128),
        batch=(64, 512, 64),
        shared=(256, 64, 4096, 32),
        choices=(4, 3),
        chats=(32, 4, 128, 64),
        forks=(4096, 24, 64, 64, 64),
    ),
    num_slow_requests=32,
)

TINY = Settings(
    is_tiny=True,
    copy_bytes=1 << 16,
    matmul_size=32,
    heads=HeadShape(2, 1, 16),
    checked_heads=((16, 4),),
    checked_lens=((1, 1), (40, 20)),
    checked_prefix_len=32,
    decode=_decodes((2, 64)),
    extend=(AttentionShape(1, 32, 0), AttentionShape(2, 8, 32)),
    flex=(AttentionShape(2, 1, 63), AttentionShape(1, 32, 0)),
    num_sharers=(2,),
    shared_lens=(32,),
    own_len=16,
    num_rows=4,
    hidden_size=64,
    intermediate_size=128,
    vocab_size=300,
    num_logit_rows=2,
    num_draws=24,
    num_choices=4,
    gap_batch=2,
    gap_prompt_len=20,
    gap_steps=3,
    checked_model="tiny",
    models=("tiny",),
    workloads=WorkloadSizes(
        single=(40, 2),
        batch=(2, 8, 2),
        shared=(3, 4, 32, 2),
        choices=(4, 3),
        chats=(2, 2, 6, 2),
        forks=(32, 2, 4, 2, 2),
    ),
    num_slow_requests=2,
)
