"""Real clients against a real server over loopback. See docs/adr/0037 for which, and why in a tier of their own.

`make test-clients` installs them and fails where one is missing; elsewhere its tests are skipped.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ramet import LLM
from ramet.runtime.server.config import ServerConfig
from ramet.runtime.server.listener import BackgroundServer

Client = Callable[[str], ModuleType]
_HERE = Path(__file__).parent
_OFFLINE = {
    "HF_DATASETS_OFFLINE": "1",
    "HF_EVALUATE_OFFLINE": "1",
    "HF_HUB_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "DO_NOT_TRACK": "1",
}
"""No client asks anything of the network."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What clients warn of is theirs; and some take half a minute to import alone."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.clients)
            item.add_marker(pytest.mark.model)
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in _OFFLINE.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def client(offline: None) -> Client:
    """Imports a client by its module's name."""

    def find(name: str) -> ModuleType:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if os.environ.get("RAMET_TESTS_REQUIRE_CLIENTS") == "1":
                pytest.fail(f"{name}: {error}; see requirements/clients.txt")
            pytest.skip(f"{name} is not installed: `make test-clients` has it")

    return find


@pytest.fixture(scope="session")
def server(smollm2: LLM) -> Iterator[BackgroundServer]:
    """Its cache may hold anything: reset it where a test counts tokens."""
    with BackgroundServer(smollm2, ServerConfig(port=0, served_model_names=("smollm2",))) as running:
        yield running


@pytest.fixture(scope="session")
def data() -> Path:
    """The data sets that are shared with the checkout, where there are any."""
    path = Path(__file__).resolve().parents[3] / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"there is no {path}")
    return path
