"""ResponseStore: responses that were made, kept in memory so that conversations can go on from them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from ..chat.turns import OpenAIMessage


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """
    Attributes:
        body: as the client was told.
        messages: the whole conversation up to and with the answer, without instructions, not joined.
        num_bytes: what it counts for; messages that others share count in full.
    """

    body: dict[str, Any]
    messages: tuple[OpenAIMessage, ...]
    num_bytes: int


class ResponseStore:
    """Responses by owner and id, for one thread. Each owner has room of their own, and loses what was longest unused.

    Args:
        max_bytes: room of one owner; 0 keeps nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._owned: dict[str, OrderedDict[str, StoredResponse]] = {}
        self._num_bytes: dict[str, int] = {}

    @property
    def is_open(self) -> bool:
        """Anything is kept at all."""
        return self._max_bytes > 0

    def put(self, owner: str, stored: StoredResponse) -> None:
        """Keep it, unless there is no room for it alone."""
        if stored.num_bytes > self._max_bytes:
            return
        kept = self._owned.setdefault(owner, OrderedDict())
        kept[stored.body["id"]] = stored
        self._num_bytes[owner] = self._num_bytes.get(owner, 0) + stored.num_bytes
        while self._num_bytes[owner] > self._max_bytes:
            _, dropped = kept.popitem(last=False)
            self._num_bytes[owner] -= dropped.num_bytes

    def get(self, owner: str, response_id: str) -> StoredResponse | None:
        """None if it is not there, or belongs to somebody else."""
        kept = self._owned.get(owner)
        if kept is None or response_id not in kept:
            return None
        kept.move_to_end(response_id)
        return kept[response_id]

    def drop(self, owner: str, response_id: str) -> bool:
        """Whether it was there."""
        dropped = self._owned.get(owner, OrderedDict()).pop(response_id, None)
        if dropped is None:
            return False
        self._num_bytes[owner] -= dropped.num_bytes
        return True
