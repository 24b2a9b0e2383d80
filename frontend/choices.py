"""How `select` turns the token log-probabilities of each choice into a decision."""

from __future__ import annotations

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
        unconditional_logprobs: the same without the prompt; None unless the method asks for it.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    unconditional_logprobs: tuple[float, ...] | None = None


class ChoicesMethod(Protocol):
    """A rule of choice. `needs_unconditional` asks for the choices' log-probabilities without the prompt too."""

    @property
    def name(self) -> str: ...

    @property
    def needs_unconditional(self) -> bool: ...

    def scores(self, choices: Sequence[ChoiceLogprobs]) -> list[float]:
        """One score per choice; the highest wins, the first of equals."""
        ...


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@dataclass(frozen=True, slots=True)
class TokenLengthNormalized:
    """Mean log-probability per token. Long choices whose tail is predictable gain from it."""

    name: str = "token_length_normalized"
    needs_unconditional: bool = False

    def scores(self, choices: Sequence[ChoiceLogprobs]) -> list[float]:
        return [_mean(choice.logprobs) for choice in choices]


@dataclass(frozen=True, slots=True)
class SumLogprobs:
    """Log-probability of the whole choice. Short choices gain from it."""

    name: str = "sum"
    needs_unconditional: bool = False

    def scores(self, choices: Sequence[ChoiceLogprobs]) -> list[float]:
        return [sum(choice.logprobs) for choice in choices]


@dataclass(frozen=True, slots=True)
class GreedyTokenSelection:
    """What greedy decoding restricted to the choices would take, token by token.

    Column by column only the choices with the highest log-probability stay. A choice that has ended is carried on
    with its own mean. The score is the number of columns a choice survived.
    """

    name: str = "greedy_token_selection"
    needs_unconditional: bool = False

    def scores(self, choices: Sequence[ChoiceLogprobs]) -> list[float]:
        survived = [0.0] * len(choices)
        left = list(range(len(choices)))
        for column in range(max(len(choice.logprobs) for choice in choices)):
            values = {
                idx: choices[idx].logprobs[column]
                if column < len(choices[idx].logprobs)
                else _mean(choices[idx].logprobs)
                for idx in left
            }
            best = max(values.values())
            left = [idx for idx in left if values[idx] == best]
            for idx in left:
                survived[idx] += 1.0
            if len(left) == 1:
                break
        return survived


@dataclass(frozen=True, slots=True)
class UnconditionalLikelihoodNormalized:
    """Mean per token of how much the prompt raises the choice's log-probability over having no prompt."""

    name: str = "unconditional_likelihood_normalized"
    needs_unconditional: bool = True

    def scores(self, choices: Sequence[ChoiceLogprobs]) -> list[float]:
        results = []
        for choice in choices:
            assert choice.unconditional_logprobs is not None
            pairs = zip(choice.logprobs, choice.unconditional_logprobs, strict=True)
            results.append(_mean([conditional - unconditional for conditional, unconditional in pairs]))
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
