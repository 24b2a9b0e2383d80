"""A small byte-level vocabulary, and writers of GGUF files that hold nothing but a tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import gguf
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from ramet.runtime.tokenizer import Tokenizer, load_tokenizer

SPECIAL = ["<|bos|>", "<|im_start|>", "<|im_end|>"]
CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "don't you think it's 1234 or 56?",
    "한글 and 日本 é",
    "  a  b\n\n c",
]
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def _write_gguf(path: Path, tokens: Sequence[str], types: Sequence[int], model: str = "gpt2", **fields) -> Path:
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    for name, value in fields.items():
        if name == "merges":
            writer.add_token_merges(value)
        elif name == "scores":
            writer.add_token_scores(value)
        elif name == "pre":
            writer.add_tokenizer_pre(value)
        elif name == "chat_template":
            writer.add_chat_template(value)
        elif isinstance(value, bool):
            writer.add_bool(f"tokenizer.ggml.{name}", value)
        else:
            writer.add_uint32(f"tokenizer.ggml.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def _gguf_of(backend: tokenizers.Tokenizer, path: Path, pre: str = "gpt-2", **fields) -> Path:
    vocab = backend.get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    merges = [" ".join(merge) for merge in json.loads(backend.to_str())["model"]["merges"]]
    types = [3 if token in SPECIAL else 1 for token in tokens]
    return _write_gguf(path, tokens, types, pre=pre, merges=merges, **fields)


@pytest.fixture(scope="session")
def write_gguf() -> Callable[..., Path]:
    """Write a GGUF file of these tokens, types and other fields."""
    return _write_gguf


@pytest.fixture(scope="session")
def gguf_of() -> Callable[..., Path]:
    """Write a byte-level tokenizer as the GGUF file that describes it."""
    return _gguf_of


@pytest.fixture(scope="session")
def backend() -> tokenizers.Tokenizer:
    """A small byte-level BPE as a model's own tokenizer.json would have it."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS * 3, trainer)
    return backend


@pytest.fixture(scope="session")
def from_gguf(backend, gguf_of, tmp_path_factory) -> Tokenizer:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    options = {"bos_token_id": 0, "eos_token_id": 0, "add_bos_token": True, "chat_template": CHATML}
    return load_tokenizer(gguf_of(backend, path, **options))
