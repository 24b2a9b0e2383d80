"""LiveNames: what clients call the requests that live, so that they can have them cancelled by name."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ..engine_loop import RequestHandle
from .errors import ApiError

Key = tuple[str, str | int]
"""The tenant, and the name; a number for a request that has none."""


class NamedRequests:
    """Requests that their client has given one name, or one name each."""

    def __init__(self, names: LiveNames, keys: Sequence[Key]) -> None:
        self._names = names
        self._keys = keys
        self._handles: list[RequestHandle] = []
        self._aborted: set[Key] = set()

    def bind(self, handles: list[RequestHandle]) -> None:
        """They are queued now. What was aborted meanwhile is cancelled."""
        self._handles = handles
        for key in self._aborted:
            self.abort(key)

    def abort(self, key: Key) -> None:
        self._aborted.add(key)
        is_one_each = len(self._keys) > 1
        for handle in self._handles[self._keys.index(key) :][:1] if is_one_each else self._handles:
            handle.abort()

    def free(self) -> None:
        """All have ended, or none was ever queued: the names can be used again. Idempotent."""
        for key in self._keys:
            self._names.forget(key)
        self._keys = ()


class LiveNames:
    """Names of live requests. Each belongs to a tenant: others neither find nor occupy it."""

    def __init__(self) -> None:
        self._live: dict[Key, NamedRequests] = {}
        self._numbers = itertools.count()

    def take(self, tenant: str, names: str | Sequence[str] | None) -> NamedRequests:
        """
        Args:
            names: of all prompts of a request, or of each; None: only who aborts everything finds it.

        Raises:
            ApiError: 409, a name is in use; 400, it is given twice.
        """
        given: Sequence[str | int] = [names] if isinstance(names, str) else (names or [next(self._numbers)])
        keys = [(tenant, name) for name in given]
        if len(set(keys)) < len(keys):
            raise ApiError(400, "rid has the same name twice: each prompt needs one of its own", param="rid")
        for key in keys:
            if key in self._live:
                raise ApiError(409, f"rid={key[1]!r:.80} is in use by a request that still runs", param="rid")
        named = NamedRequests(self, keys)
        self._live.update(dict.fromkeys(keys, named))
        return named

    def abort(self, tenant: str, name: str | None) -> int:
        """Cancel the tenant's request of this name, or all of the tenant's. Returns how many there were."""
        found = [key for key in self._live if key[0] == tenant and (name is None or key[1] == name)]
        for key in found:
            self._live[key].abort(key)
        return len(found)

    def forget(self, key: Key) -> None:
        self._live.pop(key, None)
