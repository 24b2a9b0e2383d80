"""CacheNamespace: who may share cached prefixes with whom, as a server derives it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheNamespace:
    """A typed key, so that no tenant's name and salt can spell another's.

    Attributes:
        tenant: derived from an API key; "" where a server has none.
        salt: what a client added to keep apart its own users; "" for none.
    """

    tenant: str = ""
    salt: str = ""

    def to_bytes(self) -> bytes:
        """Differs for namespaces that differ; the same in every process."""
        tenant, salt = self.tenant.encode("utf-8", "surrogatepass"), self.salt.encode("utf-8", "surrogatepass")
        return len(tenant).to_bytes(8, "little") + tenant + salt
