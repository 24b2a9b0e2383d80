"""Expressions for scalars and property names, in the notation of terminals of llguidance's Lark dialect."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction
from math import ceil, floor, gcd, lcm

from ..regex.char_sets import ALL_CHARS, CharSet, utf8_prefix_chars
from .constraints import Bools, Null, Numbers, Strings
from .json_chars import quoted_class, writable_chars
from .numbers import (
    ANY_INTEGER,
    ANY_NUMBER,
    MAX_INTEGER_DIGITS,
    SIGNIFICANT_DIGITS,
    decimal_range,
    integer_range,
    scaled,
    spell,
)
from .text_pattern import TextPattern, repeat_suffix

MAX_LISTED_MULTIPLES = 1000
# The engine needs a state for every remainder.
MAX_DIVISOR = 1000
# Nobody waits for longer strings; the engines have limits of their own.
MAX_STRING_LEN = 100_000


class CannotEnforceError(ValueError):
    """Values of this kind cannot be written as an expression. `keyword` is why."""

    def __init__(self, keyword: str, reason: str) -> None:
        super().__init__(reason)
        self.keyword = keyword


@dataclass(frozen=True)
class NameSet:
    """Property names: those that match all of `matching` and none of `others`, but are not `taken`, and satisfy one of
    `allowed`; where that is empty, any will do."""

    matching: tuple[TextPattern, ...] = ()
    others: tuple[TextPattern, ...] = ()
    taken: tuple[str, ...] = ()
    allowed: tuple[Strings, ...] = ()

    @property
    def is_surely_not_empty(self) -> bool:
        return not self.matching and not self.others and not self.allowed


def literal(text: str) -> str:
    """A text, as the notation has it. JSON's writer leaves DEL as it is, and the notation does not."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def json_literal(text: str) -> str:
    """A JSON string, with its quotes, as the notation has it. The only spelling that is ever generated."""
    return literal(json.dumps(text, ensure_ascii=False))


def regex(expression: str) -> str:
    return "/" + expression.replace("/", "\\/") + "/"


class TextTerminals:
    """Expressions for strings and property names, of characters that can be spelled."""

    def __init__(self, spellable: CharSet) -> None:
        self._chars = writable_chars(spellable)
        # Whole strings of any characters are many times faster than of almost any: the engine has them prepared. A
        # character whose first byte is no token cannot be begun, so allowing it does no harm.
        self._character = quoted_class(self._chars if _has_dead_ends(spellable) else ALL_CHARS)
        self._any_string = regex(f'"(?:{self._character})*"')

    def can_write(self, text: str) -> bool:
        return all(char in self._chars for char in text)

    def scalar(self, scalar: Null | Bools | Strings) -> str | None:
        """Values of a type; None where there are none."""
        match scalar:
            case Null():
                return '"null"'
            case Bools(values):
                return either([f'"{json.dumps(value)}"' for value in sorted(values)])
            case Strings():
                return self.string(scalar)

    def string(self, strings: Strings) -> str | None:
        if strings.values is not None:
            values = [json_literal(value) for value in strings.values if self.can_write(value)]
            return either(values) if values else None
        if strings.min_len > MAX_STRING_LEN:
            raise CannotEnforceError("minLength", f"strings longer than {MAX_STRING_LEN} characters are not generated")
        parts = self._patterns(strings.patterns)
        if parts is None:
            return None
        if strings.max_len is not None or strings.min_len:
            max_len = None if strings.max_len is None else min(strings.max_len, MAX_STRING_LEN)
            parts.append(regex(f'"(?:{self._character}){repeat_suffix(strings.min_len, max_len)}"'))
        parts = parts or [self._any_string]
        if strings.excluded:
            parts.append(f"~{either([json_literal(value) for value in strings.excluded])}")
        return both(parts)

    def name(self, names: NameSet) -> str | None:
        """Property names; None where there are none."""
        parts = self._patterns(names.matching)
        if parts is None:
            return None
        if names.allowed:
            allowed = [found for found in map(self.string, names.allowed) if found is not None]
            if not allowed:
                return None
            parts.append(either(allowed))
        parts = parts or [self._any_string]
        parts += [f"~{part}" for pattern in names.others for part in self._patterns((pattern,)) or ()]
        if names.taken:
            parts.append(f"~{either([json_literal(name) for name in names.taken])}")
        return both(parts)

    def _patterns(self, patterns: Sequence[TextPattern]) -> list[str] | None:
        parts = [pattern.quoted(self._chars) for pattern in patterns]
        found = [regex(part) for part in parts if part is not None]
        return found if len(found) == len(parts) else None


def _has_dead_ends(spellable: CharSet) -> bool:
    """Whether some, but not all, of the characters that share a first byte can be spelled."""
    blocks = [utf8_prefix_chars(bytes([lead])) for lead in range(0xC2, 0xF5)]
    return any((block & spellable) not in (block, CharSet(())) for block in blocks)


def either(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({' | '.join(parts)})"


def both(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({' & '.join(parts)})"


def number_terminal(numbers: Numbers) -> str | None:
    """An expression for numbers; None where there are none that are written.

    Numbers are written in one way: no exponent unless anything goes, whole ones without a point where they are listed.

    Raises:
        CannotEnforceError: multiples that form no regular set of a small size. See `multiples_schema`.
    """
    if numbers.values is not None:
        return either([literal(spell(value)) for value in numbers.values])
    if numbers == Numbers():
        return regex(ANY_NUMBER)
    if numbers == Numbers(is_integer=True):
        return regex(ANY_INTEGER)
    divisor = _divisor(numbers)
    if divisor is not None and (listed := _listed_multiples(numbers, divisor)) is not None:
        return either([literal(spell(value)) for value in listed]) if listed else None
    if divisor is None or divisor.denominator != 1 or divisor == 1:
        is_integer = numbers.is_integer or divisor == 1
        expression = _integers(numbers) if is_integer else _decimals(numbers, divisor)
        return None if expression is None else both([*expression, *_not_excluded(numbers)])
    raise CannotEnforceError("multipleOf", "multiples are no expression")


def multiples_schema(numbers: Numbers) -> str | None:
    """A schema of llguidance's own for whole multiples, which no short expression describes; None for other numbers."""
    if numbers.values is not None:
        return None
    divisor = _divisor(numbers)
    if divisor is None or divisor.denominator != 1 or divisor == 1 or _listed_multiples(numbers, divisor) is not None:
        return None
    if numbers.excluded or divisor > MAX_DIVISOR:
        raise CannotEnforceError("multipleOf", "multiples of so large a number, or all but some, cannot be enforced")
    low, high = _integer_bounds(numbers, SIGNIFICANT_DIGITS)
    schema = {"type": "integer", "multipleOf": int(divisor), "minimum": low, "maximum": high}
    return f"%json {json.dumps(schema)}"


def _divisor(numbers: Numbers) -> Fraction | None:
    """The number whose multiples are meant."""
    divisors = [Fraction(value) for value in numbers.multiples]
    if not divisors:
        return None
    if numbers.is_integer:
        divisors.append(Fraction(1))
    result = divisors[0]
    for other in divisors[1:]:
        numerator = lcm(result.numerator * other.denominator, other.numerator * result.denominator)
        result = Fraction(numerator, result.denominator * other.denominator)
    return result


def _listed_multiples(numbers: Numbers, divisor: Fraction) -> list[Decimal] | None:
    """All of them, where they are few."""
    if numbers.low is None or numbers.high is None:
        return None
    first, last = ceil(Fraction(numbers.low) / divisor), floor(Fraction(numbers.high) / divisor)
    if last - first >= MAX_LISTED_MULTIPLES:
        return None
    values = [_exact(divisor * count) for count in range(first, last + 1)]
    return [value for value in values if numbers.allows(value)]


def _exact(value: Fraction) -> Decimal:
    num_digits = 0
    while value.denominator != 1:
        value *= 10
        num_digits += 1
    return Decimal(value.numerator).scaleb(-num_digits)


def _integer_bounds(numbers: Numbers, num_digits: int) -> tuple[int, int]:
    largest = 10**num_digits - 1
    low = -largest if numbers.low is None else max(scaled(numbers.low, 0, ROUND_CEILING), -largest)
    high = largest if numbers.high is None else min(scaled(numbers.high, 0, ROUND_FLOOR), largest)
    if numbers.is_low_excluded and low == numbers.low:
        low += 1
    if numbers.is_high_excluded and high == numbers.high:
        high -= 1
    return low, high


def _integers(numbers: Numbers) -> list[str] | None:
    low, high = _integer_bounds(numbers, MAX_INTEGER_DIGITS)
    return [regex(integer_range(low, high))] if low <= high else None


def _decimals(numbers: Numbers, divisor: Fraction | None) -> list[str] | None:
    bounds = [bound for bound in (numbers.low, numbers.high) if bound is not None]
    largest = 10**SIGNIFICANT_DIGITS - 1
    num_whole = max((len(str(abs(int(bound)))) for bound in bounds if abs(bound) <= largest), default=1)
    num_fraction = max(1, SIGNIFICANT_DIGITS - num_whole)
    extra: list[str] = []
    if divisor is not None:
        inverse = 1 / divisor
        if inverse.denominator != 1 or inverse > MAX_LISTED_MULTIPLES * 1000:
            raise CannotEnforceError("multipleOf", "only whole numbers and their inverses, such as 0.01, are enforced")
        if set(str(inverse.numerator)) <= {"0", "1"} and gcd(inverse.numerator, 10**12) == inverse.numerator:
            num_fraction = len(str(inverse.numerator)) - 1
        elif inverse > MAX_LISTED_MULTIPLES:
            raise CannotEnforceError("multipleOf", "it is too small to be enforced")
        else:
            endings = [str(_exact(divisor * count))[2:] for count in range(1, inverse.numerator)]
            extra.append(regex(f"-?[0-9]+(?:\\.(?:0|{'|'.join(endings)})0*)?"))
    low = Decimal(-largest) if numbers.low is None else max(numbers.low, Decimal(-largest))
    high = Decimal(largest) if numbers.high is None else min(numbers.high, Decimal(largest))
    step = Decimal(1).scaleb(-num_fraction)
    if numbers.is_low_excluded and low == numbers.low:
        low = step.scaleb(0) * (scaled(low, num_fraction, ROUND_FLOOR) + 1)
    if numbers.is_high_excluded and high == numbers.high:
        high = step.scaleb(0) * (scaled(high, num_fraction, ROUND_CEILING) - 1)
    expression = decimal_range(low, high, num_fraction)
    return None if expression is None else [regex(expression), *extra]


def _not_excluded(numbers: Numbers) -> list[str]:
    spellings = []
    for value in numbers.excluded:
        spelled = spell(value).replace(".", "\\.")
        spellings.append(regex(f"{spelled}0*" if "." in spelled else f"{spelled}(?:\\.0+)?"))
    return [f"~{either(spellings)}"] if spellings else []
