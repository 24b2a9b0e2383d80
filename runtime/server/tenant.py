"""Tenant: who asks, found by the API key in constant time, and the cache that is theirs."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass

from ..cache_namespace import CacheNamespace
from .api_keys import named_keys
from .config import ServerConfig
from .errors import ApiError

MAX_SALT_CHARS = 256
NOBODY = ""
"""The name of no tenant, for what a server does by itself."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """One API key's owner.

    Attributes:
        name: for logs and metrics; never the key.
        namespace_id: derived from the key by scrypt, so that what is kept on a disk gives no key away. "" without keys.
        is_admin: may flush the cache, read metrics and watch the engine.
    """

    name: str
    namespace_id: str
    is_admin: bool

    def namespace(self, cache_salt: str | None = None, field: str = "cache_salt") -> CacheNamespace:
        """Where this tenant's prefixes are cached; a salt makes a cache of its own inside, never one of another tenant.

        Args:
            field: what the client calls the salt.

        Raises:
            ApiError: the salt is no text, or too long.
        """
        if cache_salt is None:
            return CacheNamespace(self.namespace_id)
        if not isinstance(cache_salt, str) or not 1 <= len(cache_salt) <= MAX_SALT_CHARS:
            raise ApiError(400, f"{field} must be a text of 1 to {MAX_SALT_CHARS} characters", param=field)
        return CacheNamespace(self.namespace_id, cache_salt)


class Tenants:
    """Everybody who may use the server."""

    def __init__(self, config: ServerConfig) -> None:
        plain, admins = named_keys(config.api_keys, config.admin_api_keys)
        is_only_one = len(plain) == 1 and not admins
        self._tenants = [
            *((key.encode(), Tenant(name, _namespace_id(key), is_only_one)) for name, key in plain),
            *((key.encode(), Tenant(name, _namespace_id(key), True)) for name, key in admins),
        ]
        self._anybody = Tenant("anybody", "", True)

    @property
    def has_keys(self) -> bool:
        """Whether a key is asked for."""
        return bool(self._tenants)

    @property
    def names(self) -> dict[str, str]:
        """What each tenant is called, by the id of its namespace."""
        return {tenant.namespace_id: tenant.name for _, tenant in self._tenants}

    def find(self, given: Iterable[str]) -> Tenant:
        """
        Args:
            given: the keys that a request has brought.

        Raises:
            ApiError: 401, none of them is known.
        """
        if not self._tenants:
            return self._anybody
        found: Tenant | None = None
        for key in given:
            candidate = key.encode("utf-8", "surrogateescape")
            for known, tenant in self._tenants:  # all of them, whichever it is: the time tells nothing
                if hmac.compare_digest(candidate, known):
                    found = tenant
        if found is None:
            raise ApiError(
                401,
                "the API key is missing or not known: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
                code="invalid_api_key",
            )
        return found


def _namespace_id(key: str) -> str:
    return hashlib.scrypt(key.encode(), salt=b"ramet cache namespace", n=1 << 14, r=8, p=1, dklen=16).hex()
