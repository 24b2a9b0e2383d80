"""What a batch gives: a state per item, and what all of them took."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .errors import ProgramError
from .scope import Scope
from .state import ProgramState

MAX_ERROR_LEN = 300
"""Characters of an error that a summary has at most."""


@dataclass(frozen=True, slots=True)
class ItemTotals:
    """What one item, or several, took. `error` says why it failed, on one line."""

    is_failed: bool = False
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    error: str = ""

    @classmethod
    def of(cls, scope: Scope) -> ItemTotals:
        """Of a run that has ended."""
        metas = [record.meta for record in scope.run.graph.records() if record.meta is not None]
        error = scope.run.body_error() or scope.failure()
        return cls(
            is_failed=error is not None,
            error="" if error is None else _one_line(str(error)),
            num_prompt_tokens=sum(meta.num_prompt_tokens for meta in metas),
            num_cached_tokens=sum(meta.num_cached_tokens for meta in metas),
            num_generated_tokens=sum(meta.num_generated_tokens for meta in metas),
        )


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """All items of a batch in figures, those that came from a journal included.

    Attributes:
        num_items: all of them.
        num_failed: those whose `error()` is not None.
        num_resumed: those that came from a journal.
        num_prompt_tokens, num_cached_tokens, num_generated_tokens: over all calls of all items.
        first_error: of the first failed item, in their order, why it failed; "" if none did.
        num_unkept: those that could not be written to the journal, because JSON has no form for what they gave.
    """

    num_items: int
    num_failed: int
    num_resumed: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    first_error: str = ""
    num_unkept: int = 0

    @classmethod
    def of(cls, items: Sequence[ItemTotals], num_resumed: int = 0, num_unkept: int = 0) -> BatchSummary:
        return cls(
            num_items=len(items),
            num_failed=sum(item.is_failed for item in items),
            num_resumed=num_resumed,
            num_prompt_tokens=sum(item.num_prompt_tokens for item in items),
            num_cached_tokens=sum(item.num_cached_tokens for item in items),
            num_generated_tokens=sum(item.num_generated_tokens for item in items),
            first_error=next((f"item {idx}: {item.error}" for idx, item in enumerate(items) if item.is_failed), ""),
            num_unkept=num_unkept,
        )

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that the cache held; 0 without any."""
        return self.num_cached_tokens / self.num_prompt_tokens if self.num_prompt_tokens else 0.0

    def __str__(self) -> str:
        resumed = f" ({self.num_resumed} from the journal)" if self.num_resumed else ""
        unkept = f", {self.num_unkept} not in the journal" if self.num_unkept else ""
        first_error = f"; first failure, {self.first_error}" if self.first_error else ""
        return (
            f"{self.num_items} items{resumed}, {self.num_failed} failed{unkept}; "
            f"{self.num_prompt_tokens:,} prompt tokens, {self.hit_rate:.1%} cached; "
            f"{self.num_generated_tokens:,} generated tokens{first_error}"
        )


def _one_line(message: str) -> str:
    text = " ".join(message.split())
    return text if len(text) <= MAX_ERROR_LEN else text[: MAX_ERROR_LEN - 3] + "..."


class BatchResults(list[ProgramState]):
    """The states of a batch, one per item, in order: a list, with the figures of the batch.

    Attributes:
        summary: over all items.
    """

    def __init__(self, states: Iterable[ProgramState], summary: BatchSummary) -> None:
        super().__init__(states)
        self.summary = summary


class BatchError(ProgramError):
    """A batch was ended because items failed: the first one, with on_error="raise", or more than max_failures.

    Attributes:
        results: one state per item, in order. Items that were running or had not begun are cancelled.
        item_idx: which item's error is the cause.
    """

    def __init__(self, message: str, results: BatchResults, item_idx: int) -> None:
        super().__init__(message)
        self.results = results
        self.item_idx = item_idx
