"""Why a grammar is refused. All are InvalidRequestErrors: nothing was queued."""

from __future__ import annotations

from ..errors import InvalidRequestError


class GrammarError(InvalidRequestError):
    """A grammar cannot be enforced here. The message says what, why, and where in the grammar."""


class UnsupportedRegexError(GrammarError):
    """A regular expression uses what cannot be enforced, or is too large.

    Attributes:
        pattern: as it was given.
        position: index into the pattern, None where there is no single one.
        reason: what is wrong.
    """

    def __init__(self, pattern: str, position: int | None, reason: str) -> None:
        where = "" if position is None else f" at position {position}"
        shown = pattern if len(pattern) <= 120 else f"{pattern[:117]}..."
        super().__init__(f"regex {shown!r} cannot be enforced{where}: {reason}")
        self.pattern, self.position, self.reason = pattern, position, reason


class UnsupportedSchemaError(GrammarError):
    """A JSON schema uses what cannot be enforced, contradicts itself, or is too large.

    Attributes:
        path: JSON pointer to the offending schema object, "" for the root.
        keyword: the offending keyword, None where it is none.
        reason: what is wrong.
    """

    def __init__(self, path: str, keyword: str | None, reason: str) -> None:
        named = "" if keyword is None else f" keyword {keyword!r}"
        super().__init__(f"json_schema cannot be enforced:{named} at #{path}: {reason}")
        self.path, self.keyword, self.reason = path, keyword, reason


class GrammarBudgetError(GrammarError):
    """Compiling a grammar takes too much time or memory."""


class GrammarVocabularyError(GrammarError):
    """A grammar allows some text, but this model's vocabulary cannot spell any."""
