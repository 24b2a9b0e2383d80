"""One browser for all tests of the page, and servers for it that need no model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .browser import Browser, start_browser
from .stub_api import StubApi, stub_server


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with start_browser(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture(scope="session")
def site() -> Iterator[str]:
    """Where there is a page, for tests that ask nothing of it but its files."""
    with stub_server(StubApi()) as found:
        yield found


@pytest.fixture
def stub() -> StubApi:
    return StubApi()


@pytest.fixture
def url(stub: StubApi) -> Iterator[str]:
    with stub_server(stub) as found:
        yield found
