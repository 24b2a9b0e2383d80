"""parse_regex: a regular expression in Python's syntax, with the meaning of re.fullmatch, as a Regex.

Python's own parser reads the pattern, so there is no second opinion about what it says. Its tree is turned into the few
kinds of node of `syntax.py`; what those cannot say exactly is refused. The parser is internal to `re` (`re._parser`,
with one form in Python 3.11 to 3.13); beside this file only `ramet.regex_outline`, which asks less of it, knows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as sre_parser  # type: ignore[attr-defined]
from typing import Any

from ..errors import GrammarError, UnsupportedRegexError
from .analysis import max_repeat_product, num_positions
from .char_sets import ALL_CHARS, FIRST_SURROGATE, LAST_SURROGATE, CharSet
from .python_chars import ClassItem, class_chars, is_wide, literal_chars
from .source_scan import SourceScan, scan_source
from .syntax import EMPTY, Literal, Regex, alternation, concat, one_of, repeat

MAX_PATTERN_CHARS = 1 << 16
MAX_NESTING = 100
MAX_CHOICE_CHARS = 10_000
MAX_BRANCHES = 50_000
MAX_REPEAT_PRODUCT = 10_000
MAX_POSITIONS = 100_000
MAX_CASELESS_CLASSES = 500
MAX_RANGES = 100_000
# A class that ignores case and has a range beyond the first plane counts as so many: it takes longer.
_WIDE_CLASS_COST = 25
# Beyond so many anchors the position of a misplaced one is not looked for.
_MAX_ANCHORS_LOCATED = 1_000

_TYPE_FLAGS = re.ASCII | re.UNICODE
_ANY_EXCEPT_NEWLINE = CharSet.of_text("\n").complement()
_CATEGORY_ESCAPES = {
    sre.CATEGORY_DIGIT: r"\d",
    sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S",
    sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_WORD: r"\W",
}
_START_ANCHORS = (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING)
_END_ANCHORS = (sre.AT_END, sre.AT_END_STRING)

# An item of Python's tree: an operation and its argument, whose type depends on the operation.
_Item = tuple[Any, Any]


def parse_regex(pattern: str) -> Regex:
    """The regex whose members are the texts that re.fullmatch(pattern, text) accepts.

    Raises:
        UnsupportedRegexError: it is no regular expression, is too large, or uses what cannot be decided character by
            character: look-around, back-references, word boundaries, conditionals, atomic groups, possessive
            quantifiers, anchors other than at the ends. The position of the first such construct is given.

    Cost: about a microsecond a character, and some milliseconds for each class that ignores case.
    """
    if not isinstance(pattern, str):
        raise GrammarError(f"regex must be a str, not {type(pattern).__name__}")
    _check_chars(pattern)
    scan = scan_source(pattern, MAX_NESTING)
    if scan.too_deep_at is not None:
        raise UnsupportedRegexError(pattern, scan.too_deep_at, f"groups nest deeper than {MAX_NESTING}")
    tree, flags = _python_tree(pattern)
    if scan.refusal is not None:
        raise UnsupportedRegexError(pattern, scan.refusal.position, scan.refusal.reason)
    try:
        regex = _Converter().sequence(tree, flags, is_at_start=True, is_at_end=True)
    except _Misplaced as misplaced:
        position = _misplaced_position(pattern, scan)
        raise UnsupportedRegexError(pattern, position, misplaced.reason(flags)) from None
    except _Refused as refused:
        raise UnsupportedRegexError(pattern, None, str(refused)) from None
    _check_size(pattern, regex, scan)
    return regex


def choices_regex(texts: Iterable[str]) -> Regex:
    """The regex whose members are some texts.

    Raises:
        GrammarError: too many, or with a character that UTF-8 cannot spell.
    """
    branches = [Literal(text) for text in texts]
    if len(branches) > MAX_BRANCHES:
        raise GrammarError(f"{len(branches)} choices are too many: at most {MAX_BRANCHES} can be enforced")
    for branch in branches:
        if len(branch.text) > MAX_CHOICE_CHARS:
            raise GrammarError(
                f"a choice has {len(branch.text):,} characters, at most {MAX_CHOICE_CHARS:,} are allowed"
            )
        position = _first_surrogate(branch.text)
        if position is not None:
            raise GrammarError(f"choice {branch.text!r} has a lone surrogate at position {position}")
    return alternation(branches)


def _check_chars(pattern: str) -> None:
    if len(pattern) > MAX_PATTERN_CHARS:
        reason = f"it has {len(pattern)} characters, at most {MAX_PATTERN_CHARS} are allowed"
        raise UnsupportedRegexError(pattern, None, reason)
    position = _first_surrogate(pattern)
    if position is not None:
        raise UnsupportedRegexError(pattern, position, "a lone surrogate cannot be generated: UTF-8 has none")


def _first_surrogate(text: str) -> int | None:
    return next((idx for idx, char in enumerate(text) if _is_surrogate(ord(char))), None)


def _is_surrogate(code: int) -> bool:
    return FIRST_SURROGATE <= code <= LAST_SURROGATE


def _python_tree(pattern: str) -> tuple[Sequence[_Item], int]:
    """Python's tree of a pattern, and its flags."""
    try:
        tree = sre_parser.parse(pattern)
    except re.error as error:
        raise UnsupportedRegexError(pattern, error.pos, f"it is not valid: {error.msg}") from None
    except (OverflowError, ValueError) as error:
        raise UnsupportedRegexError(pattern, None, f"it is not valid: {error}") from None
    except RecursionError:
        raise UnsupportedRegexError(pattern, None, "it is nested too deeply") from None
    except Warning as warning:
        raise UnsupportedRegexError(pattern, None, f"Python warns of it: {warning}") from None
    return tree.data, tree.state.flags


def _check_size(pattern: str, regex: Regex, scan: SourceScan) -> None:
    largest = max(scan.counts, key=lambda found: found[1], default=(None, 0))
    product = max_repeat_product(regex)
    if product > MAX_REPEAT_PRODUCT:
        reason = f"its repeats multiply to {product}, at most {MAX_REPEAT_PRODUCT} is allowed"
        raise UnsupportedRegexError(pattern, largest[0], reason)
    num_written_out = num_positions(regex)
    if num_written_out > MAX_POSITIONS:
        reason = f"with its repeats written out it has {num_written_out} characters, at most {MAX_POSITIONS} is allowed"
        raise UnsupportedRegexError(pattern, largest[0], reason)


class _Misplaced(Exception):  # noqa: N818 - an answer between functions of this file, not an error of its own
    """An anchor stands where it need not be at the start or end of the text."""

    def __init__(self, is_start: bool, anchor_idx: int | None) -> None:
        super().__init__()
        self.is_start, self.anchor_idx = is_start, anchor_idx

    def reason(self, flags: int) -> str:
        place = "start" if self.is_start else "end"
        lines = " of a line, as (?m) would have it," if flags & re.MULTILINE else ""
        return (
            f"an anchor at the {place}{lines} may only stand at the {place} of the pattern; the whole text must match"
        )


class _Refused(Exception):  # noqa: N818 - as above
    """A pattern has too much of something, or something that the scan of its source did not know."""


class _Converter:
    """From Python's tree to a Regex.

    `is_at_start` says that nothing can stand before an item in a text that matches, `is_at_end` that nothing can stand
    after it: there an anchor always holds, even under (?m).
    """

    def __init__(self, anchors: dict[int, tuple[int, bool]] | None = None) -> None:
        """
        Args:
            anchors: by number of a capturing group, the index of the anchor for which it stands and whether that is one
                at the start.
        """
        self._anchors = anchors or {}
        self._num_caseless = 0
        self._num_ranges = 0

    def sequence(self, items: Sequence[_Item], flags: int, *, is_at_start: bool, is_at_end: bool) -> Regex:
        num_tail = 0
        while num_tail < len(items) and self._is_only_empty(items[len(items) - 1 - num_tail]):
            num_tail += 1
        parts = []
        for idx, item in enumerate(items):
            is_last = idx >= len(items) - 1 - num_tail
            parts.append(self._item(item, flags, is_at_start=is_at_start, is_at_end=is_at_end and is_last))
            is_at_start = is_at_start and self._is_only_empty(item)
        return concat(parts)

    def _item(self, item: _Item, flags: int, *, is_at_start: bool, is_at_end: bool) -> Regex:
        operation, argument = item
        if operation is sre.LITERAL:
            return one_of(self._literal(argument, flags))
        if operation is sre.NOT_LITERAL:
            return one_of(self._literal(argument, flags).complement())
        if operation is sre.IN:
            return one_of(self._class(argument, flags))
        if operation is sre.ANY:
            return one_of(ALL_CHARS if flags & re.DOTALL else _ANY_EXCEPT_NEWLINE)
        if operation is sre.AT:
            return self._anchor(argument in _START_ANCHORS, None, is_at_start, is_at_end)
        if operation is sre.SUBPATTERN:
            group, added, removed, body = argument
            if group in self._anchors:
                anchor_idx, is_start = self._anchors[group]
                return self._anchor(is_start, anchor_idx, is_at_start, is_at_end)
            inner_flags = _combined(flags, added, removed)
            return self.sequence(body.data, inner_flags, is_at_start=is_at_start, is_at_end=is_at_end)
        if operation is sre.BRANCH:
            branches = argument[1]
            if len(branches) > MAX_BRANCHES:
                raise _Refused(f"{len(branches)} alternatives are too many, at most {MAX_BRANCHES} are allowed")
            return alternation(
                self.sequence(branch.data, flags, is_at_start=is_at_start, is_at_end=is_at_end) for branch in branches
            )
        if operation not in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            raise _Refused(f"{str(operation).lower()} is not supported")
        min_count, max_count, body = argument
        is_once = max_count <= 1
        once = self.sequence(body.data, flags, is_at_start=is_at_start and is_once, is_at_end=is_at_end and is_once)
        return repeat(once, min_count, None if max_count is sre.MAXREPEAT else max_count)

    def _anchor(self, is_start: bool, anchor_idx: int | None, is_at_start: bool, is_at_end: bool) -> Regex:
        if not (is_at_start if is_start else is_at_end):
            raise _Misplaced(is_start, anchor_idx)
        return EMPTY

    def _is_only_empty(self, item: _Item) -> bool:
        """Whether an item can match nothing but the empty text."""
        operation, argument = item
        if operation is sre.AT:
            return True
        if operation is sre.SUBPATTERN:
            return all(map(self._is_only_empty, argument[3].data))
        if operation is sre.BRANCH:
            return all(self._is_only_empty(inner) for branch in argument[1] for inner in branch.data)
        if operation in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            return argument[1] == 0 or all(map(self._is_only_empty, argument[2].data))
        return False

    def _literal(self, code: int, flags: int) -> CharSet:
        if not flags & re.IGNORECASE:
            return CharSet.of_ranges([(code, code)])
        return literal_chars(code, is_ascii=bool(flags & re.ASCII))

    def _class(self, items: Sequence[_Item], flags: int) -> CharSet:
        is_negated = items[0][0] is sre.NEGATE
        class_items: list[ClassItem] = []
        for operation, argument in items[1:] if is_negated else items:
            if operation is sre.LITERAL:
                class_items.append((argument, argument))
            elif operation is sre.RANGE:
                class_items.append(argument)
            else:
                assert operation is sre.CATEGORY, operation
                class_items.append(_CATEGORY_ESCAPES[argument])
        ignores_case = bool(flags & re.IGNORECASE)
        if ignores_case:
            self._num_caseless += _WIDE_CLASS_COST if any(map(is_wide, class_items)) else 1
        if self._num_caseless > MAX_CASELESS_CLASSES:
            raise _Refused("too many of its classes ignore case; spell both cases in some of them")
        chars = class_chars(tuple(class_items), is_ascii=bool(flags & re.ASCII), ignores_case=ignores_case)
        self._num_ranges += len(chars.ranges)
        if self._num_ranges > MAX_RANGES:
            raise _Refused(
                f"its classes have more than {MAX_RANGES} ranges of characters; (?a) at its start limits "
                r"\d, \s and \w to ASCII"
            )
        return chars.complement() if is_negated else chars


def _combined(flags: int, added: int, removed: int) -> int:
    """Flags inside a group that adds and removes some."""
    return ((flags & ~_TYPE_FLAGS if added & _TYPE_FLAGS else flags) | added) & ~removed


def _misplaced_position(pattern: str, scan: SourceScan) -> int | None:
    """Where the misplaced anchor is.

    Python's tree has no positions and joins equal beginnings of alternatives. So each anchor is replaced by an empty
    group of its own, and the pattern is read again.
    """
    name = "anchor"
    while name in pattern:
        name += "_"
    pieces: list[str] = []
    end = 0
    found = scan.anchors[:_MAX_ANCHORS_LOCATED]
    for idx, (position, text) in enumerate(found):
        pieces += pattern[end:position], f"(?P<{name}{idx}>)"
        end = position + len(text)
    marked = sre_parser.parse("".join((*pieces, pattern[end:])))
    groups = marked.state.groupdict
    anchors = {groups[f"{name}{idx}"]: (idx, text in ("^", r"\A")) for idx, (_, text) in enumerate(found)}
    try:
        _Converter(anchors).sequence(marked.data, marked.state.flags, is_at_start=True, is_at_end=True)
    except _Misplaced as misplaced:
        return None if misplaced.anchor_idx is None else found[misplaced.anchor_idx][0]
    return None
