"""Ctrl-C while the model is being opened ends the process at once, whatever would swallow an exception there."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

import ramet
from ramet.cli import engine_options
from ramet.cli.interrupts import exit_on_interrupt
from ramet.cli.main import build_parser
from ramet.frontend.backends import local

from .ctrl_c import interrupted

WAITS = """
import os, time
os.write(1, b"ready\\n")
for _ in range(600):
    try:
        time.sleep(0.1)
    except BaseException:
        print("caught", flush=True)
"""
SWALLOWS = f"""
from ramet.cli.interrupts import exit_on_interrupt
with exit_on_interrupt():
    print("what was printed before", end="")
    exec({WAITS!r})
"""
AT_EXIT = f"""
import atexit
atexit.register(lambda: exec({WAITS!r}))
"""


@pytest.mark.parametrize(
    ("file_name", "source", "arguments"),
    [
        ("argparse.py", WAITS, ["--version"]),
        ("uvicorn.py", WAITS, ["serve", "--port", "0"]),
        ("program.py", AT_EXIT, ["run", "program.py"]),
    ],
)
def test_from_the_first_import_to_the_last_word_ctrl_c_is_one_line(
    file_name: str, source: str, arguments: list[str], tmp_path: Path
) -> None:
    (tmp_path / file_name).write_text(source)
    root = str(Path(ramet.__file__).parent.parent)
    path = os.pathsep.join(dict.fromkeys((str(tmp_path), root)))
    ended = interrupted(["-m", "ramet", *arguments], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})
    assert ended == (130, "", "\nramet: interrupted\n")


def test_it_ends_with_130_and_nothing_can_catch_it() -> None:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    assert interrupted(["-c", SWALLOWS], env=buffered) == (130, "what was printed before", "\nramet: interrupted\n")


def test_outside_the_block_and_while_nothing_opens_it_is_an_exception() -> None:
    is_opening = False
    with exit_on_interrupt(lambda: is_opening), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_handlers_of_others_and_other_threads_are_left_alone() -> None:
    def own_handler(*args: object) -> None: ...

    seen: list[object] = []

    def look() -> None:
        with exit_on_interrupt():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
    signal.signal(signal.SIGINT, own_handler)
    try:
        look()
        assert seen[1] is signal.getsignal(signal.SIGINT) is own_handler
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_model_is_opened_inside_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[object] = []

    class Unopenable:
        def __init__(self, *args: object, **options: object) -> None:
            handlers.append(signal.getsignal(signal.SIGINT))
            raise LookupError

    monkeypatch.setattr(local, "LocalBackend", Unopenable)
    with pytest.raises(LookupError):
        engine_options.open_backend(build_parser().parse_args(["chat"]))
    assert handlers[0] is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
