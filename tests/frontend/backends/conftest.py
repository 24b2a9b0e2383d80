"""The stub server that backends over HTTP are tested against."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .stub_server import StubServer


@pytest.fixture
def server() -> Iterator[StubServer]:
    with StubServer() as stub:
        yield stub
