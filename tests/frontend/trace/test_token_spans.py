"""Which part of a text each token is, also where a character has several tokens."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.frontend.trace.program_trace import TokenText
from ramet.frontend.trace.token_spans import TokenSpan, token_spans

BYTES = {byte: TokenText(byte, bytes([byte]).decode(errors="replace")) for byte in range(256)}


@settings(max_examples=40)
@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\ufffd"), max_size=40))
def test_spans_of_bytes_add_up_to_the_text(text: str) -> None:
    token_ids = list(text.encode())
    spans = token_spans(token_ids, text, BYTES)
    assert spans is not None
    assert "".join(span.text for span in spans) == text
    assert [token_id for span in spans for token_id in span.token_ids] == token_ids
    assert all(bytes(span.token_ids).decode() == span.text for span in spans)


def test_a_special_token_is_marked_and_spelt_text_is_not() -> None:
    texts = BYTES | {300: TokenText(300, "<s>", is_special=True)}
    assert token_spans([300, *b"<s>"], "<s><s>", texts) == [
        TokenSpan((300,), "<s>", is_special=True),
        *(TokenSpan((byte,), chr(byte)) for byte in b"<s>"),
    ]


def test_the_space_that_a_tokenizer_leaves_out_at_the_start_is_no_problem() -> None:
    texts = {1: TokenText(1, " Hi"), 2: TokenText(2, " you")}
    assert token_spans([1, 2], "Hi you", texts) == [TokenSpan((1,), "Hi"), TokenSpan((2,), " you")]


def test_texts_that_do_not_add_up_give_nothing() -> None:
    texts = {1: TokenText(1, "a"), 2: TokenText(2, "b")}
    assert token_spans([1, 2], "ba", texts) is None
    assert token_spans([1, 2], "abc", texts) is None
    assert token_spans([1, 3], "ab", texts) is None
