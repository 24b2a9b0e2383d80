"""Stops end the text between sealed parts, never such a part, however the text comes."""

from __future__ import annotations

import pytest

from ramet.runtime.detokenizer import IncrementalDetokenizer
from ramet.runtime.sealed_stops import SealedPart

CALL = SealedPart("<call>", "</call>")
WHOLE = SealedPart('{"name', None)


class Characters:
    """A tokenizer whose tokens are characters."""

    def token_bytes(self, token_id: int) -> bytes:
        return chr(token_id).encode()

    def is_special(self, token_id: int) -> bool:
        return False


def stopped(text: str, *stops: str, part: SealedPart = CALL, min_tokens: int = 0) -> tuple[str, str | None]:
    """What is published of the text, and the stop string that ended it."""
    detokenizer = IncrementalDetokenizer(Characters(), stops, sealed=part, min_tokens=min_tokens)
    shown = detokenizer.append([ord(char) for char in text])
    assert text.startswith(shown)
    shown += detokenizer.finish()
    assert shown == detokenizer.text
    return shown, detokenizer.stop_string


@pytest.mark.parametrize("stop", ["}", "a", "<", "<call>", "c", "l>", "\n", "call>\n{"])
def test_no_stop_cuts_a_part(stop: str) -> None:
    text = '<call>\n{"a": "b c"}</call>'
    assert stopped(text, stop) == (text, None)


@pytest.mark.parametrize("text", ["one\n\n<call>x</call>", "<call>x</call>\n<call>y</call>"])
def test_white_space_before_a_part_is_no_stop(text: str) -> None:
    assert stopped(text, "\n") == (text, None)
    assert stopped(text, "\n<") == (text, None)


@pytest.mark.parametrize(
    ("text", "stop", "before"),
    [
        ("one two", "t", "one "),
        ("one <cab", "c", "one <"),
        ("one <cab", "a", "one <c"),
        ("one <<call", "<", "one "),
        ("one\n\ntwo <call>", "\n", "one"),
        ("<call>}</call>one}two", "}", "<call>}</call>one"),
        ("<call>x</call>>", ">>", "<call>x</call>>"),
        ("one <ca", "a", "one <c"),
        ("one\n", "\n", "one"),
    ],
)
def test_a_stop_elsewhere_ends_the_text(text: str, stop: str, before: str) -> None:
    assert stopped(text, stop) == (before, None if before == text else stop)


def test_a_part_without_an_end_begins_where_the_text_does() -> None:
    assert stopped('{"name": "a"}', "a", part=WHOLE) == ('{"name": "a"}', None)
    assert stopped('{"nope": "a"}', "p", part=WHOLE) == ('{"no', "p")
    assert stopped('{"nope": "a"}', "n", part=WHOLE) == ('{"', "n")
    assert stopped(' {"name": "a"}', "m", part=WHOLE) == (' {"na', "m")


def test_what_waits_was_a_stop_where_it_stood() -> None:
    """Tokens before min_tokens make no stop, even if it shows later that it would have been one."""
    assert stopped("a\nb\nc", "\n", min_tokens=2) == ("a\nb\nc"[:1], "\n")
    assert stopped("a\nb\nc", "\n", min_tokens=3) == ("a\nb", "\n")
