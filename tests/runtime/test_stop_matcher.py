"""The automaton against its definition, and its cost against the length of the text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.detokenizer import IncrementalDetokenizer
from ramet.runtime.stop_matcher import StopMatcher

WORDS = st.text(st.sampled_from("abé"), min_size=1, max_size=5)


@given(st.lists(WORDS, min_size=1, max_size=5), st.text(st.sampled_from("abéx"), max_size=40))
def test_matches_and_held_tails_equal_their_definition(stops, text):
    matcher = StopMatcher(stops)
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        assert matcher.feed(text[end - 1]) == max(complete, key=len, default=None)
        tails = [
            length for length in range(end + 1) if any(stop.startswith(text[end - length : end]) for stop in stops)
        ]
        assert matcher.num_held_chars == max(tails)


class OneLetter:
    """A tokenizer that counts how often it is asked."""

    num_calls = 0

    def token_bytes(self, token_id: int) -> bytes:
        self.num_calls += 1
        return b"ab"[token_id : token_id + 1]

    def is_special(self, token_id: int) -> bool:
        return False


def test_a_long_near_miss_is_held_once_and_let_go_once():
    """A text of a's with the stop string aa...ab: nothing is scanned twice, however long the held tail is."""
    tokenizer = OneLetter()
    stop = "a" * 3000 + "b"
    detokenizer = IncrementalDetokenizer(tokenizer, [stop])
    shown = [detokenizer.append([0]) for _ in range(9000)]
    assert tokenizer.num_calls == 9000
    assert [len(delta) for delta in shown] == [0] * 3000 + [1] * 6000
    assert detokenizer.append([1]) == ""
    assert (detokenizer.stop_string, detokenizer.text) == (stop, "a" * 6000)


def test_a_space_in_front_is_taken_off_once():
    class Spaces(OneLetter):
        def token_bytes(self, token_id: int) -> bytes:
            return [b"", b" ", b" a"][token_id]

    detokenizer = IncrementalDetokenizer(Spaces(), [" a a"], strip_leading_space=True)
    assert [detokenizer.append([token_id]) for token_id in (0, 2, 2, 1)] == ["", "a", "", ""]
    assert detokenizer.finish() == " a "
    assert detokenizer.text == "a a "
