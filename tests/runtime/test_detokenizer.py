"""Text that grows token by token: whole characters only, no piece of a stop string, and nothing taken back."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.detokenizer import IncrementalDetokenizer


class Pieces:
    """A tokenizer whose token i is the i-th of some byte strings."""

    def __init__(self, pieces: list[bytes], special: frozenset[int] = frozenset()) -> None:
        self.pieces = pieces
        self.special = special

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]

    def is_special(self, token_id: int) -> bool:
        return token_id in self.special


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    bounds = [0, *sorted({point % (len(data) + 1) for point in cuts}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(bounds) if a < b]


def feed(pieces: list[bytes], stops: list[str], **options) -> tuple[IncrementalDetokenizer, list[str]]:
    detokenizer = IncrementalDetokenizer(Pieces(pieces), stops, **options)
    deltas = [detokenizer.append([idx]) for idx in range(len(pieces))]
    deltas.append(detokenizer.finish())
    return detokenizer, deltas


SCRIPTS = st.text(st.sampled_from("ab \n👩‍👩‍👧한글éß\u200d🇩🇪"), max_size=40)


@given(SCRIPTS, st.lists(st.integers(0, 500), max_size=30))
def test_characters_come_whole_however_they_are_cut(text, cuts):
    pieces = cut(text.encode(), cuts)
    detokenizer, deltas = feed(pieces, [])
    assert "".join(deltas) == text == detokenizer.text
    assert "\ufffd" not in "".join(deltas)
    assert detokenizer.num_tokens_within_text == len(pieces)
    assert detokenizer.leftover_text == ""


def stopped(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The plain definition: read character by character until some stop string is complete."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end - len(stop)], stop
    return text, None


@given(
    st.text(st.sampled_from("abcé"), max_size=25),
    st.lists(st.text(st.sampled_from("abcé"), min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.integers(0, 100), max_size=25),
)
def test_stop_strings_end_the_text_at_the_same_place_however_it_is_cut(text, stops, cuts):
    pieces = cut(text.encode(), cuts)
    expected, stop = stopped(text, stops)
    detokenizer, deltas = feed(pieces, stops)
    assert detokenizer.stop_string == stop
    assert "".join(deltas) == expected == detokenizer.text
    kept = b"".join(pieces[: detokenizer.num_tokens_within_text]).decode()
    assert kept + detokenizer.leftover_text == expected
    included, _ = feed(pieces, stops, include_stop_str_in_output=True)
    assert included.text == expected + (stop or "")


@given(st.text(st.sampled_from("ab\n"), max_size=25), st.lists(st.integers(0, 100), max_size=25))
def test_only_what_may_become_a_stop_string_is_held_back(text, cuts):
    stop = "ab\n"
    pieces = cut(text.encode(), cuts)
    detokenizer = IncrementalDetokenizer(Pieces(pieces), [stop])
    shown = ""
    for idx in range(len(pieces)):
        shown += detokenizer.append([idx])
        if detokenizer.stop_string is not None:
            return
        held = b"".join(pieces[: idx + 1]).decode().removeprefix(shown)
        assert held != stop
        assert stop.startswith(held)


def test_tokens_cut_by_a_stop_string_are_left_over():
    detokenizer, deltas = feed([b"One", b" two", b" three.\nQ", b":", b" four"], ["\nQ:"])
    assert deltas == ["One", " two", " three.", "", "", ""]
    assert detokenizer.stop_string == "\nQ:"
    assert detokenizer.num_tokens_within_text == 2
    assert detokenizer.leftover_text == " three."


def test_a_stop_string_on_a_token_boundary_leaves_nothing_over():
    detokenizer, _ = feed([b"One", b"\n", b"Q:"], ["\nQ:"])
    assert (detokenizer.num_tokens_within_text, detokenizer.leftover_text, detokenizer.text) == (1, "", "One")


def test_invalid_and_unfinished_bytes_become_replacement_characters():
    detokenizer, deltas = feed([b"a\xff", b"\xf0\x9f", b"b\xe2\x82"], [])
    assert "".join(deltas) == b"a\xff\xf0\x9fb\xe2\x82".decode(errors="replace")
    assert detokenizer.num_tokens_within_text == 3


@pytest.mark.parametrize(("is_skipped", "text"), [(True, "ab"), (False, "a<s>b")])
def test_special_tokens_are_left_out_on_request(is_skipped, text):
    tokenizer = Pieces([b"a", b"<s>", b"b"], frozenset({1}))
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=is_skipped)
    assert detokenizer.append([0, 1, 2]) + detokenizer.finish() == text
    assert detokenizer.num_tokens_within_text == 3


def test_stop_strings_before_min_tokens_are_text():
    detokenizer, _ = feed([b"x.", b"y", b".", b"z"], ["."], min_tokens=3)
    assert detokenizer.text == "x.y"
    assert detokenizer.stop_string == "."
