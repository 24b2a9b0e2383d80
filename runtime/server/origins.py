"""Origins: which web pages may talk to the server from somebody's browser.

A browser lets any page send requests to 127.0.0.1, and a page whose name is made to resolve to 127.0.0.1 may even read
the answers (DNS rebinding). So a server that only this machine reaches, and that asks for no key, answers only to
names of this machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from .config import ServerConfig
from .errors import ApiError


def is_loopback(host: str) -> bool:
    """Whether an address, or a name without its port, is of this machine alone."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class HostCheck:
    """Tells requests that were sent to this machine by one of its names from others."""

    def __init__(self, config: ServerConfig) -> None:
        has_keys = bool(config.api_keys or config.admin_api_keys)
        self._is_needed = is_loopback(config.host) and not has_keys
        self._allowed = frozenset(_host_of(urlsplit(origin).netloc) for origin in config.allowed_origins)

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """
        Raises:
            ApiError: 403, the request was sent to another name.
        """
        if not self._is_needed:
            return
        for name, value in headers:
            if name == b"host":
                host = _host_of(value.decode("latin-1"))
                if not is_loopback(host) and host not in self._allowed:
                    raise ApiError(
                        403,
                        f"this server is for this machine, and was asked for as {host!r:.100}: use 127.0.0.1 or "
                        "localhost, or start it with an API key",
                        code="wrong_host",
                    )


def _host_of(netloc: str) -> str:
    """Without the port, and without the brackets of an IPv6 address."""
    try:
        return urlsplit(f"//{netloc.strip()}").hostname or ""
    except ValueError:
        return netloc
