"""What a schema says of the values of one type, and how two such statements are joined.

A schema is a list of these: a value is valid if it satisfies one of them. What stands inside of arrays and objects is
named by *conjunctions* of places in the document, which are expanded when they are needed; so recursive schemas are
finite, and to join two objects is to join the names of what is inside.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, TypeVar

from .text_pattern import TextPattern

T = TypeVar("T")


PlaceKind = Literal["schema", "value", "not"]


@dataclass(frozen=True, order=True, slots=True)
class Place:
    """A place in the document: of a schema, of one that must not hold, or of a value (in `const`) to be met exactly."""

    pointer: str
    kind: PlaceKind = "schema"


MAX_ALTERNATIVES = 1000


class TooManyAlternativesError(ValueError):
    """Combining alternatives with alternatives gives more than MAX_ALTERNATIVES."""


# All of these hold. None of them: any JSON.
Conjunction = tuple[Place, ...]
ANYTHING: Conjunction = ()
# The schema `false`; no pointer is spelled like this.
NEVER: Conjunction = (Place("never"),)


def joined(*conjunctions: Conjunction) -> Conjunction:
    return tuple(sorted({place for conjunction in conjunctions for place in conjunction}))


@dataclass(frozen=True, slots=True)
class Null:
    pass


@dataclass(frozen=True, slots=True)
class Bools:
    values: frozenset[bool]


@dataclass(frozen=True, slots=True)
class Numbers:
    """`values` is None where it is not a list of numbers; bounds are None where there are none."""

    is_integer: bool = False
    low: Decimal | None = None
    high: Decimal | None = None
    is_low_excluded: bool = False
    is_high_excluded: bool = False
    multiples: tuple[Decimal, ...] = ()
    values: tuple[Decimal, ...] | None = None
    excluded: tuple[Decimal, ...] = ()

    def allows(self, value: Decimal) -> bool:
        """Whether a number satisfies everything but `values`."""
        if value in self.excluded:
            return False
        if self.is_integer and value != value.to_integral_value():
            return False
        if self.low is not None and (value < self.low or (self.is_low_excluded and value == self.low)):
            return False
        if self.high is not None and (value > self.high or (self.is_high_excluded and value == self.high)):
            return False
        return all(is_multiple(value, divisor) for divisor in self.multiples)


@dataclass(frozen=True, slots=True)
class Strings:
    min_len: int = 0
    max_len: int | None = None
    patterns: tuple[TextPattern, ...] = ()
    values: tuple[str, ...] | None = None
    excluded: tuple[str, ...] = ()

    def allows(self, text: str) -> bool:
        """Whether a text satisfies everything but `values`."""
        if text in self.excluded:
            return False
        if len(text) < self.min_len or (self.max_len is not None and len(text) > self.max_len):
            return False
        return all(pattern.matches(text) for pattern in self.patterns)


@dataclass(frozen=True, slots=True)
class ArrayPart:
    """What one schema says of the items of an array."""

    prefix: tuple[Conjunction, ...]
    rest: Conjunction

    def item(self, idx: int) -> Conjunction:
        return self.prefix[idx] if idx < len(self.prefix) else self.rest


@dataclass(frozen=True, slots=True)
class Arrays:
    parts: tuple[ArrayPart, ...] = ()
    min_items: int = 0
    max_items: int | None = None

    @property
    def num_prefix(self) -> int:
        return max((len(part.prefix) for part in self.parts), default=0)

    def item(self, idx: int) -> Conjunction:
        return joined(*(part.item(idx) for part in self.parts))

    @property
    def rest(self) -> Conjunction:
        return joined(*(part.rest for part in self.parts))


@dataclass(frozen=True, slots=True)
class ObjectPart:
    """What one schema says of the properties of an object. `additional` is for the names nothing else covers."""

    properties: tuple[tuple[str, Conjunction], ...]
    patterns: tuple[tuple[TextPattern, Conjunction], ...]
    additional: Conjunction

    def of_name(self, name: str) -> Conjunction:
        found = [child for own, child in self.properties if own == name]
        found += [child for pattern, child in self.patterns if pattern.matches(name)]
        return joined(*found) if found else self.additional

    def of_unnamed(self, matching: frozenset[TextPattern]) -> Conjunction:
        """For a name that no property has and that these patterns match."""
        found = [child for pattern, child in self.patterns if pattern in matching]
        return joined(*found) if found else self.additional


@dataclass(frozen=True, slots=True)
class Objects:
    parts: tuple[ObjectPart, ...] = ()
    required: tuple[str, ...] = ()
    min_properties: int = 0
    max_properties: int | None = None
    names: Conjunction = ANYTHING

    def of_name(self, name: str) -> Conjunction:
        return joined(*(part.of_name(name) for part in self.parts))

    @property
    def named(self) -> list[str]:
        """Every name that is spoken of, in the order of the schema."""
        ordered = dict.fromkeys(name for part in self.parts for name, _ in part.properties)
        return list(ordered | dict.fromkeys(self.required))

    @property
    def patterns(self) -> list[TextPattern]:
        return list(dict.fromkeys(pattern for part in self.parts for pattern, _ in part.patterns))


Constraint = Null | Bools | Numbers | Strings | Arrays | Objects
ALL_TYPES: tuple[Constraint, ...] = (
    Null(),
    Bools(frozenset({False, True})),
    Numbers(),
    Strings(),
    Arrays(),
    Objects(),
)


def meet(first: Constraint, second: Constraint) -> Constraint | None:
    """Both at once; None where no value is of both, as far as can be seen without what is inside."""
    if isinstance(first, Null) and isinstance(second, Null):
        return first
    if isinstance(first, Bools) and isinstance(second, Bools):
        values = first.values & second.values
        return Bools(values) if values else None
    if isinstance(first, Numbers) and isinstance(second, Numbers):
        return _meet_numbers(first, second)
    if isinstance(first, Strings) and isinstance(second, Strings):
        return checked_strings(
            Strings(
                max(first.min_len, second.min_len),
                least(first.max_len, second.max_len),
                tuple(dict.fromkeys(first.patterns + second.patterns)),
                _common(first.values, second.values),
                tuple(dict.fromkeys(first.excluded + second.excluded)),
            )
        )
    if isinstance(first, Arrays) and isinstance(second, Arrays):
        return checked_arrays(
            Arrays(
                tuple(dict.fromkeys(first.parts + second.parts)),
                max(first.min_items, second.min_items),
                least(first.max_items, second.max_items),
            )
        )
    if isinstance(first, Objects) and isinstance(second, Objects):
        return checked_objects(
            Objects(
                tuple(dict.fromkeys(first.parts + second.parts)),
                tuple(dict.fromkeys(first.required + second.required)),
                max(first.min_properties, second.min_properties),
                least(first.max_properties, second.max_properties),
                joined(first.names, second.names),
            )
        )
    return None


def _meet_numbers(first: Numbers, second: Numbers) -> Numbers | None:
    low, is_low_excluded = first.low, first.is_low_excluded
    if second.low is not None and (low is None or second.low >= low):
        is_low_excluded = second.is_low_excluded or (second.low == low and is_low_excluded)
        low = second.low
    high, is_high_excluded = first.high, first.is_high_excluded
    if second.high is not None and (high is None or second.high <= high):
        is_high_excluded = second.is_high_excluded or (second.high == high and is_high_excluded)
        high = second.high
    return checked_numbers(
        Numbers(
            first.is_integer or second.is_integer,
            low,
            high,
            is_low_excluded,
            is_high_excluded,
            tuple(dict.fromkeys(first.multiples + second.multiples)),
            _common(first.values, second.values),
            tuple(dict.fromkeys(first.excluded + second.excluded)),
        )
    )


def checked_numbers(numbers: Numbers) -> Numbers | None:
    if numbers.values is not None:
        values = tuple(value for value in numbers.values if numbers.allows(value))
        return Numbers(values=values) if values else None
    if numbers.low is not None and numbers.high is not None:
        is_open = numbers.is_low_excluded or numbers.is_high_excluded
        if numbers.low > numbers.high or (numbers.low == numbers.high and is_open):
            return None
    return numbers


def checked_strings(strings: Strings) -> Strings | None:
    if strings.values is not None:
        values = tuple(value for value in strings.values if strings.allows(value))
        return Strings(values=values) if values else None
    if strings.max_len is not None and strings.min_len > strings.max_len:
        return None
    for pattern in strings.patterns:
        span = pattern.lengths
        if span is None or (strings.max_len is not None and span[0] > strings.max_len):
            return None
        if span[1] is not None and span[1] < strings.min_len:
            return None
    return strings


def checked_arrays(arrays: Arrays) -> Arrays | None:
    return None if arrays.max_items is not None and arrays.min_items > arrays.max_items else arrays


def checked_objects(objects: Objects) -> Objects | None:
    fewest = max(objects.min_properties, len(objects.required))
    return None if objects.max_properties is not None and fewest > objects.max_properties else objects


def is_multiple(value: Decimal, divisor: Decimal) -> bool:
    exponent = min(int(value.as_tuple().exponent), int(divisor.as_tuple().exponent), 0)
    return _whole(value, exponent) % _whole(divisor, exponent) == 0


def _whole(value: Decimal, exponent: int) -> int:
    sign, digits, own_exponent = value.as_tuple()
    magnitude = int("".join(map(str, digits))) * int(10 ** (int(own_exponent) - exponent))
    return -magnitude if sign else magnitude


def least(first: int | None, second: int | None) -> int | None:
    return second if first is None else first if second is None else min(first, second)


def unique(constraints: Iterable[Constraint]) -> list[Constraint]:
    return list(dict.fromkeys(constraints))


def _common(first: tuple[T, ...] | None, second: tuple[T, ...] | None) -> tuple[T, ...] | None:
    if first is None or second is None:
        return second if first is None else first
    allowed = set(second)
    return tuple(value for value in first if value in allowed)


def meet_lists(first: Iterable[Constraint], second: Iterable[Constraint]) -> list[Constraint]:
    """What satisfies one of each list.

    Raises:
        TooManyAlternativesError: they are more than can be listed.
    """
    others = list(second)
    found: dict[Constraint, None] = {}
    for left in first:
        for right in others:
            both = meet(left, right)
            if both is not None:
                found[both] = None
                if len(found) > MAX_ALTERNATIVES:
                    raise TooManyAlternativesError
    return list(found)
