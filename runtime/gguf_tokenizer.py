"""Builds a tokenizer straight from the metadata of a GGUF file.

Two families are built here: byte-level BPE (`gpt2`), whose file names its pre-tokenizer, and SentencePiece BPE
(`llama`), whose merges follow from the scores. Converting through transformers takes some 9 s of CPU and ignores the
name of the pre-tokenizer, so that it splits digits and spaces differently from the model's own tokenizer; this takes a
quarter of a second and does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from .tokenizer_meta import TokenizerLoadError, TokenizerMeta, all_eos_token_ids

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN_WORD = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
)
_TEKKEN = _TEKKEN_WORD + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"

_DIGIT_BY_DIGIT = (r"\p{N}", _GPT2)
_PATTERNS: dict[str, tuple[str, ...]] = {
    "gpt-2": (_GPT2,),
    "gpt2": (_GPT2,),
    "phi-2": (_GPT2,),
    "olmo": (_GPT2,),
    "smollm": _DIGIT_BY_DIGIT,
    "starcoder": _DIGIT_BY_DIGIT,
    "refact": _DIGIT_BY_DIGIT,
    "command-r": _DIGIT_BY_DIGIT,
    "llama-bpe": (_LLAMA3,),
    "llama3": (_LLAMA3,),
    "llama-v3": (_LLAMA3,),
    "smaug-bpe": (_LLAMA3,),
    "dbrx": (_LLAMA3,),
    "qwen2": (_QWEN2,),
    "stablelm2": (_QWEN2,),
    "deepseek-r1-qwen": (_QWEN2,),
    "tekken": (_TEKKEN,),
}
"""Name of a pre-tokenizer in GGUF files to the patterns that cut a text, applied one after the other."""

_WHOLE_WORDS_FIRST = frozenset({"llama-bpe", "llama3", "llama-v3", "tekken"})
"""Pre-tokenizers of vocabularies where a word that is a token is that token, whatever the merges say."""

_NFC = frozenset({"qwen2", "deepseek-r1-qwen"})


def can_build(metadata: dict[str, Any]) -> bool:
    """Whether `build_gguf_tokenizer` knows this kind of vocabulary exactly."""
    model = metadata.get("tokenizer.ggml.model")
    return model == "llama" or (model == "gpt2" and metadata.get("tokenizer.ggml.pre") in _PATTERNS)


def build_gguf_tokenizer(path: Path, metadata: dict[str, Any]) -> tuple[tokenizers.Tokenizer, TokenizerMeta]:
    """The tokenizer a GGUF file describes.

    Args:
        path: named in errors only.
        metadata: of the file's header; `can_build` holds of it.

    Raises:
        TokenizerLoadError: something is missing or contradicts itself.
    """
    assert can_build(metadata)
    tokens = _list_of(path, metadata, "tokens", str)
    token_types = _list_of(path, metadata, "token_type", int, default=[_NORMAL] * len(tokens))
    if len(token_types) != len(tokens):
        raise TokenizerLoadError(f"{path} lists {len(tokens)} tokens but {len(token_types)} token types")
    if metadata["tokenizer.ggml.model"] == "gpt2":
        backend = _byte_level(path, metadata, tokens)
    else:
        backend = _sentencepiece(path, metadata, tokens, token_types)
    kinds = list(zip(tokens, token_types, strict=True))
    backend.add_tokens(
        [AddedToken(token, special=False, normalized=False) for token, kind in kinds if kind == _USER_DEFINED]
    )
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token, kind in kinds if kind in (_CONTROL, _UNKNOWN)]
    )
    return backend, gguf_meta(path, metadata, backend)


def gguf_meta(path: Path, metadata: dict[str, Any], backend: tokenizers.Tokenizer) -> TokenizerMeta:
    """What the file declares beside its vocabulary."""
    num_tokens = backend.get_vocab_size()
    ids: dict[str, int | None] = {}
    for name in ("bos", "eos", "eot", "eom"):
        token_id = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if token_id is not None and not 0 <= token_id < num_tokens:
            raise TokenizerLoadError(f"{path}: {name}_token_id={token_id}, but there are only {num_tokens} tokens")
        ids[name] = token_id
    declared = [token_id for name in ("eos", "eot", "eom") if (token_id := ids[name]) is not None]
    is_bos_usual = metadata["tokenizer.ggml.model"] == "llama" or (
        metadata.get("tokenizer.ggml.pre") in _WHOLE_WORDS_FIRST
    )
    template = metadata.get("tokenizer.chat_template")
    return TokenizerMeta(
        bos_token_id=ids["bos"],
        eos_token_id=ids["eos"],
        eos_token_ids=all_eos_token_ids(backend, declared),
        adds_bos=ids["bos"] is not None and bool(metadata.get("tokenizer.ggml.add_bos_token", is_bos_usual)),
        chat_template=template if isinstance(template, str) else None,
    )


def _list_of(
    path: Path, metadata: dict[str, Any], name: str, kind: type, default: list[Any] | None = None
) -> list[Any]:
    values = metadata.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(values, list) or not values or not isinstance(values[0], kind):
        raise TokenizerLoadError(f"{path} has no usable list tokenizer.ggml.{name}; the file carries no tokenizer")
    return values


def _vocab(path: Path, tokens: Sequence[str]) -> dict[str, int]:
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise TokenizerLoadError(f"{path} lists {len(tokens)} tokens, but only {len(vocab)} different ones")
    return vocab


def _byte_level(path: Path, metadata: dict[str, Any], tokens: Sequence[str]) -> tokenizers.Tokenizer:
    pre = metadata["tokenizer.ggml.pre"]
    vocab = _vocab(path, tokens)
    merges = []
    for line in _list_of(path, metadata, "merges", str):
        left, _, right = line.partition(" ")
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise TokenizerLoadError(f"{path}: the merge {line!r} names a token that is not in the vocabulary")
        merges.append((left, right))
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre in _WHOLE_WORDS_FIRST))
    cuts: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in _PATTERNS[pre]
    ]
    cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    backend.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    backend.decoder = decoders.ByteLevel()
    if pre in _NFC:
        backend.normalizer = normalizers.NFC()
    return backend


def _sentencepiece(
    path: Path, metadata: dict[str, Any], tokens: Sequence[str], token_types: Sequence[int]
) -> tokenizers.Tokenizer:
    scores = _list_of(path, metadata, "scores", float)
    if len(scores) != len(tokens):
        raise TokenizerLoadError(f"{path} lists {len(tokens)} tokens but {len(scores)} scores")
    vocab = _vocab(path, tokens)
    unknown = next((token for token, kind in zip(tokens, token_types, strict=True) if kind == _UNKNOWN), None)
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=_merges_of_scores(tokens, token_types, scores),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=_BYTE in token_types,
        )
    )
    has_prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    steps: list[normalizers.Normalizer] = [normalizers.Prepend("▁")] if has_prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    parts: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if has_prefix else parts)
    return backend


def _merges_of_scores(
    tokens: Sequence[str], token_types: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """Every way to put a token together from two others, best score of the result first.

    SentencePiece joins the neighbours whose union scores best; that is BPE with these merges. Control tokens take no
    part: text never becomes one. Ties: the earlier token id first, then the ids of the two halves.
    """
    ids = {
        token: token_id
        for token_id, (token, kind) in enumerate(zip(tokens, token_types, strict=True))
        if kind in (_NORMAL, _USER_DEFINED)
    }
    ranked = [
        (-scores[token_id], token_id, ids[token[:cut]], ids[token[cut:]])
        for token, token_id in ids.items()
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
    ranked.sort()
    return [(tokens[left], tokens[right]) for _, _, left, right in ranked]
