"""What each token of a vocabulary spells, in bytes.

Two spellings are in use: byte-level BPE writes every byte as one printable character (GPT-2, Radford et al. 2019,
`bytes_to_unicode`), and SentencePiece writes a space as U+2581 and a lone byte as <0xAB>.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import tokenizers

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_level_alphabet() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + idx): byte for idx, byte in enumerate(others)}


class TokenBytes:
    """Bytes of every token id, computed when first asked for.

    Attributes:
        strips_leading_space: the first token of a text spells a space too many.
        has_dummy_prefix: encoding puts a space in front of a text.
        has_prefix_after_special: encoding puts one after every special token too.
        unknown_token_id: stands for text the vocabulary cannot spell; None where it has no such token.
    """

    def __init__(self, backend: tokenizers.Tokenizer, added: Mapping[int, str]) -> None:
        decoders = _flatten(_state_of(backend.decoder), "decoders")
        kinds = {step["type"] for step in decoders}
        self._backend = backend
        self._added = added
        self._is_byte_level = "ByteLevel" in kinds
        self._alphabet = _byte_level_alphabet()
        self._letters = {byte: letter for letter, byte in self._alphabet.items()}
        self._known: dict[int, bytes] = {}
        self.strips_leading_space = "Metaspace" in kinds or any(
            step["type"] == "Strip" and step.get("content") == " " and step.get("start") for step in decoders
        )
        steps = _flatten(_state_of(backend.normalizer), "normalizers")
        steps += _flatten(_state_of(backend.pre_tokenizer), "pretokenizers")
        prefixes = [step for step in steps if _adds_prefix(step)]
        self.has_dummy_prefix = bool(prefixes)
        self.has_prefix_after_special = any(step.get("prepend_scheme") != "first" for step in prefixes)
        model = backend.model
        unknown = model.unk_token if isinstance(model, tokenizers.models.BPE) else None
        self.unknown_token_id = None if unknown is None else backend.token_to_id(unknown)

    def __getitem__(self, token_id: int) -> bytes:
        """The bytes of a token; empty for an id no token has."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._compute(token_id)
        return known

    def _compute(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode()
        token = self._backend.id_to_token(token_id) if token_id >= 0 else None
        if token is None:
            return b""
        if self._is_byte_level:
            if all(letter in self._alphabet for letter in token):
                return bytes(self._alphabet[letter] for letter in token)
            return token.encode()
        byte = _BYTE_TOKEN.fullmatch(token)
        return bytes([int(byte.group(1), 16)]) if byte else token.replace("▁", " ").encode()

    def spell(self, text: str) -> list[int]:
        """Ids of the single characters or bytes of a text; what the vocabulary lacks is left out."""
        ids: list[int] = []
        for letter in text:
            whole = None if self._is_byte_level else self._backend.token_to_id(letter.replace(" ", "▁"))
            if whole is not None:
                ids.append(whole)
                continue
            for byte in letter.encode():
                name = self._letters[byte] if self._is_byte_level else f"<0x{byte:02X}>"
                token_id = self._backend.token_to_id(name)
                ids += [] if token_id is None else [token_id]
        return ids

    @staticmethod
    def remove_dummy_prefix(state: dict[str, Any]) -> None:
        """Take out of a parsed tokenizer.json what puts a space in front of a text. Mutates `state`."""
        for part, key in (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")):
            steps = [_without_prefix(step) for step in _flatten(state.get(part), key)]
            kept = [step for step in steps if step is not None]
            state[part] = {"type": "Sequence", key: kept} if kept else None


def _state_of(component: Any) -> dict[str, Any] | None:
    """A component of a tokenizer as the JSON object it is saved as."""
    if component is None:
        return None
    state: dict[str, Any] = json.loads(component.__getstate__())
    return state


def _flatten(state: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """The steps of a component; a Sequence lists its own under `key`."""
    if state is None:
        return []
    if state.get("type") != "Sequence":
        return [state]
    return [step for part in state[key] for step in _flatten(part, key)]


def _adds_prefix(step: dict[str, Any]) -> bool:
    kind = step["type"]
    if kind == "Metaspace":
        return bool(step.get("prepend_scheme", "always") != "never")
    return kind == "Prepend" or (kind == "ByteLevel" and bool(step.get("add_prefix_space")))


def _without_prefix(step: dict[str, Any]) -> dict[str, Any] | None:
    if not _adds_prefix(step):
        return step
    if step["type"] == "Prepend":
        return None
    return {**step, "prepend_scheme": "never"} if step["type"] == "Metaspace" else {**step, "add_prefix_space": False}
