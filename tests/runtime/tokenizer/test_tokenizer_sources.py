"""Where tokenizers come from: directories, older files, GGUF files, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest
import tokenizers
from tokenizers import normalizers, processors

from ramet.runtime.chat_template import TextSegment
from ramet.runtime.tokenizer import TokenizerLoadError, load_tokenizer
from ramet.runtime.weights.gguf_header import read_gguf_header

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


@pytest.fixture
def directory(backend, tmp_path) -> Path:
    backend.save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": "<|bos|>", "eos_token": {"content": "<|im_end|>"}, "chat_template": CHATML}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def test_a_directory_encodes_as_its_tokenizer_json(backend, directory):
    tokenizer = load_tokenizer(directory)
    text = "the quick 12 <|im_end|> 한"
    assert tokenizer.encode(text, parse_special=True) == backend.encode(text).ids
    assert (tokenizer.bos_token_id, tokenizer.adds_bos, tokenizer.eos_token_ids) == (0, False, {2})
    assert tokenizer.chat_template.render([], add_generation_prompt=False) == ""


def test_a_directory_says_whether_bos_is_added(backend, directory):
    processed = tokenizers.Tokenizer.from_str(backend.to_str())
    processed.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 0)])
    processed.save(str(directory / "tokenizer.json"))
    assert load_tokenizer(directory).adds_bos
    config = json.loads((directory / "tokenizer_config.json").read_text()) | {"add_bos_token": False}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    assert not load_tokenizer(directory).adds_bos


def test_end_of_sequence_ids_are_gathered_from_every_file(directory):
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    (directory / "config.json").write_text(json.dumps({"eos_token_id": 7}))
    assert load_tokenizer(directory).eos_token_ids == {2, 5, 6, 7}


def test_chat_templates_are_found_in_their_usual_places(directory):
    config = json.loads((directory / "tokenizer_config.json").read_text())
    config["chat_template"] = [{"name": "tools", "template": "T"}, {"name": "default", "template": "D"}]
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    assert load_tokenizer(directory).chat_template.source == "D"
    (directory / "chat_template.json").write_text(json.dumps({"chat_template": "J"}))
    assert load_tokenizer(directory).chat_template.source == "J"
    (directory / "chat_template.jinja").write_text("X")
    assert load_tokenizer(directory).chat_template.source == "X"


def test_truncation_and_padding_of_the_file_are_ignored(backend, directory):
    saved = tokenizers.Tokenizer.from_str(backend.to_str())
    saved.enable_truncation(2)
    saved.enable_padding(length=50)
    saved.save(str(directory / "tokenizer.json"))
    text = "the quick brown fox"
    assert load_tokenizer(directory).encode(text) == backend.encode(text).ids


def test_normalised_special_tokens_are_kept_out_of_user_text(backend, directory):
    saved = tokenizers.Tokenizer.from_str(backend.to_str())
    saved.normalizer = normalizers.Lowercase()
    saved.add_special_tokens([tokenizers.AddedToken("<|stop|>", special=True, normalized=True)])
    saved.save(str(directory / "tokenizer.json"))
    tokenizer = load_tokenizer(directory)
    stop = tokenizer.token_to_id("<|stop|>")
    assert tokenizer.encode("<|STOP|>", parse_special=True) == [stop]
    assert stop not in tokenizer.encode("<|STOP|>")
    segments = [TextSegment("<|stop|>", is_template=True), TextSegment("<|STOP|>", is_template=False)]
    assert [token_id for token_id in tokenizer.encode_segments(segments) if tokenizer.is_special(token_id)] == [stop]


def test_older_files_are_converted_once_and_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("RAMET_CACHE_DIR", str(tmp_path / "cache"))
    model = tmp_path / "model"
    model.mkdir()
    vocab = {"</s>": 0, "a": 1, "b": 2, "ab": 3, "\u0120": 4, "\u0120a": 5}
    (model / "vocab.json").write_text(json.dumps(vocab))
    (model / "merges.txt").write_text("#version: 0.2\na b\n\u0120 a\n")
    config = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>"}
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    notices: list[str] = []
    first = load_tokenizer(model, on_notice=notices.append)
    assert first.encode("ab a") == [3, 5]
    assert len(notices) == 1
    assert load_tokenizer(model, on_notice=notices.append).identity == first.identity
    assert len(notices) == 1
    (kept,) = (tmp_path / "cache" / "tokenizers").iterdir()
    kept.write_text(kept.read_text()[:100])
    assert load_tokenizer(model, on_notice=notices.append).encode("ab a") == [3, 5]
    assert len(notices) == 2
    assert json.loads(kept.read_text())["version"] == "1.0"


def test_missing_and_malformed_sources_are_named(tmp_path, directory):
    with pytest.raises(TokenizerLoadError, match="does not exist"):
        load_tokenizer(tmp_path / "nothing.gguf")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(TokenizerLoadError, match="holds no tokenizer"):
        load_tokenizer(empty)
    (directory / "tokenizer_config.json").write_text("{")
    with pytest.raises(TokenizerLoadError, match=r"tokenizer_config.json is not valid JSON"):
        load_tokenizer(directory)
    (directory / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerLoadError, match=r"not a readable tokenizer.json"):
        load_tokenizer(directory)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"merges": ["t h", "qq zz"]}, "'qq zz' names a token that is not in the vocabulary"),
        ({"bos_token_id": 99}, "bos_token_id=99, but there are only 5 tokens"),
        ({"types": [1, 1]}, "5 tokens but 2 token types"),
        ({"tokens": ["t", "h", "th", "t", "e"]}, "only 4 different ones"),
        ({"model": "rwkv"}, "'rwkv'; 'gpt2' and 'llama' can be read"),
        ({"model": "llama"}, "no usable list tokenizer.ggml.scores"),
    ],
)
def test_a_contradictory_gguf_vocabulary_is_refused(tmp_path, change, message, write_gguf):
    fields = {"tokens": ["t", "h", "th", "e", "x"], "types": [1] * 5, "pre": "gpt-2", "merges": ["t h"], **change}
    path = write_gguf(tmp_path / "bad.gguf", **fields)
    with pytest.raises(TokenizerLoadError, match=message):
        load_tokenizer(path)


def test_every_truncation_of_a_gguf_file_is_a_clear_error(backend, tmp_path, gguf_of):
    data = gguf_of(backend, tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    for length in [*range(0, 200), *range(200, len(data) - 1, 97)]:
        path.write_bytes(data[:length])
        with pytest.raises(TokenizerLoadError, match=r"truncated or corrupt|not a GGUF file"):
            load_tokenizer(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"This is a text file and no model at all", "not a GGUF file"),
        (b"GGUF" + (9).to_bytes(4, "little") + bytes(32), "GGUF version 9"),
        (b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + (2**60).to_bytes(8, "little") + bytes(9), "metadata entries"),
        (b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + (1).to_bytes(8, "little") + b"\xff" * 8, "corrupt"),
        (b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + (1).to_bytes(8, "little") + bytes(16), "0 characters"),
    ],
)
def test_hostile_gguf_headers_are_refused(tmp_path, data, message):
    path = tmp_path / "hostile.gguf"
    path.write_bytes(data)
    with pytest.raises(TokenizerLoadError, match=message):
        load_tokenizer(path)


def test_metadata_of_every_kind_is_read(tmp_path):
    path = tmp_path / "kinds.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    values = {
        "u8": 200,
        "i32": -5,
        "f": 0.5,
        "yes": True,
        "text": "한",
        "ints": [1, -2],
        "texts": ["a", ""],
        "big": 2**40,
    }
    writer.add_uint8("u8", 200)
    writer.add_int32("i32", -5)
    writer.add_float32("f", 0.5)
    writer.add_bool("yes", True)
    writer.add_string("text", "한")
    writer.add_array("ints", [1, -2])
    writer.add_array("texts", ["a", ""])
    writer.add_uint64("big", 2**40)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert read_gguf_header(path).metadata == {"general.architecture": "llama", "big": 2**40, **values}
