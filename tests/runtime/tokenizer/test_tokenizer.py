"""Byte-level tokenizers against the files' own definition; special tokens only where they are meant."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.chat_template import TextSegment
from ramet.runtime.detokenizer import IncrementalDetokenizer
from ramet.runtime.tokenizer import load_tokenizer
from ramet.runtime.weights.resolve import resolve_path

SPECIAL = ["<|bos|>", "<|im_start|>", "<|im_end|>"]
PIECES = [
    "the quick brown fox",
    "don't you think it's 1234 or 56?",
    "한글 and 日本 é",
    "  a  b\n\n c",
    *SPECIAL,
    "the",
    " ",
    "\n",
    "12",
    "I'll",
    "👩‍👩‍👧",
    "한",
    "é",
    "\u3000",
    "<",
    "|>",
    "im_end",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


def template(text: str) -> TextSegment:
    return TextSegment(text, is_template=True)


def content(text: str) -> TextSegment:
    return TextSegment(text, is_template=False)


@given(text=TEXTS)
def test_a_gguf_vocabulary_encodes_as_the_original_tokenizer(backend, from_gguf, text):
    assert from_gguf.encode(text, parse_special=True) == backend.encode(text).ids


@given(text=TEXTS)
def test_decoding_gives_the_text_back(from_gguf, text):
    for parse_special in (False, True):
        ids = from_gguf.encode(text, parse_special=parse_special)
        assert from_gguf.decode(ids, skip_special_tokens=False) == text
        assert b"".join(map(from_gguf.token_bytes, ids)) == text.encode()


@given(ids=st.lists(st.integers(0, 327), max_size=12))
def test_any_ids_decode_as_in_the_tokenizers_package(backend, from_gguf, ids):
    for skip in (False, True):
        assert from_gguf.decode(ids, skip_special_tokens=skip) == backend.decode(ids, skip_special_tokens=skip)


@given(text=TEXTS)
def test_text_from_users_never_becomes_a_special_token(from_gguf, text):
    assert from_gguf.special_token_ids.isdisjoint(from_gguf.encode(text))


def test_a_text_that_merges_to_a_special_token_is_spelled_out(backend, tmp_path, write_gguf):
    built = backend.get_vocab_size()
    vocab = backend.get_vocab() | {"zq": built}
    tokens = sorted(vocab, key=vocab.__getitem__)
    types = [3 if token == "zq" else 1 for token in tokens]
    tokenizer = load_tokenizer(write_gguf(tmp_path / "m.gguf", tokens, types, pre="gpt-2", merges=["z q"]))
    assert tokenizer.encode("zq", parse_special=True) == [built]
    assert tokenizer.encode("zq") == [vocab["z"], vocab["q"]]
    assert tokenizer.encode("azq") == [vocab["a"], vocab["z"], vocab["q"]]


def test_bos_is_added_once(from_gguf):
    plain = from_gguf.encode("the fox")
    assert from_gguf.encode("the fox", add_special_tokens=True) == [0, *plain]
    assert from_gguf.encode("<|bos|>the fox", add_special_tokens=True, parse_special=True) == [0, *plain]
    assert from_gguf.encode("", add_special_tokens=True) == [0]


def test_batches_encode_as_single_texts(from_gguf):
    texts = ["the", "a <|im_end|> b", "", "fox 12"]
    for options in ({}, {"parse_special": True}, {"add_special_tokens": True}):
        assert from_gguf.encode_batch(texts, **options) == [from_gguf.encode(text, **options) for text in texts]
    assert from_gguf.encode_batch([]) == []


def test_what_the_file_declares(backend, from_gguf):
    assert from_gguf.eos_token_ids == {0, 2}  # <|im_end|> ends a turn, whatever the file says of eos
    assert (from_gguf.bos_token_id, from_gguf.adds_bos, from_gguf.vocab_size) == (
        0,
        True,
        backend.get_vocab_size(),
    )
    assert from_gguf.special_tokens == tuple(SPECIAL)
    assert [from_gguf.is_special(token_id) for token_id in (0, 2, 3)] == [True, True, False]
    assert from_gguf.id_to_token(1) == "<|im_start|>"
    assert from_gguf.token_to_id("<|im_end|>") == 2
    assert from_gguf.chat_template.render([{"role": "user", "content": "x"}]) == "<|im_start|>user\nx<|im_end|>\n"


def test_ids_no_token_has_spell_nothing(from_gguf):
    assert from_gguf.decode([327, 400, 10**6, -1]) == from_gguf.decode([327])
    assert from_gguf.token_bytes(10**6) == b""
    assert from_gguf.id_to_token(-1) is None


def test_identity_follows_the_vocabulary(backend, from_gguf, tmp_path, gguf_of):
    again = load_tokenizer(gguf_of(backend, tmp_path / "again.gguf"))
    other = load_tokenizer(gguf_of(backend, tmp_path / "other.gguf", pre="smollm"))
    assert again.identity == from_gguf.identity != other.identity


@pytest.mark.parametrize("text", [None, 3, b"bytes", "a\ud800b"])
def test_what_is_no_text_is_refused(from_gguf, text):
    with pytest.raises(ValueError, match=r"must be a str|lone surrogate"):
        from_gguf.encode(text)
    with pytest.raises(ValueError, match=r"must be a str|lone surrogate"):
        from_gguf.encode_batch(["good", text])


def test_threads_share_a_tokenizer(backend, tmp_path, gguf_of):
    tokenizer = load_tokenizer(gguf_of(backend, tmp_path / "t.gguf"))
    results: list[list[int]] = []
    threads = [threading.Thread(target=lambda: results.append(tokenizer.encode("a <|im_end|> b"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [tokenizer.encode("a <|im_end|> b")] * 8


@given(ids=st.lists(st.integers(0, 327), max_size=20), step=st.integers(1, 4), skip=st.booleans())
def test_detokenising_step_by_step_equals_decoding(from_gguf, ids, step, skip):
    detokenizer = IncrementalDetokenizer(from_gguf, skip_special_tokens=skip)
    deltas = [detokenizer.append(ids[start : start + step]) for start in range(0, len(ids), step)]
    deltas.append(detokenizer.finish())
    assert "".join(deltas) == detokenizer.text == from_gguf.decode(ids, skip_special_tokens=skip)


def test_segments_are_encoded_jointly(from_gguf):
    segments = [template("<|im_start|>user\n"), content("the fox"), template("<|im_end|>\n")]
    joined = "".join(segment.text for segment in segments)
    assert from_gguf.encode_segments(segments) == [0, *from_gguf.encode(joined, parse_special=True)]
    assert from_gguf.encode_segments(segments, is_text_start=False) == from_gguf.encode(joined, parse_special=True)
    assert from_gguf.encode_segments([template("<|bos|>"), content("a")]) == [0, *from_gguf.encode("a")]
    assert from_gguf.encode_segments([]) == [0]


@given(pieces=st.lists(st.tuples(TEXTS, st.booleans()), max_size=5))
def test_only_the_template_makes_special_tokens(from_gguf, pieces):
    segments = [TextSegment(text, is_template) for text, is_template in pieces]
    ids = from_gguf.encode_segments(segments, is_text_start=False)
    assert from_gguf.decode(ids, skip_special_tokens=False) == "".join(text for text, _ in pieces)
    meant, run = [], ""
    for text, is_template in [*pieces, ("", False)]:
        if is_template:
            run += text
            continue
        meant += [token_id for token_id in from_gguf.encode(run, parse_special=True) if from_gguf.is_special(token_id)]
        run = "" if text or not is_template else run
    assert [token_id for token_id in ids if from_gguf.is_special(token_id)] == meant


def test_a_special_token_across_the_edge_of_a_content_is_plain_text(from_gguf):
    ids = from_gguf.encode_segments([content("<|im_"), template("end|>")], is_text_start=False)
    assert from_gguf.special_token_ids.isdisjoint(ids)
    assert from_gguf.decode(ids) == "<|im_end|>"


SMOLLM2_EXAMPLES = [
    ("Hello, world!", [19556, 28, 905, 17]),
    ("abc  5 12345 x", [25276, 256, 37, 216, 33, 34, 35, 36, 37, 1792]),
    ("I'LL don't we've it's", [57, 23, 16421, 1326, 982, 392, 3543, 357, 506]),
    ("  leading and   inner   spaces  ", [216, 2899, 284, 256, 6210, 256, 5600, 256]),
    ("line\n\n\nbreaks\r\n\ttabs", [1311, 1116, 198, 43627, 2738, 197, 100, 7366]),
    (
        "\ud55c\uad6d\uc5b4 \u65e5\u672c\u8a9e \u4e2d\u6587",
        [33085, 246, 181, 130, 251, 183, 240, 129, 17097, 241, 115, 40993, 179, 120, 248, 216, 28589, 29184],
    ),
    (
        "\U0001f469\u200d\U0001f469\u200d\U0001f467 \xe9 \xbd \u0663",
        [10813, 235, 119, 321, 231, 10813, 235, 119, 321, 231, 10813, 235, 117, 26411, 216, 16738, 216, 164, 113],
    ),
    ("def f(x):\n    return x**2  # ok", [1604, 275, 24, 104, 727, 472, 1003, 1792, 828, 34, 216, 907, 10907]),
    ("<|im_start|>user\nHi<|im_end|>\n", [1, 4093, 198, 26843, 2, 198]),
    (
        "3.14159e-10 + 1,000,000",
        [35, 30, 33, 36, 33, 37, 41, 85, 29, 33, 32, 1232, 216, 33, 28, 32, 32, 32, 28, 32, 32, 32],
    ),
    ("\u3000wide\u200bzero", [12109, 218, 3641, 321, 229, 13723]),
    ("x9y_z-42%", [104, 41, 105, 79, 106, 29, 36, 34, 21]),
    ("..!!??", [950, 10095, 16693]),
    ("\xc0\xc9\xce\xf5\xfc", [142, 218, 39614, 142, 232, 44511, 7170]),
    (
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        [46880, 46880, 46880, 46880, 46880, 46880, 46880, 46880, 46880, 46880],
    ),
]
"""Token ids from llama.cpp's own reading of the bundled file."""


@pytest.mark.model
def test_the_bundled_model_encodes_as_llama_cpp():
    tokenizer = load_tokenizer(resolve_path("smollm2"))
    for text, ids in SMOLLM2_EXAMPLES:
        assert tokenizer.encode(text, parse_special=True) == ids, text
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.eos_token_ids == {0, 2}
    assert (tokenizer.bos_token_id, tokenizer.adds_bos, tokenizer.vocab_size) == (1, False, 49152)
    prefix = tokenizer.chat_template.role_prefix([], "user")
    assert prefix[0].text.startswith("<|im_start|>system\nYou are a helpful AI assistant")
