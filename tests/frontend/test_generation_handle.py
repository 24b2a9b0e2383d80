"""Generation and Handle: what a backend writes and what any number of readers see."""

from __future__ import annotations

import threading

import pytest

from ramet.frontend.errors import ReadTimeoutError
from ramet.frontend.generation import GenerateResult, Generation, Sample
from ramet.frontend.handle import Handle


def result(text: str) -> GenerateResult:
    return GenerateResult((Sample(text, (1,), (1,)),), num_prompt_tokens=1, num_cached_tokens=0)


def test_readers_before_during_and_after_see_the_same_text() -> None:
    generation = Generation()
    seen: list[list[str]] = [[] for _ in range(3)]
    readers = [threading.Thread(target=lambda out=out: out.extend(generation.chunks())) for out in seen]
    readers[0].start()
    generation.push("ab")
    generation.push("")
    readers[1].start()
    generation.push("c")
    assert generation.text_so_far() == "abc"
    generation.finish(result("abcde"))
    readers[2].start()
    for reader in readers:
        reader.join()
    assert seen[0] == seen[1] == seen[2] == ["ab", "c", "de"]
    generation.push("late")
    assert list(generation.chunks()) == ["ab", "c", "de"]


def test_a_reader_can_give_up_waiting() -> None:
    generation = Generation()
    generation.push("a")
    pieces = generation.chunks(timeout=0.01)
    assert next(pieces) == "a"
    with pytest.raises(ReadTimeoutError, match="still running"):
        next(pieces)
    with pytest.raises(TimeoutError):
        generation.result(timeout=0)


def test_failure_ends_the_text_and_is_told_by_result() -> None:
    generation = Generation()
    generation.push("a")
    generation.fail(OSError("gone"))
    assert list(generation.chunks()) == ["a"]
    with pytest.raises(OSError, match="gone"):
        generation.result()
    assert isinstance(generation.error(), OSError)


def test_listeners_and_callbacks_hear_of_every_change() -> None:
    heard: list[str] = []
    generation = Generation()
    generation.add_listener(lambda: heard.append(generation.text_so_far()))
    generation.add_done_callback(lambda: heard.append("done"))
    generation.push("a")
    generation.push("b")
    generation.finish(result("ab"))
    assert heard == ["a", "ab", "done", "ab"]
    generation.add_listener(lambda: heard.append("late listener"))
    generation.add_done_callback(lambda: heard.append("late callback"))
    assert heard[4:] == ["late listener", "late callback"]


def test_cancel_reaches_the_writer_once_and_never_after_the_end() -> None:
    cancelled: list[str] = []
    handle: Handle[int] = Handle(on_cancel=lambda: cancelled.append("first"))
    handle.cancel()
    handle.cancel()
    assert cancelled == ["first"]
    finished: Handle[int] = Handle(on_cancel=lambda: cancelled.append("second"))
    finished.finish(3)
    finished.cancel()
    assert cancelled == ["first"]
    assert finished.result() == 3
