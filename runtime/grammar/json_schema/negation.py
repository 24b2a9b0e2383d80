"""What does not satisfy a schema, where that can be said as alternatives again: for `not`, `if` and `oneOf`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .constraints import (
    ALL_TYPES,
    ANYTHING,
    NEVER,
    Arrays,
    Bools,
    Conjunction,
    Constraint,
    Null,
    Numbers,
    ObjectPart,
    Objects,
    Place,
    Strings,
    joined,
    meet_lists,
)


class CannotNegateError(ValueError):
    """The opposite of a schema cannot be enforced; the message says why."""


def negated(constraints: Iterable[Constraint]) -> list[Constraint]:
    """The values that satisfy none of these.

    Raises:
        CannotNegateError: that is no list of constraints.
        TooManyAlternativesError: it is too long a list.
    """
    found = list(ALL_TYPES)
    for constraint in constraints:
        others = [kind for kind in ALL_TYPES if type(kind) is not type(constraint)]
        found = meet_lists(found, [*others, *_opposites(constraint)])
    return found


def _opposites(constraint: Constraint) -> list[Constraint]:
    """Values of the same type that do not satisfy it."""
    match constraint:
        case Null():
            return []
        case Bools(values):
            rest = frozenset({False, True}) - values
            return [Bools(rest)] if rest else []
        case Numbers():
            return _opposite_numbers(constraint)
        case Strings():
            return _opposite_strings(constraint)
        case Arrays():
            return _opposite_arrays(constraint)
        case Objects():
            return _opposite_objects(constraint)


def _opposite_numbers(numbers: Numbers) -> list[Constraint]:
    if numbers.values is not None:
        return [Numbers(excluded=numbers.values)]
    if numbers.is_integer or numbers.multiples:
        raise CannotNegateError("numbers that are not integers or not multiples cannot be enforced")
    found: list[Constraint] = [Numbers(values=(value,)) for value in numbers.excluded]
    if numbers.low is not None:
        found.append(Numbers(high=numbers.low, is_high_excluded=not numbers.is_low_excluded))
    if numbers.high is not None:
        found.append(Numbers(low=numbers.high, is_low_excluded=not numbers.is_high_excluded))
    return found


def _opposite_strings(strings: Strings) -> list[Constraint]:
    if strings.values is not None:
        return [Strings(excluded=strings.values)]
    if strings.patterns:
        raise CannotNegateError("strings that do not match a pattern or format cannot be enforced")
    found: list[Constraint] = [Strings(values=(value,)) for value in strings.excluded]
    if strings.min_len:
        found.append(Strings(max_len=strings.min_len - 1))
    if strings.max_len is not None:
        found.append(Strings(min_len=strings.max_len + 1))
    return found


def _opposite_arrays(arrays: Arrays) -> list[Constraint]:
    if any(place for part in arrays.parts for place in (*part.prefix, part.rest) if place):
        raise CannotNegateError("arrays whose items do not satisfy a schema cannot be enforced")
    found: list[Constraint] = []
    if arrays.min_items:
        found.append(Arrays(max_items=arrays.min_items - 1))
    if arrays.max_items is not None:
        found.append(Arrays(min_items=arrays.max_items + 1))
    return found


def _opposite_objects(objects: Objects) -> list[Constraint]:
    is_simple = not objects.names and not objects.min_properties and objects.max_properties is None
    if not is_simple or any(part.patterns or part.additional for part in objects.parts):
        raise CannotNegateError(
            "the opposite of objects is known only for 'required' and 'properties', not for 'additionalProperties' and"
            " the like"
        )
    found: list[Constraint] = [Objects((ObjectPart(((name, NEVER),), (), ANYTHING),)) for name in objects.required]
    for part in objects.parts:
        for name, child in part.properties:
            for place in child:
                opposite = Objects((ObjectPart(((name, negated_place(place)),), (), ANYTHING),), (name,))
                found.append(opposite)
    return found


def negated_place(place: Place) -> Conjunction:
    if place == NEVER[0]:
        return ANYTHING
    if place.kind == "not":
        return joined((replace(place, kind="schema"),))
    if place.kind == "value":
        raise CannotNegateError("values other than a list or an object cannot be enforced")
    return joined((replace(place, kind="not"),))
