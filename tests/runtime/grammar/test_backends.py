"""What every grammar backend promises, on grammars that all of them take."""

from __future__ import annotations

import gc
import random
import re
import threading
import weakref

import numpy as np
import pytest

from ramet.grammar_spec import GrammarSpec
from ramet.runtime.grammar import outlines_backend
from ramet.runtime.grammar.backend import GrammarBackend
from ramet.runtime.grammar.compiler import MAX_OVERDUE, GrammarCompiler
from ramet.runtime.grammar.errors import GrammarError, UnsupportedRegexError
from ramet.runtime.grammar.interface import Grammar, GrammarState
from ramet.runtime.grammar.outlines_backend import OutlinesBackend
from ramet.runtime.grammar.registry import GRAMMAR_BACKENDS
from ramet.runtime.grammar.vocabulary import GrammarVocabulary
from ramet.runtime.tokenizer import Tokenizer, load_tokenizer
from ramet.runtime.weights.resolve import resolve_path

PATTERNS = [r"[0-9]{4}-[0-9]{2}-[0-9]{2}", "(yes|no) [a-f]{1,4}!", "é{2}[α-ω]{1,3}\n", "abc"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(resolve_path("smollm2"))


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Tokenizer) -> GrammarVocabulary:
    return GrammarVocabulary(tokenizer, tokenizer.vocab_size + 5)


@pytest.fixture(scope="module", params=GRAMMAR_BACKENDS)
def backend(request: pytest.FixtureRequest, vocabulary: GrammarVocabulary) -> GrammarBackend:
    return GRAMMAR_BACKENDS[request.param](vocabulary)


def allowed_in(state: GrammarState, vocabulary: GrammarVocabulary) -> list[int]:
    words = np.full(vocabulary.num_words, -1, dtype=np.int32)
    state.fill_mask(words)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    assert not bits[vocabulary.vocab_size :].any()
    return [int(token_id) for token_id in np.flatnonzero(bits)]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("seed", range(3))
def test_a_walk_through_the_masks_ends_in_a_member(backend, vocabulary, pattern, seed):
    rng = random.Random(seed)
    grammar = backend.compile(GrammarSpec("regex", pattern))
    state, ending, tokens = grammar.new_state(), grammar.ending(), []
    while not state.is_finished:
        assert state.error is None
        forced = state.forced_tokens()
        allowed = allowed_in(state, vocabulary)
        assert not {token_id for token_id in allowed if not vocabulary.token_bytes[token_id]}
        rest = ending.tokens(state, 200)
        assert rest is not None
        trial = state.fork()
        assert trial.try_accept(rest) == len(rest)
        assert trial.is_accepting
        if not allowed:
            assert state.is_accepting
            break
        token_id = forced[0] if forced else rng.choice(allowed)
        assert token_id in allowed
        assert state.allows(token_id)
        assert state.try_accept([token_id]) == 1
        ending = ending.after(token_id)
        tokens.append(token_id)
    text = b"".join(vocabulary.token_bytes[token_id] for token_id in tokens).decode()
    assert re.fullmatch(pattern, text)
    assert state.is_accepting


def test_forks_go_their_own_way_and_rollback_takes_back(backend, tokenizer, vocabulary):
    state = backend.compile(GrammarSpec("regex", "(yes|no) [a-f]{1,4}!")).new_state()
    before = allowed_in(state, vocabulary)
    tokens = tokenizer.encode("yes ab", is_text_start=False)
    fork = state.fork()
    assert fork.try_accept(tokens) == len(tokens)
    assert allowed_in(state, vocabulary) == before
    fork.rollback(len(tokens))
    assert allowed_in(fork, vocabulary) == before
    assert fork.try_accept(tokenizer.encode("no c!", is_text_start=False)) > 0
    assert fork.is_accepting


def test_a_token_that_is_not_allowed_changes_nothing(backend, tokenizer, vocabulary):
    state = backend.compile(GrammarSpec("regex", "[ab]{3}")).new_state()
    (a,), (x,) = tokenizer.encode("a", is_text_start=False), tokenizer.encode("x", is_text_start=False)
    eos = min(tokenizer.eos_token_ids)
    for wrong in (x, eos, tokenizer.vocab_size + 1):
        assert not state.allows(wrong)
        assert state.try_accept([wrong, a]) == 0
    assert state.try_accept([a, eos, a]) == 1
    assert state.try_accept([a, a, a]) == 2
    assert state.is_accepting
    assert not allowed_in(state, vocabulary)


def test_a_prefix_comes_before_the_text(backend, tokenizer, vocabulary):
    state = backend.compile(GrammarSpec("choices", ("yes", "no"), prefix=" ")).new_state()
    spelled = {vocabulary.token_bytes[token_id] for token_id in allowed_in(state, vocabulary)}
    assert {b" yes", b" no", b" "} <= spelled
    assert state.try_accept(tokenizer.encode(" no", is_text_start=False)) == 1
    assert state.is_accepting


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        (GrammarSpec("regex", "(?=a)b"), UnsupportedRegexError),
        (GrammarSpec("regex", r"a[^\s\S]"), GrammarError),
        (GrammarSpec("regex", "\x04"), GrammarError),
        (GrammarSpec("choices", ("a", "\x04")), GrammarError),
    ],
    ids=str,
)
def test_what_cannot_be_generated_is_refused(backend, spec, error):
    with pytest.raises(error):
        backend.compile(spec)


def test_compiled_grammars_and_refusals_are_kept_up_to_a_bound(vocabulary):
    compiler = GrammarCompiler(vocabulary, max_cache_bytes=400_000)
    assert compiler.compile(GrammarSpec("regex", "a")) is compiler.compile(GrammarSpec("regex", "a"))
    for _ in range(2):
        with pytest.raises(UnsupportedRegexError, match="position 0"):
            compiler.compile(GrammarSpec("regex", r"\b"))
    assert compiler.num_cached == 2
    for idx in range(20):
        compiler.compile(GrammarSpec("regex", f"a{idx}"))
    assert compiler.num_cached_bytes <= 400_000
    assert compiler.num_cached < 10
    with pytest.raises(GrammarError, match="llguidance, outlines"):
        compiler.compile(GrammarSpec("regex", "a", backend="none"))
    compiler.close()


def test_a_kept_refusal_holds_nothing_of_those_who_met_it(vocabulary):
    class Body:
        """What a request has brought."""

    def ask(body: Body) -> str:
        with pytest.raises(UnsupportedRegexError) as caught:
            compiler.compile(GrammarSpec("regex", "(?=a)"))
        assert caught.value.pattern == "(?=a)"
        return str(caught.value)

    compiler = GrammarCompiler(vocabulary)
    bodies = [Body(), Body()]
    gone = [weakref.ref(body) for body in bodies]
    messages = {ask(bodies.pop()) for _ in range(2)}
    gc.collect()
    assert len(messages) == compiler.num_cached == 1
    assert [body() for body in gone] == [None, None]


class Panic(BaseException):
    """Libraries in Rust raise such, which are no Exceptions."""


class PanickingBackend:
    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        pass

    def compile(self, spec: GrammarSpec) -> Grammar:
        raise Panic("index out of bounds")


def test_a_library_that_panics_refuses_the_grammar_at_once(vocabulary, monkeypatch, caplog):
    monkeypatch.setitem(GRAMMAR_BACKENDS, "outlines", PanickingBackend)
    compiler = GrammarCompiler(vocabulary)
    for idx in range(2 * MAX_OVERDUE):
        with pytest.raises(GrammarError, match="index out of bounds"):
            compiler.compile(GrammarSpec("regex", f"a{idx}", backend="outlines"))
    assert compiler.compile(GrammarSpec("regex", "a"))
    assert len(caplog.records) == 2 * MAX_OVERDUE


def test_outlines_that_panics_is_no_matter_of_time(vocabulary, monkeypatch):
    def panic(*arguments: object) -> None:
        raise Panic("index out of bounds")

    monkeypatch.setattr(outlines_backend, "Index", panic)
    with pytest.raises(GrammarError, match="cannot build its table: index out of bounds"):
        OutlinesBackend(vocabulary).compile(GrammarSpec("regex", "ab"))


def test_a_grammar_may_be_tried_again_when_there_was_no_thread_for_it(vocabulary, monkeypatch):
    class NoThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    compiler, spec = GrammarCompiler(vocabulary), GrammarSpec("regex", "abc")
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", NoThread)
        with pytest.raises(GrammarError, match="try again later: can't start new thread"):
            compiler.compile(spec)
    assert compiler.compile(spec)
    compiler.close()
