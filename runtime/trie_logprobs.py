"""TrieLogprobs: what is known of a trie of continuations, row of logits by row of logits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from .choice_trie import BranchPlan, ChoiceTrie, plan_branches
from .outputs import ContinuationLogprobs
from .sampler import Sampler


class TrieLogprobs:
    """The log-probabilities of some continuations while they are computed.

    Args:
        continuations: token ids, none empty.
        has_prompt: something stands before them; if not, nothing is known of a first token.

    Attributes:
        plan: the branches that give all rows.
        num_open_branches: those not computed to their end yet.
    """

    def __init__(self, continuations: Sequence[Sequence[int]], *, has_prompt: bool) -> None:
        self._trie = ChoiceTrie(continuations)
        self.plan: BranchPlan = plan_branches(self._trie, has_prompt=has_prompt)
        self.num_open_branches = self.plan.num_branches
        self._logprobs: list[float | None] = [None] * len(self._trie.children)

    def record(self, nodes: Sequence[int], logits: Tensor, sampler: Sampler) -> None:
        """Read the log-probabilities of the children of some nodes from their rows of logits, fp32 [nodes, vocab]."""
        assert len(nodes) == logits.shape[0]
        rows: list[int] = []
        token_ids: list[int] = []
        children: list[int] = []
        for row, node in enumerate(nodes):
            for token_id, child in self._trie.children[node].items():
                rows.append(row)
                token_ids.append(token_id)
                children.append(child)
        for child, logprob in zip(children, sampler.token_logprobs(logits, rows, token_ids), strict=True):
            self._logprobs[child] = logprob

    def result(self) -> list[ContinuationLogprobs]:
        """One entry per continuation, in the order they were given. All branches must be computed."""
        assert self.num_open_branches == 0
        return [
            ContinuationLogprobs(tuple(self._logprobs[node] for node in path), self._end_logprob(path[-1]))
            for path in self._trie.paths
        ]

    def _end_logprob(self, node: int) -> float:
        """That none of the node's children follows. 0 if it has none: nothing longer is asked about."""
        children = self._trie.children[node].values()
        if not children:
            return 0.0
        known = [self._logprobs[child] for child in children]
        going_on = math.fsum(math.exp(logprob) for logprob in known if logprob is not None)
        return math.log1p(-going_on) if going_on < 1.0 else -math.inf
