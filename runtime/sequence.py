"""Sequence: the mutable life of one sample of a request in the engine."""

from __future__ import annotations

from enum import Enum, auto

from ..radix.block_table import BlockTable
from ..radix.expectations import Expectation
from .choice_trie import Branch
from .detokenizer import IncrementalDetokenizer
from .grammar.constrained_text import ConstrainedText
from .outputs import FinishReason, TokenLogprobs
from .program_record import ProgramBranch
from .request import Request
from .sampler import SamplingRow


class SequenceStatus(Enum):
    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class Sequence:
    """One sample of a request: its tokens, its blocks, and how far it has come.

    Every step lets `num_computed_tokens` catch up with `num_tokens`; prefill, decode and recompute after preemption
    are this one case.

    Attributes:
        token_ids: prompt and generated tokens; the block table reads the same list.
        block_table: blocks held while running, None otherwise.
        max_tokens: most tokens to generate, the context limit applied.
        num_lost_tokens: that many of its first tokens were once computed before it lost its blocks; to compute them
            again is recompute.
        num_restored_tokens: how many were loaded for it from the tiers behind the pool, all its life.
        num_in_flight_tokens: how many behind the computed ones the last launched step computes, while the next one is
            planned. They are neither in the cache nor known to be right.
        pending_row: where that step's drawn token ids have its next one, which only the device knows; -1: it has none.
        stop_token_ids: each of them ends it: end of sequence and the request's own.
        arrival_idx: order of arrival over the engine's life; breaks every tie.
        sampling_row: what the sampler has to know of it, without what it must not choose now.
        prompt_logprobs: one entry per prompt token, filled as they become known.
        is_scored: the logprobs of its tokens are summed up, to be reported or to choose the best samples by.
        constraint: its place in the grammar its text must belong to, None if the text is free. It has accepted all
            generated tokens but a stop token.
        has_stop_token: the last token ended it and is no text.
        is_prompt_counted: its prompt is part of the metrics already.
        is_beam: one beam of a beam search; its siblings are the running sequences of the same request.
        branch: of a scoring request, the part of its trie that is computed now; None for a usual one.
        num_known_rows: rows of logits of the branch that were had already.
        beam_candidates: its likeliest next tokens with their logprobs, while it waits for its siblings to have theirs.
        program_branch: which branch of which program it belongs to, as far as the engine keeps track of programs.
        expectation: that it comes back to what it left in the cache, while it is preempted.
    """

    __slots__ = (
        "arrival_idx",
        "beam_candidates",
        "block_table",
        "branch",
        "constraint",
        "cumulative_logprob",
        "detokenizer",
        "error",
        "expectation",
        "finish_reason",
        "has_stop_token",
        "is_beam",
        "is_prompt_counted",
        "is_scored",
        "logprobs",
        "max_tokens",
        "num_cached_tokens",
        "num_in_flight_tokens",
        "num_known_rows",
        "num_lost_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_restored_tokens",
        "pending_row",
        "program_branch",
        "prompt_logprobs",
        "request",
        "sample_idx",
        "sampling_row",
        "status",
        "stop_reason",
        "stop_token_ids",
        "token_ids",
    )

    def __init__(
        self,
        request: Request,
        sample_idx: int,
        arrival_idx: int,
        max_tokens: int,
        seed: int,
        stop_token_ids: frozenset[int],
        detokenizer: IncrementalDetokenizer,
        constraint: ConstrainedText | None = None,
    ) -> None:
        self.request = request
        self.sample_idx = sample_idx
        self.arrival_idx = arrival_idx
        self.max_tokens = max_tokens
        self.stop_token_ids = stop_token_ids
        self.detokenizer = detokenizer
        self.constraint = constraint
        self.token_ids = list(request.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        params = request.sampling_params
        self.is_scored = params.logprobs is not None or params.is_best_of
        row_params = params.replace(logprobs=0) if self.is_scored and params.logprobs is None else params
        self.sampling_row = SamplingRow(row_params, seed, sample_idx, self.token_ids, self.num_prompt_tokens)
        self.is_beam = request.sampling_params.use_beam_search
        self.beam_candidates: list[tuple[int, float]] | None = None
        self.branch: Branch | None = None
        self.program_branch: ProgramBranch | None = None
        self.expectation: Expectation | None = None
        self.num_known_rows = 0
        self.block_table: BlockTable | None = None
        self.status = SequenceStatus.WAITING
        self.num_cached_tokens: int | None = None
        self.num_preemptions = 0
        self.num_lost_tokens = 0
        self.num_restored_tokens = 0
        self.num_in_flight_tokens = 0
        self.pending_row = -1
        self.cumulative_logprob = 0.0
        self.logprobs: list[TokenLogprobs] | None = [] if request.sampling_params.logprobs is not None else None
        self.prompt_logprobs: list[TokenLogprobs | None] | None = (
            [None] * self.num_prompt_tokens if self.wants_prompt_logprobs else None
        )
        self.is_prompt_counted = False
        self.has_stop_token = False
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.error: Exception | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_computed_tokens(self) -> int:
        return 0 if self.block_table is None else self.block_table.num_computed_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return self.num_tokens - self.num_computed_tokens

    @property
    def num_unplanned_tokens(self) -> int:
        """Tokens that no step computes yet, a pending one included."""
        return len(self.token_ids) + (self.pending_row >= 0) - self.num_computed_tokens - self.num_in_flight_tokens

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_remaining_tokens(self) -> int:
        """Most tokens it may still generate."""
        return self.max_tokens - self.num_output_tokens

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Only the first sample reports them: they are the same for all."""
        return self.request.sampling_params.prompt_logprobs is not None and self.sample_idx == 0

    @property
    def is_finished(self) -> bool:
        return self.status is SequenceStatus.FINISHED

    @property
    def is_prompt_new(self) -> bool:
        """Its prompt is to be counted when it is computed to the end: once, for all branches."""
        return not self.is_prompt_counted and (self.branch is None or self.branch.idx == 0)

    @property
    def num_reusable_tokens(self) -> int:
        """Most tokens it may take from the cache: those before the first whose logits are wanted, for itself or for its
        branch. How far prompt logprobs allow it is another question."""
        if self.branch is None:
            return len(self.token_ids) - 1
        return len(self.token_ids) - len(self.branch.nodes) + self.num_known_rows

    def go_on(self, branch: Branch) -> None:
        """Begin a branch where its tokens end."""
        self.token_ids += branch.token_ids
        self.branch = branch
        self.num_known_rows = 0

    def next_wanted_logits(self) -> int:
        """First position whose row of logits is wanted and not known yet."""
        position = self.next_prompt_logprob()
        return position - 1 if position < self.num_prompt_tokens else self.num_reusable_tokens

    def next_prompt_logprob(self) -> int:
        """First prompt position whose logprob is wanted and not known yet; num_prompt_tokens if there is none."""
        if self.prompt_logprobs is None:
            return self.num_prompt_tokens
        position = max(1, self.request.prompt_logprobs_start)
        while position < self.num_prompt_tokens and self.prompt_logprobs[position] is not None:
            position += 1
        return position

    def __repr__(self) -> str:
        return (
            f"Sequence({self.request.request_id}/{self.sample_idx}, {self.status.name.lower()}, "
            f"{self.num_computed_tokens}/{self.num_tokens} tokens computed)"
        )
