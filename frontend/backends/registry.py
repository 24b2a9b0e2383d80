"""The backends that come with the language. A new one is one new file beside this one and one line in the table.

The contract test runs over every entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..backend import Backend


def _local() -> Callable[..., Backend]:
    from .local import LocalBackend

    return LocalBackend


def _mock() -> Callable[..., Backend]:
    from .mock import MockBackend

    return MockBackend


def _openai() -> Callable[..., Backend]:
    from .openai_api import OpenAI

    return OpenAI


def _anthropic() -> Callable[..., Backend]:
    from .anthropic_api import Anthropic

    return Anthropic


def _endpoint() -> Callable[..., Backend]:
    from .runtime_endpoint import RuntimeEndpoint

    return RuntimeEndpoint


BACKENDS: Mapping[str, Callable[[], Callable[..., Backend]]] = {
    "local": _local,
    "mock": _mock,
    "endpoint": _endpoint,
    "openai": _openai,
    "anthropic": _anthropic,
}
"""Name (as `info()["backend"]` says it) to what imports the backend's class."""
