"""Where a text of a conversation stands is said in few characters, however long the names around it are."""

from __future__ import annotations

from ramet.chat_message import option_texts, structure_texts
from ramet.runtime.chat_marks import Marks

NESTED = {"k" * 10_000: {"a": "x", "b": ["y"]}}


def test_places_are_short() -> None:
    messages = [{"role": "user", "content": "hi", "extra": NESTED}]
    tools = [{"function": {"name": "f", "parameters": NESTED}}]
    places = [where for where, _ in (*structure_texts(messages, tools), *option_texts(NESTED))]
    assert len(places) > 10
    assert max(map(len, places)) < 200


def test_the_places_of_marked_texts_are_short() -> None:
    marks = Marks([{"role": "user", "content": "hi", "extra": NESTED}], [], lambda text: text == "y")
    origins = [text.origin for _, text in marks.split(str(marks.messages)) if text is not None]
    assert len(origins) == 2
    assert max(map(len, origins)) < 200
