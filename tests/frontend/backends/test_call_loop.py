"""The one thread on which a backend's calls run."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from queue import SimpleQueue

import pytest

from ramet.frontend.backends.call_loop import CallLoop
from ramet.frontend.backends.errors import BackendClosedError, CallCancelledError
from ramet.frontend.backends.openai_api import OpenAI


async def nothing() -> None:
    return None


@pytest.fixture
def loop() -> CallLoop:
    return CallLoop("test-calls", 2, nothing)


def test_outcomes_and_errors_settle_their_handles(loop: CallLoop) -> None:
    async def fail() -> int:
        raise ValueError("no")

    async def answer() -> int:
        return 3

    assert loop.start(answer).result(20) == 3
    with pytest.raises(ValueError, match="no"):
        loop.start(fail).result(20)
    loop.close()


def test_what_waits_for_its_turn_can_be_cancelled(loop: CallLoop) -> None:
    started: SimpleQueue[int] = SimpleQueue()

    async def run(idx: int) -> None:
        started.put(idx)
        await asyncio.sleep(60)

    handles = [loop.start(lambda idx=idx: run(idx)) for idx in range(3)]  # type: ignore[misc]
    handles[2].cancel()
    with pytest.raises(CallCancelledError):
        handles[2].result(20)
    assert {started.get(timeout=20), started.get(timeout=20)} == {0, 1}
    loop.close()
    assert started.empty()
    for handle in handles:
        assert isinstance(handle.error(), CallCancelledError)


def test_closing_runs_the_last_thing_and_refuses_more() -> None:
    closed: list[bool] = []

    async def close() -> None:
        closed.append(True)

    loop = CallLoop("test-calls", 1, close)
    loop.close()
    loop.close()
    assert closed == [True]
    with pytest.raises(BackendClosedError):
        loop.start(nothing)


def test_a_callback_may_start_another_call_and_close(loop: CallLoop) -> None:
    ended = threading.Event()

    def go_on() -> None:
        again = loop.start(nothing)

        def finish() -> None:
            loop.close()
            ended.set()

        again.add_done_callback(finish)

    loop.start(nothing).add_done_callback(go_on)
    assert ended.wait(20)
    loop.close()


def test_a_backend_that_nobody_has_any_more_ends_its_thread() -> None:
    backend = OpenAI("gpt-test", api_key="none")
    threads = [thread for thread in threading.enumerate() if thread.name == "ramet-OpenAI"]
    assert len(threads) == 1
    del backend
    gc.collect()
    threads[0].join(20)
    assert not threads[0].is_alive()


def test_a_missing_package_is_named_once_its_backend_is_made() -> None:
    imports = "import sys; sys.modules['{0}'] = None\nfrom ramet import RuntimeEndpoint, {1}\n"
    program = imports + "try: {1}('m')\nexcept ImportError as e: print(e)"
    for package, name in (("openai", "OpenAI"), ("anthropic", "Anthropic")):
        command = [sys.executable, "-c", program.format(package, name)]
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        assert f"pip install '.[{package}]'" in said
