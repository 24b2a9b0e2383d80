"""GrammarCompiler: compiles a grammar once, within limits, and keeps it.

A hostile grammar must not hold anybody up. So grammars are compiled where a request is submitted, never on the engine's
thread; each on a thread of its own, which is left behind when its time is over; and what was refused is remembered just
as what was compiled.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass, replace

from ...grammar_spec import GrammarSpec
from .backend import GrammarBackend
from .errors import GrammarBudgetError, GrammarError
from .interface import Grammar
from .registry import DEFAULT_BACKEND, GRAMMAR_BACKENDS
from .vocabulary import GrammarVocabulary

logger = logging.getLogger(__name__)

MAX_COMPILE_S = 1.0
MAX_OVERDUE = 8
"""Compilations that have run out of time and still run. With so many, new grammars are refused until one is through."""

_REFUSAL_BYTES = 1024
_MAX_CLOSING_S = 10.0


@dataclass(frozen=True, slots=True)
class _Entry:
    """What came of a grammar: itself, or why it is refused."""

    grammar: Grammar | None
    error: GrammarError | None
    num_bytes: int

    def result(self) -> Grammar:
        if self.grammar is None:
            assert self.error is not None
            raise _without_past(self.error)
        return self.grammar


class GrammarCompiler:
    """Compiles grammars for one vocabulary. Safe to use from several threads.

    Args:
        max_cache_bytes: of what is kept; the grammar used longest ago goes first.
    """

    def __init__(self, vocabulary: GrammarVocabulary, max_cache_bytes: int = 64 << 20) -> None:
        self.vocabulary = vocabulary
        self._max_cache_bytes = max_cache_bytes
        self._lock = threading.Lock()
        self._backends_lock = threading.Lock()
        self._backends: dict[str, GrammarBackend] = {}
        self._entries: OrderedDict[GrammarSpec, _Entry] = OrderedDict()
        self._num_bytes = 0
        self._running: dict[GrammarSpec, Future[_Entry]] = {}
        self._overdue: set[GrammarSpec] = set()
        self._threads: set[threading.Thread] = set()

    @property
    def num_cached(self) -> int:
        """Grammars and refusals that are kept."""
        return len(self._entries)

    @property
    def num_cached_bytes(self) -> int:
        """What they take, roughly."""
        return self._num_bytes

    def compile(self, spec: GrammarSpec) -> Grammar:
        """The grammar, compiled now or earlier. Blocks for at most MAX_COMPILE_S, and once while a backend is made.

        Raises:
            GrammarError: it cannot be enforced, or takes longer than that to compile.
        """
        name = spec.backend or DEFAULT_BACKEND
        spec = replace(spec, backend=name)
        with self._lock:
            entry = self._entries.get(spec)
            if entry is not None:
                self._entries.move_to_end(spec)
                return entry.result()
        backend = self._backend(name)
        with self._lock:
            entry = self._entries.get(spec)
            if entry is not None:  # compiled meanwhile
                return entry.result()
            future = self._running.get(spec) or self._start(spec, backend)
        try:
            return future.result(MAX_COMPILE_S).result()
        except TimeoutError:
            with self._lock:
                if not future.done():
                    self._overdue.add(spec)
            raise GrammarBudgetError(
                f"{spec.kind} takes more than {MAX_COMPILE_S:g} s to compile: make it smaller (fewer alternatives, "
                "shorter repetitions), or try again later if this machine is busy"
            ) from None

    def close(self) -> None:
        """Wait for what is still being compiled, a few seconds at most: a thread that is inside a library when the
        interpreter goes away takes the process down with it."""
        deadline = time.monotonic() + _MAX_CLOSING_S
        for thread in list(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))

    def _backend(self, name: str) -> GrammarBackend:
        if name not in GRAMMAR_BACKENDS:
            raise GrammarError(
                f"grammar_backend={name!r} is unknown: choose one of {', '.join(GRAMMAR_BACKENDS)}",
                field="grammar_backend",
            )
        with self._backends_lock:
            if name not in self._backends:
                self._backends[name] = GRAMMAR_BACKENDS[name](self.vocabulary)
            return self._backends[name]

    def _start(self, spec: GrammarSpec, backend: GrammarBackend) -> Future[_Entry]:
        """Begin to compile on a thread of its own. The lock is held."""
        if len(self._overdue) >= MAX_OVERDUE:
            raise GrammarBudgetError(
                f"{len(self._overdue)} grammars that take too long are still being compiled: try again later"
            )
        future: Future[_Entry] = Future()
        thread = threading.Thread(target=self._run, args=(spec, backend, future), name="ramet-grammar", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise GrammarBudgetError(f"{spec.kind} cannot be compiled now, try again later: {error}") from None
        self._running[spec] = future
        self._threads.add(thread)
        return future

    def _run(self, spec: GrammarSpec, backend: GrammarBackend, future: Future[_Entry]) -> None:
        try:
            grammar = backend.compile(spec)
            entry = _Entry(grammar, None, grammar.num_bytes)
        except GrammarError as error:
            entry = _Entry(None, _without_past(error), _REFUSAL_BYTES)
        except BaseException as error:  # as a panic of a library in Rust is
            logger.warning("The compilation of a grammar failed", exc_info=error)
            refusal = GrammarError(f"{spec.kind} cannot be enforced: its compilation failed with {error!r:.1000}")
            entry = _Entry(None, refusal, _REFUSAL_BYTES)
        with self._lock:
            del self._running[spec]
            self._overdue.discard(spec)
            self._keep(spec, entry)
            self._threads.discard(threading.current_thread())
        future.set_result(entry)

    def _keep(self, spec: GrammarSpec, entry: _Entry) -> None:
        num_bytes = entry.num_bytes + spec.num_source_chars
        self._entries[spec] = replace(entry, num_bytes=num_bytes)
        self._num_bytes += num_bytes
        while self._num_bytes > self._max_cache_bytes and len(self._entries) > 1:
            self._num_bytes -= self._entries.popitem(last=False)[1].num_bytes


def _without_past(error: GrammarError) -> GrammarError:
    """The same error, never raised. One that was holds on to the frames that it went through, and they to all that a
    request has brought: kept, or raised again and again, it would keep that too."""
    copied = type(error).__new__(type(error), *error.args)
    vars(copied).update(vars(error))
    return copied
