"""Filter: finds the answer in what a model wrote, and says whether it is right."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Literal

from ..regex_outline import MAX_REGEX_CHARS, RegexSyntaxError, outline
from ..suggestions import did_you_mean, refuses_unknown_fields
from .errors import InvalidTaskError

Take = Literal["first", "last"]
Compare = Literal["text", "number"]

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.IGNORECASE)
_PUNCTUATION = str.maketrans("", "", string.punctuation)
MAX_SEARCHED_CHARS = 100_000
"""A pattern looks at no more of a text, which is far more than a model's answer has. `re` backtracks and cannot be
interrupted: a pattern that is ambiguous, such as (a+)+b, may take very long even so."""

_MAX_REPEATS = 10_000
_MAX_NUMBER_LEN = 60
"""Longer ones are no answers, and Decimal would take exponents of any size."""

NORMALISATIONS: Mapping[str, Callable[[str], str]] = {
    "strip": str.strip,
    "lower": str.casefold,
    "punctuation": lambda text: text.translate(_PUNCTUATION),
    "articles": lambda text: _ARTICLES.sub(" ", text),
    "whitespace": lambda text: " ".join(text.split()),
    "number": lambda text: _plain_number(text) or text,
}
"""What may be done to a text before it is compared, by name."""


@refuses_unknown_fields(InvalidTaskError)
@dataclass(frozen=True, slots=True)
class Filter:
    """One way to read an answer out of a generated text; a task may have several, each a metric of its own.

    Attributes:
        name: of the metric.
        pattern: a regular expression. The answer is its first group that matched, else all of the match. None takes the
            whole text. Of a text with more than MAX_SEARCHED_CHARS characters only so many are searched: the last ones
            where `take` is "last".
        take: which match counts.
        normalise: keys of NORMALISATIONS, done in this order to the answer and to the target.
        compare: "text" wants equal texts; "number" equal values, whatever commas, currency or trailing zeros they have.
        target_pattern: finds the answer in the target likewise, where that is a worked solution. None takes all of it.
        ignore_case: of both patterns.

    Raises:
        InvalidTaskError: a value is not allowed, or a pattern is no regular expression.
    """

    name: str = "exact_match"
    pattern: str | None = None
    take: Take = "first"
    normalise: Sequence[str] = ("strip",)
    compare: Compare = "text"
    target_pattern: str | None = None
    ignore_case: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidTaskError(f"a filter's name must be a non-empty string, not {self.name!r}")
        for option, allowed in (("take", ("first", "last")), ("compare", ("text", "number"))):
            value = self.take if option == "take" else self.compare
            if value not in allowed:
                raise InvalidTaskError(
                    f"filter {self.name!r}: {option}={value!r} is not allowed: use {' or '.join(map(repr, allowed))}"
                )
        if not isinstance(self.ignore_case, bool):
            raise InvalidTaskError(f"filter {self.name!r}: ignore_case={self.ignore_case!r} must be true or false")
        self._check_normalise()
        for pattern in (self.pattern, self.target_pattern):
            if pattern is not None:
                self._compile(pattern)

    def _check_normalise(self) -> None:
        if isinstance(self.normalise, str) or not isinstance(self.normalise, Sequence):
            raise InvalidTaskError(f"filter {self.name!r}: normalise={self.normalise!r} must be a list of names")
        object.__setattr__(self, "normalise", tuple(self.normalise))
        for step in self.normalise:
            if step not in NORMALISATIONS:
                raise InvalidTaskError(
                    f"filter {self.name!r}: unknown normalisation {step!r}{did_you_mean(str(step), NORMALISATIONS)} "
                    f"known: {', '.join(NORMALISATIONS)}"
                )

    def _compile(self, pattern: str) -> re.Pattern[str]:
        if not isinstance(pattern, str) or len(pattern) > MAX_REGEX_CHARS:
            raise InvalidTaskError(
                f"filter {self.name!r}: {pattern!r:.80} is no regular expression of at most {MAX_REGEX_CHARS:,} "
                "characters"
            )
        try:
            if outline(pattern).max_repeats > _MAX_REPEATS:
                raise InvalidTaskError(
                    f"filter {self.name!r}: the repeats of {pattern!r:.200} multiply to more than {_MAX_REPEATS:,}"
                )
            return re.compile(pattern, re.IGNORECASE if self.ignore_case else 0)
        except (re.error, RegexSyntaxError, RecursionError, OverflowError) as error:
            raise InvalidTaskError(f"filter {self.name!r}: {pattern!r} is no regular expression: {error}") from None

    def extract(self, text: str) -> str | None:
        """The answer in a generated text, normalised; None if there is none."""
        return self._find(self.pattern, text)

    def is_right(self, answer: str | None, targets: Sequence[str]) -> bool:
        """Whether an extracted answer is one of the targets."""
        if answer is None:
            return False
        references = [self._find(self.target_pattern, target) for target in targets]
        return any(reference is not None and self._is_same(answer, reference) for reference in references)

    def check_target(self, target: str) -> None:
        """
        Raises:
            InvalidTaskError: nothing could ever be equal to this target.
        """
        reference = self._find(self.target_pattern, target)
        if reference is None:
            raise InvalidTaskError(
                f"filter {self.name!r}: {self.target_pattern!r} does not match the target {target!r}"
            )
        if self.compare == "number" and _number(reference) is None:
            raise InvalidTaskError(f"filter {self.name!r} compares numbers, and the target {reference!r} is none")

    def _find(self, pattern: str | None, text: str) -> str | None:
        found: str | None = text
        if pattern is not None:
            part = text[-MAX_SEARCHED_CHARS:] if self.take == "last" else text[:MAX_SEARCHED_CHARS]
            matches = list(self._compile(pattern).finditer(part))
            if not matches:
                return None
            match = matches[0 if self.take == "first" else -1]
            found = next((group for group in match.groups() if group is not None), match[0])
        assert found is not None
        for step in self.normalise:
            found = NORMALISATIONS[step](found)
        return found

    def _is_same(self, answer: str, reference: str) -> bool:
        if self.compare == "text":
            return answer == reference
        left, right = _number(answer), _number(reference)
        return left is not None and left == right


def _number(text: str) -> Decimal | None:
    """What a text like " $1,234.50." is worth; None if it is no number."""
    plain = _plain_number(text)
    return None if plain is None else Decimal(plain)


def _plain_number(text: str) -> str | None:
    """The number with nothing around it; None if it is none. Thousands' commas are dropped."""
    plain = text.strip().rstrip(".").strip("$€£% ").replace(",", "").removeprefix("-$").strip()
    if text.strip().startswith("-$"):
        plain = f"-{plain.removeprefix('-')}"
    if len(plain) > _MAX_NUMBER_LEN or not plain.isascii() or "_" in plain:
        return None
    try:
        value = Decimal(plain)
    except InvalidOperation:
        return None
    return plain if value.is_finite() and abs(value.adjusted()) <= _MAX_NUMBER_LEN else None
