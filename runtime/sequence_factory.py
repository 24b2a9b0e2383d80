"""SequenceFactory: a request becomes the sequences that the scheduler moves."""

from __future__ import annotations

import random

from .choice_trie import Branch, BranchPlan
from .config import EngineConfig
from .detokenizer import IncrementalDetokenizer
from .grammar.constrained_text import ConstrainedText
from .grammar.vocabulary import GrammarVocabulary
from .request import Request
from .request_check import RequestLimits
from .sequence import Sequence
from .tokenizer import Tokenizer


class SequenceFactory:
    """Numbers arrivals and gives every sequence its seed, its ways to stop and its detokenizer."""

    def __init__(
        self, tokenizer: Tokenizer, vocabulary: GrammarVocabulary, limits: RequestLimits, config: EngineConfig
    ) -> None:
        self._vocabulary = vocabulary
        self._tokenizer = tokenizer
        self._limits = limits
        self._is_jumping = config.jump_forward
        self._seeds = random.Random(config.seed)
        self._num_arrivals = 0

    def make(self, request: Request) -> list[Sequence]:
        """One sequence per sample; for a beam search the one its beams will grow from."""
        params = request.sampling_params
        seed = params.seed if params.seed is not None else self._seeds.getrandbits(63)
        eos_token_ids = frozenset[int]() if params.ignore_eos else self._tokenizer.eos_token_ids
        stop_token_ids = eos_token_ids.union(params.stop_ids)
        return [self._sequence(request, idx, seed, stop_token_ids) for idx in range(params.num_sequences)]

    def make_branches(self, request: Request, plan: BranchPlan) -> list[Sequence]:
        """A sequence per branch that a scoring request begins with.

        Every branch of the plan has a number among the arrivals, so that which of two came later is never open.
        """
        sequences = [self._branch(request, branch, self._num_arrivals, []) for branch in plan.first]
        self._num_arrivals += plan.num_branches
        return sequences

    def fork_branch(self, parent: Sequence, branch: Branch) -> Sequence:
        """A sequence of its own that begins a branch behind the tokens that `parent` has."""
        first_arrival_idx = parent.arrival_idx - parent.sample_idx
        child = self._branch(parent.request, branch, first_arrival_idx, parent.output_token_ids)
        child.num_cached_tokens = parent.num_cached_tokens
        return child

    def fork(self, parent: Sequence) -> Sequence:
        """A sequence of its own with the tokens that `parent` has."""
        child = Sequence(
            request=parent.request,
            sample_idx=parent.sample_idx,
            arrival_idx=parent.arrival_idx,
            max_tokens=parent.max_tokens,
            seed=parent.sampling_row.seed,
            stop_token_ids=parent.stop_token_ids,
            detokenizer=self.detokenizer(parent.request),
            constraint=None if parent.constraint is None else parent.constraint.fork(),
        )
        child.token_ids += parent.output_token_ids
        child.num_cached_tokens = parent.num_cached_tokens
        return child

    def detokenizer(self, request: Request) -> IncrementalDetokenizer:
        params = request.sampling_params
        return IncrementalDetokenizer(
            self._tokenizer,
            params.stop_strings,
            request.stop_regexes,
            sealed=request.sealed,
            skip_special_tokens=params.skip_special_tokens,
            include_stop_str_in_output=params.include_stop_str_in_output,
            min_tokens=params.min_tokens + request.num_healed_tokens,
            num_skipped_chars=len(request.healed_text),
        )

    def _branch(
        self, request: Request, branch: Branch, first_arrival_idx: int, output_token_ids: list[int]
    ) -> Sequence:
        sequence = Sequence(
            request=request,
            sample_idx=branch.idx,
            arrival_idx=first_arrival_idx + branch.idx,
            max_tokens=len(output_token_ids) + branch.longest_run(),
            seed=0,
            stop_token_ids=frozenset(),
            detokenizer=self.detokenizer(request),
        )
        sequence.token_ids += output_token_ids
        sequence.go_on(branch)
        return sequence

    def _sequence(self, request: Request, sample_idx: int, seed: int, stop_token_ids: frozenset[int]) -> Sequence:
        sequence = Sequence(
            request=request,
            sample_idx=sample_idx,
            arrival_idx=self._num_arrivals,
            max_tokens=self._limits.max_tokens(request),
            seed=seed,
            stop_token_ids=stop_token_ids,
            detokenizer=self.detokenizer(request),
            constraint=self._constraint(request, stop_token_ids),
        )
        self._num_arrivals += 1
        return sequence

    def _constraint(self, request: Request, stop_token_ids: frozenset[int]) -> ConstrainedText | None:
        if request.grammar is None:
            return None
        params = request.sampling_params
        # Beams advance one token at a time, and what is reported with its logprob needs a row of logits.
        wants_rows = params.logprobs is not None or params.prompt_logprobs is not None or params.is_best_of
        has_row_per_token = wants_rows or params.use_beam_search
        return ConstrainedText(
            request.grammar,
            self._vocabulary,
            stop_token_ids,
            self._tokenizer.eos_token_ids,
            is_jumping=self._is_jumping and not has_row_per_token,
            closes=request.closes or params.on_incomplete == "close",
        )
