"""Which characters Python's `re` means by a class: asked of `re`, whose tables change with the version of Unicode."""

from __future__ import annotations

import re
from functools import cache, lru_cache

from .char_sets import CharSet, CodeRange

# A class as re's parser gives it: single code points are ranges too; categories are named as in a pattern.
ClassItem = CodeRange | str

# Where Python's classes and case have members, in every version of Unicode so far; a test looks at the rest.
_NUM_CLASS_CODES = 0x40000
_NUM_CASED_CODES = 0x20000


@cache
def category_chars(escape: str, *, is_ascii: bool) -> CharSet:
    r"""What an escape such as "\d" or "\W" means.

    Args:
        is_ascii: under the flag (?a).

    Cost: some 50 ms the first time an escape is asked for.
    """
    if escape.isupper():
        return category_chars(escape.lower(), is_ascii=is_ascii).complement()
    every_char = "".join(map(chr, range(_NUM_CLASS_CODES)))
    runs = re.finditer(f"{escape}+", every_char, re.ASCII if is_ascii else 0)
    return CharSet.of_ranges((run.start(), run.end() - 1) for run in runs)


@cache
def _cased_chars() -> str:
    """Every character that could match another one when case is ignored."""
    cased = {char for char in map(chr, range(_NUM_CASED_CODES)) if char.lower() != char or char.upper() != char}
    for _ in range(2):
        cased |= {relative for char in cased for relative in char.lower() + char.upper() + char.title()}
    return "".join(sorted(cased))


@cache
def _cased_set() -> CharSet:
    return CharSet.of_text(_cased_chars())


@lru_cache(maxsize=1024)
def class_chars(items: tuple[ClassItem, ...], *, is_ascii: bool, ignores_case: bool) -> CharSet:
    """The characters of a class that is not negated.

    Args:
        items: ranges of code points, and escapes such as "\\d".
        ignores_case: under the flag (?i).

    Cost: with `ignores_case` about a millisecond, because `re` is asked about each cased character.
    """
    ranges = [item for item in items if not isinstance(item, str)]
    chars = CharSet.of_ranges(ranges)
    for item in items:
        if isinstance(item, str):
            chars |= category_chars(item, is_ascii=is_ascii)
    if not ignores_case or not chars & _cased_set():
        return chars
    return (chars - _cased_set()) | _cased_members(items, is_ascii)


@cache
def literal_chars(code: int, *, is_ascii: bool) -> CharSet:
    """The characters that a single one matches when case is ignored, itself included."""
    if chr(code) not in _cased_set():
        return CharSet.of_ranges([(code, code)])
    return _ask_re(_spelled(code), is_ascii)


def _cased_members(items: tuple[ClassItem, ...], is_ascii: bool) -> CharSet:
    """The cased characters of a class that ignores case.

    Characters without case cannot bring in cased ones, so a range is cut down to its cased ones: `re` walks through
    ranges one character at a time. One that reaches beyond U+FFFF stays whole, because `re` has another rule for it.
    """
    spelled: list[str] = []
    for item in items:
        if isinstance(item, str):
            spelled.append(item)
        elif item[0] == item[1]:
            spelled.append(_spelled(item[0]))
        else:
            pieces = (item,) if is_wide(item) else (CharSet.of_ranges([item]) & _cased_set()).ranges
            spelled.extend(f"{_spelled(first)}-{_spelled(last)}" for first, last in pieces)
    return _ask_re(f"[{''.join(spelled)}]", is_ascii) if spelled else CharSet(())


def is_wide(item: ClassItem) -> bool:
    """Whether a range begins in the first plane and ends in a later one: `re` takes some 10 ms to compile it."""
    return not isinstance(item, str) and item[0] <= 0xFFFF < item[1]


def _ask_re(pattern: str, is_ascii: bool) -> CharSet:
    matches = re.findall(pattern, _cased_chars(), re.IGNORECASE | (re.ASCII if is_ascii else 0))
    return CharSet.of_text("".join(matches))


def _spelled(code: int) -> str:
    return f"\\U{code:08x}"
