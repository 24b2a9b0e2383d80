"""The journal of a batch (to come)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .scope import Scope


@dataclass(frozen=True, slots=True)
class JournalSpec:
    path: str


@dataclass(frozen=True, slots=True)
class ItemKey:
    digest: str


class BatchJournal:
    def restore(self, key: ItemKey, new_scope: Callable[[], Scope], *, with_failed: bool) -> Scope | None:
        raise NotImplementedError

    async def append(self, key: ItemKey, scope: Scope) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


async def open_journal(spec: JournalSpec) -> BatchJournal:
    raise NotImplementedError(spec)
