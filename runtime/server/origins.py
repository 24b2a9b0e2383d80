"""Origins: which web pages may talk to the server from somebody's browser.

A browser lets any page send requests to 127.0.0.1, and a page whose name is made to resolve to 127.0.0.1 may even read
the answers (DNS rebinding). So a server that only this machine reaches, and that asks for no key, answers only to
names of this machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    """Tells requests that were sent to this machine by one of its names from others, and what a page of another site
    has had its reader's browser send."""

    def __init__(self, config: ServerConfig) -> None:
        has_keys = bool(config.api_keys or config.admin_api_keys)
        self._is_needed = is_loopback(config.host) and not has_keys
        self._allowed_origins = config.allowed_origins
        self._allowed_hosts = frozenset(_host_of(urlsplit(origin).netloc) for origin in config.allowed_origins)

    def check(self, headers: Iterable[tuple[bytes, bytes]], *, is_only_looking: bool) -> None:
        """
        Args:
            is_only_looking: it changes nothing, whoever has asked.

        Raises:
            ApiError: 403, the request was sent to another name, or by a page of another site, and not only to look.
        """
        if not self._is_needed:
            return
        given = {name: value.decode("latin-1") for name, value in headers}
        host = _host_of(given.get(b"host", "localhost"))
        if not is_loopback(host) and host not in self._allowed_hosts:
            raise ApiError(
                403,
                f"this server is for this machine, and was asked for as {host!r:.100}: use 127.0.0.1 or localhost, or "
                "start it with an API key",
                code="wrong_host",
            )
        if is_only_looking or "*" in self._allowed_origins:
            return
        origin = _sender(given)
        if origin is not None and origin not in self._allowed_origins:
            raise ApiError(
                403,
                f"a page of {origin:.100} may not use this server: name it in allowed_origins",
                code="wrong_origin",
            )


def _sender(given: Mapping[bytes, str]) -> str | None:
    """Where the page is from that has had this request sent; None if it is one of this server's, or there is none. A
    browser says the origin of all that may change something, but for what a link or a picture asks."""
    origin = given.get(b"origin")
    if origin is None:
        return "another site" if given.get(b"sec-fetch-site") in ("cross-site", "same-site") else None
    is_own = origin.partition("://")[2].lower() == given.get(b"host", "").lower()
    return None if is_own else origin


def _host_of(netloc: str) -> str:
    """Without the port, and without the brackets of an IPv6 address."""
    try:
        return urlsplit(f"//{netloc.strip()}").hostname or ""
    except ValueError:
        return netloc
