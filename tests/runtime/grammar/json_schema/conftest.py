"""A checker of texts against compiled schemas, over the tokens of the bundled model."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import llguidance
import numpy as np
import pytest

from ramet.grammar_spec import JsonWhitespace
from ramet.runtime.grammar.json_schema import json_schema_lark
from ramet.runtime.grammar.vocabulary import GrammarVocabulary
from ramet.runtime.tokenizer import Tokenizer, load_tokenizer
from ramet.runtime.weights.resolve import resolve_path


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer(resolve_path("smollm2"))


@pytest.fixture(scope="session")
def vocabulary(tokenizer: Tokenizer) -> GrammarVocabulary:
    return GrammarVocabulary(tokenizer, tokenizer.vocab_size)


@dataclass(frozen=True)
class CompiledSchema:
    """A schema's grammar, and the texts it allows however they are cut into tokens."""

    matcher: llguidance.LLMatcher
    tokenizer: Tokenizer
    byte_tokens: dict[int, int]
    vocab_size: int

    def accepts_tokens(self, token_ids: list[int]) -> bool:
        matcher = self.matcher.deep_copy()
        if matcher.validate_tokens(token_ids) != len(token_ids):
            return False
        assert matcher.consume_tokens(token_ids)
        return bool(matcher.is_accepting())

    def accepts(self, text: str) -> bool:
        """By the tokens that the tokenizer makes of it; single bytes must agree, where the vocabulary has them."""
        found = self.accepts_tokens(self.tokenizer.encode(text))
        data = text.encode()
        if all(byte in self.byte_tokens for byte in data):
            assert self.accepts_tokens([self.byte_tokens[byte] for byte in data]) == found, text
        return found

    def random_text(self, seed: int, max_tokens: int = 150) -> str | None:
        """A text of random tokens among those allowed, preferring short ways out; None where it did not end."""
        rng = random.Random(seed)
        matcher = self.matcher.deep_copy()
        tokens: list[int] = []
        while not matcher.is_stopped() and len(tokens) < max_tokens:
            mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
            allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")[: self.vocab_size])
            allowed = allowed[~np.isin(allowed, list(self.tokenizer.eos_token_ids))]
            if matcher.is_accepting() and (not len(allowed) or rng.random() < 0.5):
                break
            assert len(allowed), (self.tokenizer.decode(tokens), matcher.get_error())
            short = [token for token in rng.choices(allowed, k=12) if len(self.tokenizer.token_bytes(token)) <= 2]
            closing = [token for token in self.closing if mask[token >> 3] >> (token & 7) & 1]
            pool = closing if closing and rng.random() < 0.4 else short or list(allowed)
            token = int(rng.choice(pool))
            assert matcher.consume_token(token)
            tokens.append(token)
        if not matcher.is_accepting():
            return None
        # Bytes that are no text would be a fault.
        return b"".join(map(self.tokenizer.token_bytes, tokens)).decode()

    @property
    def closing(self) -> list[int]:
        return [self.byte_tokens[ord(mark)] for mark in '"}],']


@pytest.fixture(scope="session")
def compile_schema(tokenizer: Tokenizer) -> Callable[..., CompiledSchema]:
    """Compiles a schema, given as text or as data; raises what `json_schema_lark` raises."""
    engine = llguidance.LLTokenizer(
        tokenizer._backend.to_str(), n_vocab=tokenizer.vocab_size, eos_token=sorted(tokenizer.eos_token_ids)
    )
    spelled = {tokenizer.token_bytes(token_id): token_id for token_id in range(tokenizer.vocab_size)}
    byte_tokens = {byte: spelled[bytes([byte])] for byte in range(256) if bytes([byte]) in spelled}

    def compile_text(schema: Any, whitespace: JsonWhitespace = "fixed", prefix: str = "") -> CompiledSchema:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        grammar = llguidance.LLMatcher.grammar_from_lark(json_schema_lark(text, whitespace, prefix))
        matcher = llguidance.LLMatcher(engine, grammar, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        return CompiledSchema(matcher, tokenizer, byte_tokens, tokenizer.vocab_size)

    return compile_text
