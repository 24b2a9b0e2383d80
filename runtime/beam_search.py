"""Beam search as pure logic: which beams live on, which token lists are complete, and when nothing better can come.

There is no model here. Each step `BeamSearch` is given the likeliest next tokens of every live beam and answers with
the beams to run next. On the same logprobs its results are those of `generate(num_beams=beam_width, do_sample=False)`
in transformers 5, to the last bit, so sums and scores are kept in single precision as there.

A live *beam* is a token list that may still grow, a *hypothesis* one that is complete: it ends in a stop token or has
max_tokens tokens. Its score is its cumulative logprob / length ** length_penalty. The length counts generated tokens
only, the stop token among them; hypotheses of different lengths compete by score, beams by their cumulative logprob.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .outputs import FinishReason

EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True, slots=True)
class Beam:
    """One beam that lives on.

    Attributes:
        parent_idx: which of the beams that were live before the step it continues; several may have the same parent.
        token_id: the token to append to that parent's.
        cumulative_logprob: sum over its generated tokens, this one included.
    """

    parent_idx: int
    token_id: int
    cumulative_logprob: float


@dataclass(frozen=True, slots=True)
class BeamStep:
    """What one step decided.

    Attributes:
        beams: the live beams, best first, at most beam_width; none if the search is over. The next `advance` expects
            candidates in this order. A former beam that is nobody's parent is dropped.
    """

    beams: tuple[Beam, ...]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One complete result.

    Attributes:
        token_ids: the generated tokens, a stop token included.
        score: cumulative_logprob / len(token_ids) ** length_penalty.
        finish_reason: STOP if the last token is a stop token, else LENGTH.
    """

    token_ids: tuple[int, ...]
    score: float
    cumulative_logprob: float
    finish_reason: FinishReason


class BeamSearch:
    """The state of one search. It starts with one live beam, the prompt, which has generated nothing.

    Of equal candidates the one of the better beam comes first, and within a beam the one listed first; of equal
    hypotheses the one found first. (transformers leaves the order of equals to torch.topk.)

    A search that ran its course has beam_width hypotheses; fewer only where there are no more token lists of a
    probability above 0, as with a vocabulary of two tokens.

    Args:
        beam_width: most live beams and most hypotheses kept, at least 1. 1 is greedy decoding: the first hypothesis
            ends it.
        max_tokens: most tokens to generate, at least 1, the context limit applied.
        stop_token_ids: each of them completes a beam.
        length_penalty: finite; above 0 favours long results, below 0 short ones.
        early_stopping: once there are beam_width hypotheses, the search ends: at once (True); when the best beam would
            not beat the worst of them if it were complete now (False); when it could not even with all its future
            tokens certain, at the length that is best for it ("never").
    """

    def __init__(
        self,
        *,
        beam_width: int,
        max_tokens: int,
        stop_token_ids: Iterable[int] = (),
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
    ) -> None:
        assert beam_width >= 1
        assert max_tokens >= 1
        self.beam_width = beam_width
        self.max_tokens = max_tokens
        self.stop_token_ids = frozenset(stop_token_ids)
        self.length_penalty = length_penalty
        self._ends_when_full = early_stopping is True or beam_width == 1
        self._hopes_for_max_tokens = early_stopping == "never" and length_penalty > 0
        self._num_tokens = 0
        self._live_token_ids: list[tuple[int, ...]] = [()]
        self._live_logprobs = np.zeros(1, dtype=np.float32)
        self._hypotheses: list[Hypothesis] = []

    @property
    def num_candidates(self) -> int:
        """How many of its likeliest next tokens `advance` needs of each live beam.

        A step looks at the beam_width best candidates and at the beam_width best that are no stop tokens. No beam has
        more than beam_width of the latter among them, nor more stop tokens than there are.
        """
        return self.beam_width + len(self.stop_token_ids)

    @property
    def is_finished(self) -> bool:
        """Whether the search is over: there are no live beams."""
        return not self._live_token_ids

    @property
    def live_token_ids(self) -> list[tuple[int, ...]]:
        """What each live beam has generated, best beam first."""
        return list(self._live_token_ids)

    @property
    def hypotheses(self) -> list[Hypothesis]:
        """The best so far, highest score first, at most beam_width; the result once `is_finished`."""
        return list(self._hypotheses)

    def advance(self, candidates: Sequence[Sequence[tuple[int, float]]]) -> BeamStep:
        """Append one token to the beams.

        Args:
            candidates: for each live beam, in order, its `num_candidates` likeliest next tokens as (token id, logprob),
                likeliest first; all tokens if the vocabulary is smaller. More are allowed and change nothing. No
                logprob is NaN; a token of -inf is never taken.

        Returns:
            The beams to compute next. Cost: sorting all candidates, and copying the tokens of the beams that live on.
        """
        assert not self.is_finished
        assert len(candidates) == len(self._live_token_ids)
        self._num_tokens += 1
        is_last = self._num_tokens == self.max_tokens
        beams: list[Beam] = []
        for rank, beam in enumerate(self._best_first(candidates)):
            if is_last or beam.token_id in self.stop_token_ids:
                if rank < self.beam_width:
                    self._add_hypothesis(beam)
            elif len(beams) < self.beam_width:
                beams.append(beam)
            if rank + 1 >= self.beam_width and (is_last or len(beams) == self.beam_width):
                break
        if beams and self._is_decided(beams[0]):
            beams = []
        self._live_token_ids = [(*self._live_token_ids[beam.parent_idx], beam.token_id) for beam in beams]
        self._live_logprobs = np.array([beam.cumulative_logprob for beam in beams], dtype=np.float32)
        return BeamStep(tuple(beams))

    def _best_first(self, candidates: Sequence[Sequence[tuple[int, float]]]) -> Iterable[Beam]:
        """All continuations of a probability above 0 by descending cumulative logprob."""
        flat = [(parent_idx, token_id) for parent_idx, row in enumerate(candidates) for token_id, _ in row]
        logprobs = np.array([logprob for row in candidates for _, logprob in row], dtype=np.float32)
        logprobs += np.repeat(self._live_logprobs, [len(row) for row in candidates])
        assert not np.isnan(logprobs).any()
        for idx in np.argsort(-logprobs, kind="stable").tolist():
            cumulative_logprob = float(logprobs[idx])
            if cumulative_logprob == -np.inf:
                return
            parent_idx, token_id = flat[idx]
            yield Beam(parent_idx, token_id, cumulative_logprob)

    def _add_hypothesis(self, beam: Beam) -> None:
        """Keep it if it is among the best."""
        score = self._score(beam, self._num_tokens)
        if len(self._hypotheses) == self.beam_width and score <= self._hypotheses[-1].score:
            return
        token_ids = (*self._live_token_ids[beam.parent_idx], beam.token_id)
        reason = FinishReason.STOP if beam.token_id in self.stop_token_ids else FinishReason.LENGTH
        hypothesis = Hypothesis(token_ids, score, beam.cumulative_logprob, reason)
        insort(self._hypotheses, hypothesis, key=lambda other: -other.score)
        del self._hypotheses[self.beam_width :]

    def _is_decided(self, best: Beam) -> bool:
        """Whether the search ends although there are live beams, of which `best` is the first."""
        if len(self._hypotheses) < self.beam_width:
            return False
        if self._ends_when_full:
            return True
        length = self.max_tokens if self._hopes_for_max_tokens else self._num_tokens
        return self._score(best, length) <= self._hypotheses[-1].score

    def _score(self, beam: Beam, length: int) -> float:
        return float(np.float32(beam.cumulative_logprob) / np.float32(length**self.length_penalty))
