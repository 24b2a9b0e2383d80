"""Members of a regex drawn at random: what a generator that knows nothing of automata would write."""

from __future__ import annotations

from random import Random

from ramet.runtime.grammar.regex.char_sets import CharSet
from ramet.runtime.grammar.regex.syntax import Alternation, Concat, Literal, OneOf, Regex, Repeat

_MAX_EXTRA_REPEATS = 3


def random_member(regex: Regex, random: Random) -> str:
    """A member of a regex that has one."""
    match regex:
        case Literal(text):
            return text
        case OneOf(chars):
            return _random_char(chars, random)
        case Concat(parts):
            return "".join(random_member(part, random) for part in parts)
        case Alternation(branches):
            return random_member(random.choice(branches), random)
        case Repeat(body, min_count, max_count):
            most = min_count + _MAX_EXTRA_REPEATS
            count = random.randint(min_count, most if max_count is None else min(most, max_count))
            return "".join(random_member(body, random) for _ in range(count))


def _random_char(chars: CharSet, random: Random) -> str:
    """From a random range, its ends often: mistakes are made there."""
    first, last = random.choice(chars.ranges)
    return chr(random.choice((first, last, random.randint(first, last))))
