"""SentencePiece vocabularies: merges that follow from scores, and the space in front of a text."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from ramet.runtime.chat_template import TextSegment
from ramet.runtime.detokenizer import IncrementalDetokenizer
from ramet.runtime.tokenizer import load_tokenizer


def template(text: str) -> TextSegment:
    return TextSegment(text, is_template=True)


def content(text: str) -> TextSegment:
    return TextSegment(text, is_template=False)


WORDS = ["▁", "a", "b", "c", "▁a", "ab", "▁ab", "bc", "abc", "▁abc", "ca", "cab", "aa", "</"]
SPM_TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS, "<", "s", ">", "/", "s>"]
SPM_TYPES = [2, 3, 3, *[6] * 256, *[1] * (len(SPM_TOKENS) - 259)]
SPM_SCORES = [0.0] * 259 + [-float(idx) for idx in range(len(SPM_TOKENS) - 259)]


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory, write_gguf):
    path = tmp_path_factory.mktemp("spm") / "spm.gguf"
    fields = {"scores": SPM_SCORES, "bos_token_id": 1, "eos_token_id": 2}
    return load_tokenizer(write_gguf(path, SPM_TOKENS, SPM_TYPES, "llama", **fields))


def sentencepiece_by_hand(text: str) -> list[int]:
    """Join the two neighbours whose union scores best, the leftmost first, until none is a token."""
    score = {token: SPM_SCORES[idx] for idx, token in enumerate(SPM_TOKENS) if SPM_TYPES[idx] == 1}
    pieces = list(text)
    while True:
        joined = [(score.get(left + right, -math.inf), -idx) for idx, (left, right) in enumerate(pairwise(pieces))]
        best, place = max(joined, default=(-math.inf, 0))
        if best == -math.inf:
            break
        pieces[-place : -place + 2] = [pieces[-place] + pieces[-place + 1]]
    ids = []
    for piece in pieces:
        names = [piece] if piece in score else [f"<0x{byte:02X}>" for byte in piece.encode()]
        ids += [SPM_TOKENS.index(name) for name in names]
    return ids


SPM_TEXTS = st.text(st.sampled_from("aaabbbccc  é</s>"), max_size=14)


@given(text=SPM_TEXTS)
def test_sentencepiece_follows_the_scores(sentencepiece, text):
    expected = sentencepiece_by_hand("▁" + text.replace(" ", "▁")) if text else []
    assert sentencepiece.encode(text) == expected
    assert sentencepiece.encode(text, is_text_start=False) == sentencepiece_by_hand(text.replace(" ", "▁"))


@given(text=SPM_TEXTS)
def test_sentencepiece_decodes_to_the_text(sentencepiece, text):
    ids = sentencepiece.encode(text)
    assert sentencepiece.decode(ids) == text
    continued = sentencepiece.encode(text, is_text_start=False)
    assert sentencepiece.decode(continued, is_text_start=False) == text
    assert sentencepiece.special_token_ids.isdisjoint([*ids, *continued])


@given(text=SPM_TEXTS)
def test_sentencepiece_detokenises_step_by_step(sentencepiece, text):
    for is_start in (True, False):
        detokenizer = IncrementalDetokenizer(sentencepiece, strip_leading_space=is_start)
        ids = sentencepiece.encode(text, is_text_start=is_start)
        assert "".join(detokenizer.append([token_id]) for token_id in ids) + detokenizer.finish() == text


def test_sentencepiece_wants_bos_and_keeps_control_tokens_out_of_merges(sentencepiece):
    assert sentencepiece.adds_bos
    assert sentencepiece.encode("<s>ab", parse_special=True, add_special_tokens=True)[0] == 1
    assert sentencepiece.encode("<s>ab", parse_special=True, add_special_tokens=True)[1] != 1
    assert 1 not in sentencepiece.encode("<s>")
    assert sentencepiece.token_bytes(SPM_TOKENS.index("▁ab")) == b" ab"
    assert sentencepiece.token_bytes(SPM_TOKENS.index("<0xE9>")) == b"\xe9"


def test_sentencepiece_segments_get_the_space_only_where_the_joint_text_does(sentencepiece):
    plain = [template("<s>a "), content("b"), template("</s>")]
    joint = sentencepiece.encode("<s>a b</s>", parse_special=True)
    assert sentencepiece.encode_segments(plain) == joint
    awkward = [template("<s>a "), content("b</s>c"), template("</s>")]
    expected = [1, *sentencepiece.encode("a b</s>c"), 2]
    assert sentencepiece.encode_segments(awkward) == expected


def metaspace(scheme: str) -> dict:
    vocab = {"<unk>": 0, "<s>": 1, "▁": 2, "a": 3, "▁a": 4, "b": 5}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "a")], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme, split=False)
    backend.add_special_tokens(["<unk>", "<s>"])
    return json.loads(backend.to_str())


@pytest.mark.parametrize(("scheme", "after_special"), [("always", 4), ("first", 3)])
def test_metaspace_vocabularies(tmp_path, scheme, after_special):
    (tmp_path / "tokenizer.json").write_text(json.dumps(metaspace(scheme)))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("a a") == [4, 4]
    assert tokenizer.encode("a", is_text_start=False) == [3]
    assert tokenizer.encode("<s>a", parse_special=True) == [1, after_special]
    segments = [template("<s>"), content("a"), template("<s>"), content("<")]
    assert tokenizer.encode_segments(segments)[:2] == [1, after_special]
    assert tokenizer.decode([4, 4]) == "a a"
