"""Compares what two engines think of the same tokens."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

ALL = "all"


@dataclass(frozen=True)
class Agreement:
    """Attributes:
    nll: mean negative log-likelihood a token, and `reference_nll` that of the reference.
    top_1: share of the places where both have the same likeliest token.
    """

    num_tokens: int
    nll: float
    reference_nll: float
    top_1: float

    @property
    def nll_difference(self) -> float:
        return self.nll - self.reference_nll


def compare(scores: dict[str, Any], reference: dict[str, Any]) -> dict[str, Agreement]:
    """By kind of text, and over all of it.

    Args:
        scores, reference: results of `quality_job.run`, of the same windows.
    """
    assert scores.keys() == reference.keys()
    agreements = {kind: _agreement([scores[kind]], [reference[kind]]) for kind in scores}
    agreements[ALL] = _agreement(list(scores.values()), list(reference.values()))
    return agreements


def _agreement(parts: list[dict[str, Any]], reference_parts: list[dict[str, Any]]) -> Agreement:
    nll = [value for part in parts for value in part["nll"]]
    reference_nll = [value for part in reference_parts for value in part["nll"]]
    top = [token_id for part in parts for token_id in part["top"]]
    reference_top = [token_id for part in reference_parts for token_id in part["top"]]
    assert len(nll) == len(reference_nll) == len(top) == len(reference_top)
    num_equal = sum(own == other for own, other in zip(top, reference_top, strict=True))
    return Agreement(len(nll), statistics.fmean(nll), statistics.fmean(reference_nll), num_equal / len(top))
