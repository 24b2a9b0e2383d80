"""Tokenizer: text to token ids and back, with special tokens only where they are meant.

Built on the `tokenizers` package; transformers is never imported for a model that has a tokenizer.json or a GGUF
vocabulary of a known kind.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import tokenizers

from ..prompt_explanation import TEMPLATE, PromptExplanation, explain_tokens
from .chat_template import ChatTemplate, TextSegment
from .errors import InvalidRequestError
from .gguf_tokenizer import build_gguf_tokenizer, can_build, gguf_meta
from .models.errors import ModelLoadError
from .token_bytes import TokenBytes
from .tokenizer_conversion import convert_gguf
from .tokenizer_directory import parse_tokenizer, read_directory
from .tokenizer_meta import Notice, TokenizerLoadError, TokenizerMeta
from .weights.gguf_header import read_gguf_header

__all__ = ["Tokenizer", "TokenizerLoadError", "load_tokenizer"]


def load_tokenizer(source: str | Path, *, on_notice: Notice | None = None) -> Tokenizer:
    """The tokenizer of a model file or directory.

    Args:
        source: a .gguf file, or a Hugging Face directory.
        on_notice: told in one sentence when something slow or inexact has to be done.

    Cost: 0.25 s for a GGUF file of 49,152 tokens. Files only transformers can read take some 10 s the first time, and
    are then kept in the user's cache directory.

    Raises:
        TokenizerLoadError: nothing usable is there. The message names the file, the reason and what to do.
    """
    path = Path(source)
    if path.is_dir():
        return Tokenizer(*read_directory(path, on_notice))
    if not path.is_file():
        raise TokenizerLoadError(f"{path} does not exist; give a .gguf file or a directory with tokenizer.json")
    try:
        metadata = dict(read_gguf_header(path).metadata)
    except ModelLoadError as error:
        raise TokenizerLoadError(str(error)) from error
    if can_build(metadata):
        return Tokenizer(*build_gguf_tokenizer(path, metadata))
    model, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if model != "gpt2":
        raise TokenizerLoadError(f"{path} has a tokenizer of kind {model!r}; 'gpt2' and 'llama' can be read")
    if on_notice is not None:
        on_notice(f"{path} names the pre-tokenizer {pre!r}, which is not known; text may be cut slightly otherwise")
    backend = parse_tokenizer(path, convert_gguf(path, on_notice))
    return Tokenizer(backend, gguf_meta(path, metadata, backend))


class Tokenizer:
    """Text to token ids and back. Safe to use from several threads.

    Attributes:
        vocab_size: ids are in [0, vocab_size); a model may have more rows of logits than that.
        bos_token_id: None where the model has none.
        adds_bos: prompts of this model begin with BOS.
        eos_token_ids: each of them ends a generation; the end-of-turn tokens of chat models are among them.
        special_token_ids: control tokens, which text is not parsed for unless asked.
        special_tokens: their texts.
        chat_template: the model's; its calls raise ChatTemplateError where it has none.
    """

    def __init__(self, backend: tokenizers.Tokenizer, meta: TokenizerMeta) -> None:
        added = backend.get_added_tokens_decoder()
        self._backend = backend
        self._variants: dict[tuple[bool, bool], tokenizers.Tokenizer] = {(False, False): backend}
        self._variants_lock = threading.Lock()
        self._added = {token_id: token.content for token_id, token in added.items()}
        self._bytes = TokenBytes(backend, self._added)
        self._can_search_special = not any(token.special and token.normalized for token in added.values())
        self.meta = meta
        self.vocab_size = max(backend.get_vocab_size(), 1 + max(added, default=-1))
        self.bos_token_id = meta.bos_token_id
        self.adds_bos = meta.adds_bos
        self.eos_token_ids = meta.eos_token_ids
        self.special_token_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.special_tokens = tuple(self._added[token_id] for token_id in sorted(self.special_token_ids))
        longest_first = sorted(self.special_tokens, key=len, reverse=True)
        self._special_pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self.chat_template = ChatTemplate(
            meta.chat_template,
            self._text_of(meta.bos_token_id),
            self._text_of(meta.eos_token_id),
            self.special_tokens,
        )

    @cached_property
    def identity(self) -> str:
        """A hash of everything that decides how text becomes token ids."""
        return hashlib.sha256(self._backend.to_str().encode()).hexdigest()

    @property
    def strips_leading_space(self) -> bool:
        """Whether a text begins with a space that its tokens spell and the text has not (SentencePiece)."""
        return self._bytes.strips_leading_space

    # -- text to ids -------------------------------------------------------------------------------------------------

    def encode(
        self, text: str, *, add_special_tokens: bool = False, parse_special: bool = False, is_text_start: bool = True
    ) -> list[int]:
        """Token ids of a text.

        Args:
            add_special_tokens: put BOS in front if the model wants it and the text does not begin with it already.
            parse_special: special tokens spelled in the text become those tokens. Otherwise they are ordinary text,
                as text from users must be.
            is_text_start: False continues a text: no space is put in front (SentencePiece vocabularies do so).

        Raises:
            InvalidRequestError: the text is not a str, or holds a lone surrogate.
        """
        return self.encode_batch(
            [text], add_special_tokens=add_special_tokens, parse_special=parse_special, is_text_start=is_text_start
        )[0]

    def encode_batch(
        self,
        texts: Sequence[str],
        *,
        add_special_tokens: bool = False,
        parse_special: bool = False,
        is_text_start: bool = True,
    ) -> list[list[int]]:
        """`encode` for many texts; they are encoded in parallel."""
        for text in texts:
            _check_text(text)
        is_plain = [not parse_special and self._mentions_special(text) for text in texts]
        results: list[list[int]] = [[]] * len(texts)
        for plain in (False, True):
            chosen = [idx for idx, is_chosen in enumerate(is_plain) if is_chosen == plain]
            if not chosen:
                continue
            variant = self._variant(plain, not is_text_start and self._bytes.has_dummy_prefix)
            encodings = variant.encode_batch_fast([texts[idx] for idx in chosen], add_special_tokens=False)
            for idx, encoding in zip(chosen, encodings, strict=True):
                results[idx] = self._respell(encoding.ids) if plain else encoding.ids
        return [self._with_bos(ids) for ids in results] if add_special_tokens else results

    def encode_segments(self, segments: Sequence[TextSegment], *, is_text_start: bool = True) -> list[int]:
        """Token ids of a prompt whose special tokens come from the template only.

        The text is encoded jointly, as if it were one string, except that special tokens spelled in a content, or
        across its edge, stay ordinary text. With is_text_start there is exactly one BOS in front if the model wants
        it, whether the template writes one or not; without, the segments continue a text and none is added.
        """
        text = "".join(segment.text for segment in segments)
        _check_text(text)
        meant = self._meant_special(text, segments)
        spelled = [match.span() for match in self._special_pattern.finditer(text)]
        if meant == spelled and self._can_search_special:
            ids = self.encode(text, parse_special=True, is_text_start=is_text_start)
        else:
            ids = self._encode_around(text, meant, is_text_start)
        return self._with_one_bos(ids) if is_text_start else ids

    def explain_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> PromptExplanation:
        """What a conversation becomes for this model, and who wrote which tokens of it; `print` shows a table.

        Raises:
            ChatTemplateError: as `ChatTemplate.segments`.
        """
        segments = self.chat_template.segments(messages, add_generation_prompt, tools)
        return explain_tokens(
            [(segment.origin or TEMPLATE, segment.text) for segment in segments],
            self.encode_segments(segments),
            lambda ids: self.decode(ids, skip_special_tokens=False),
        )

    def _meant_special(self, text: str, segments: Sequence[TextSegment]) -> list[tuple[int, int]]:
        """Start and end of every special token that lies wholly in text of the template."""
        meant: list[tuple[int, int]] = []
        start = 0
        for is_template, run in groupby(segments, key=lambda segment: segment.is_template):
            end = start + sum(len(segment.text) for segment in run)
            if is_template:
                meant += [match.span() for match in self._special_pattern.finditer(text, start, end)]
            start = end
        return meant

    def _encode_around(self, text: str, meant: list[tuple[int, int]], is_text_start: bool) -> list[int]:
        """Encode the stretches between the meant special tokens as plain text."""
        ids: list[int] = []
        position = 0
        for start, end in meant:
            ids += self._encode_stretch(text[position:start], position == 0, is_text_start)
            token_id = self._backend.token_to_id(text[start:end])
            assert token_id is not None
            ids.append(token_id)
            position = end
        return ids + self._encode_stretch(text[position:], position == 0, is_text_start)

    def _encode_stretch(self, text: str, is_first: bool, is_text_start: bool) -> list[int]:
        if not text:
            return []
        has_prefix = is_text_start if is_first else self._bytes.has_prefix_after_special
        return self.encode(text, is_text_start=has_prefix)

    def _with_bos(self, ids: list[int]) -> list[int]:
        if not self.adds_bos or self.bos_token_id is None or ids[:1] == [self.bos_token_id]:
            return ids
        return [self.bos_token_id, *ids]

    def _with_one_bos(self, ids: list[int]) -> list[int]:
        """A template that writes BOS twice, or in front of one that a system prompt brings, means one."""
        num_bos = next((idx for idx, token_id in enumerate(ids) if token_id != self.bos_token_id), len(ids))
        return self._with_bos(ids[max(0, num_bos - 1) :])

    def _mentions_special(self, text: str) -> bool:
        return not self._can_search_special or self._special_pattern.search(text) is not None

    def _variant(self, is_plain: bool, is_continuation: bool) -> tokenizers.Tokenizer:
        """The backend with special tokens not recognised, or without a space put in front; made when first needed."""
        key = (is_plain, is_continuation)
        with self._variants_lock:
            if key not in self._variants:
                state: dict[str, Any] = json.loads(self._backend.to_str())
                if is_continuation:
                    TokenBytes.remove_dummy_prefix(state)
                variant = tokenizers.Tokenizer.from_str(json.dumps(state))
                variant.encode_special_tokens = is_plain
                self._variants[key] = variant
            return self._variants[key]

    def _respell(self, ids: list[int]) -> list[int]:
        """Replace special tokens that merges built out of plain text by the tokens of their characters."""
        unknown = self._bytes.unknown_token_id
        if self.special_token_ids.isdisjoint(ids):
            return ids
        spelled: list[int] = []
        for token_id in ids:
            is_built = token_id in self.special_token_ids and token_id != unknown
            spelled += self._bytes.spell(self._added[token_id]) if is_built else [token_id]
        return spelled

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
    ) -> list[int] | str:
        """A conversation as the model's template writes it, under the name and with the defaults of transformers: its
        token ids, or with tokenize=False its text. Contents never become special tokens among the ids.

        Raises:
            ChatTemplateError: the model has no template, or it refuses the messages.
        """
        if not tokenize:
            return self.chat_template.render(conversation, add_generation_prompt, tools)
        return self.encode_segments(self.chat_template.segments(conversation, add_generation_prompt, tools))

    # -- ids to text -------------------------------------------------------------------------------------------------

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True, *, is_text_start: bool = True) -> str:
        """The text of token ids. Bytes that are not UTF-8 become U+FFFD; ids that no token has spell nothing.

        Args:
            is_text_start: the space that SentencePiece puts in front of a text is taken off.
        """
        special = self.special_token_ids if skip_special_tokens else frozenset()
        data = b"".join(self._bytes[token_id] for token_id in token_ids if token_id not in special)
        text = data.decode("utf-8", errors="replace")
        return text.removeprefix(" ") if is_text_start and self.strips_leading_space else text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token adds to a text; empty for an id no token has, the token's text for a special one."""
        return self._bytes[token_id]

    def id_to_token(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it; None for an id no token has."""
        return self._backend.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None

    def token_to_id(self, token: str) -> int | None:
        """The id of a token as the vocabulary spells it; None where there is none."""
        return self._backend.token_to_id(token)

    def is_special(self, token_id: int) -> bool:
        """Whether this is a control token."""
        return token_id in self.special_token_ids

    def to_json(self) -> str:
        """The whole tokenizer as the text of a tokenizer.json."""
        return self._backend.to_str()

    def _text_of(self, token_id: int | None) -> str | None:
        return None if token_id is None else self.id_to_token(token_id)


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        raise InvalidRequestError(f"text={text!r:.80} must be a str, not {type(text).__name__}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"the text holds a lone surrogate {text[error.start]!r} at character {error.start}; it is not valid Unicode"
        ) from error
