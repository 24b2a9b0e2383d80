"""How `select` turns the token log-probabilities of each choice into a decision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .errors import InvalidProgramError


@dataclass(frozen=True, slots=True)
class ChoiceLogprobs:
    """What the model says about one choice.

    Attributes:
        text: the choice.
        token_ids: the tokens that were scored: those of the choice, from where its tokenisation leaves the prompt's.
        logprobs: log-probability of each of them given everything before it.
        end_logprob: log-probability that the text, having come to the end of this choice, does not go on into a longer
            one: log(1 - the sum of p(next token) over the choices that begin with this one's tokens). 0 if none does.
        unconditional_logprobs: the same without the prompt; None unless the method asks for it.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    end_logprob: float = 0.0
    unconditional_logprobs: tuple[float, ...] | None = None

    @property
    def sum_logprob(self) -> float:
        return sum(self.logprobs)

    @property
    def mean_logprob(self) -> float:
        return self.sum_logprob / len(self.logprobs)


class ChoicesMethod(Protocol):
    """A rule of choice. `needs_unconditional` asks for the choices' log-probabilities without the prompt too."""

    @property
    def name(self) -> str: ...

    @property
    def needs_unconditional(self) -> bool: ...

    def scores(self, choices: Sequence[ChoiceLogprobs]) -> list[float]:
        """One score per choice; the highest wins, the first of equals."""
        ...


@dataclass(frozen=True, slots=True)
class TokenLengthNormalized:
    """Mean log-probability per token, without the end. Long choices whose tail is predictable gain from it."""

    name: str = "token_length_normalized"
    needs_unconditional: bool = False

    def scores(self, choices: Sequence[ChoiceLogprobs]) -> list[float]:
        return [choice.mean_logprob for choice in choices]


@dataclass(frozen=True, slots=True)
class SumLogprobs:
    """Log-probability that the text goes on with this choice and, where it is the beginning of longer ones, with none
    of them. These are exclusive events, so the probabilities of all choices sum to at most 1. Short choices gain from
    it.
    """

    name: str = "sum"
    needs_unconditional: bool = False

    def scores(self, choices: Sequence[ChoiceLogprobs]) -> list[float]:
        return [choice.sum_logprob + choice.end_logprob for choice in choices]


@dataclass(frozen=True, slots=True)
class GreedyTokenSelection:
    """What greedy decoding restricted to the choices would take, token by token.

    In each round the choices that are left agree so far, and the likeliest next token keeps those that go on with it.
    Where one of them has ended, its end is one more thing that may come next, of the probability that none of the
    others' tokens does (`end_logprob`). Of equally likely ones that of the first choice is taken. The rounds are over
    when one choice is left. The score of a choice is the number of rounds that it survived.
    """

    name: str = "greedy_token_selection"
    needs_unconditional: bool = False

    def scores(self, choices: Sequence[ChoiceLogprobs]) -> list[float]:
        num_survived = [0.0] * len(choices)
        left = list(range(len(choices)))
        column = 0
        while len(left) > 1:
            best = max(left, key=lambda idx: _logprob_at(choices[idx], column))
            next_token_id = _token_id_at(choices[best], column)
            left = [idx for idx in left if _token_id_at(choices[idx], column) == next_token_id]
            for idx in left:
                num_survived[idx] += 1.0
            if next_token_id is None:
                break
            column += 1
        return num_survived


def _logprob_at(choice: ChoiceLogprobs, column: int) -> float:
    """Of the token in that place, or of the end."""
    return choice.logprobs[column] if column < len(choice.logprobs) else choice.end_logprob


def _token_id_at(choice: ChoiceLogprobs, column: int) -> int | None:
    return choice.token_ids[column] if column < len(choice.token_ids) else None


@dataclass(frozen=True, slots=True)
class UnconditionalLikelihoodNormalized:
    """Mean per token of how much the prompt raises the choice's log-probability over having no prompt.

    The end does not count. Where a model has no begin token, nothing is known of a first token without a prompt: 0
    stands for it.
    """

    name: str = "unconditional_likelihood_normalized"
    needs_unconditional: bool = True

    def scores(self, choices: Sequence[ChoiceLogprobs]) -> list[float]:
        results = []
        for choice in choices:
            assert choice.unconditional_logprobs is not None
            pairs = zip(choice.logprobs, choice.unconditional_logprobs, strict=True)
            results.append(
                sum(conditional - unconditional for conditional, unconditional in pairs) / len(choice.logprobs)
            )
        return results


token_length_normalized = TokenLengthNormalized()
sum_logprobs = SumLogprobs()
greedy_token_selection = GreedyTokenSelection()
unconditional_likelihood_normalized = UnconditionalLikelihoodNormalized()

_METHODS: dict[str, ChoicesMethod] = {
    method.name: method
    for method in (
        token_length_normalized,
        sum_logprobs,
        greedy_token_selection,
        unconditional_likelihood_normalized,
    )
}


def choice_probabilities(choices: Sequence[ChoiceLogprobs]) -> list[float]:
    """How likely each is among the choices: `sum` as probabilities, scaled to sum to 1. 0 for all if none can be."""
    sums = sum_logprobs.scores(choices)
    peak = max(sums)
    if peak == -math.inf:
        return [0.0] * len(sums)
    weights = [math.exp(value - peak) for value in sums]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def resolve_choices_method(method: ChoicesMethod | str | None) -> ChoicesMethod:
    """The method itself, or the one of that name; None is token_length_normalized.

    Raises:
        InvalidProgramError: no method has that name.
    """
    if method is None:
        return token_length_normalized
    if not isinstance(method, str):
        return method
    if method not in _METHODS:
        raise InvalidProgramError(f"unknown choices method {method!r}; known: {', '.join(sorted(_METHODS))}")
    return _METHODS[method]
