"""RequestPreparer: what happens to a request before it is queued, on the thread that submits it: it is checked, its
constraint is compiled, and the boundary between its prompt and a constrained text is healed."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from .grammar.compiler import GrammarCompiler
from .grammar.errors import GrammarError
from .grammar.healing import healed_prefix
from .grammar.interface import Grammar
from .request import Request
from .request_check import RequestLimits, check_request
from .stop_regex import compile_stop_regex

_MAX_KEPT_STOP_REGEXES = 64


class RequestPreparer:
    """Checks and completes requests. Safe to use from several threads.

    Args:
        grammars: compiles constraints for the engine's vocabulary.
    """

    def __init__(self, limits: RequestLimits, grammars: GrammarCompiler) -> None:
        self._limits = limits
        self._grammars = grammars
        self._stop_regex = lru_cache(_MAX_KEPT_STOP_REGEXES)(compile_stop_regex)

    def prepare(self, request: Request) -> Request:
        """The request as the engine takes it. Does nothing to one that was prepared before.

        Cost: O(prompt); compiling a grammar that was not met before takes milliseconds, at most a second.

        Raises:
            InvalidRequestError: malformed, or it can never be served. A GrammarError if its constraint or its
                stop_regex is why.
        """
        check_request(request, self._limits)
        stop_regexes = request.sampling_params.stop_regexes
        if stop_regexes and not request.stop_regexes:
            request = replace(request, stop_regexes=tuple(map(self._stop_regex, stop_regexes)))
        spec = request.constraint or request.sampling_params.grammar_spec
        if spec is None or request.grammar is not None:
            return request
        vocabulary = self._grammars.vocabulary
        num_healable = 0 if spec.kind in ("ebnf", "tagged_text") else request.num_healable_tokens
        num_healed, text = healed_prefix(request.prompt_token_ids, num_healable, vocabulary)
        try:
            grammar = self._grammars.compile(replace(spec, prefix=text) if num_healed else spec)
        except GrammarError as error:
            if request.constraint is None and error.field is None:
                error.field = spec.kind
            raise
        num_kept = len(request.prompt_token_ids) - num_healed
        request = replace(
            request,
            prompt_token_ids=request.prompt_token_ids[:num_kept],
            shared_prefix_len=min(request.shared_prefix_len, num_kept),
            prompt_logprobs_start=min(request.prompt_logprobs_start, num_kept),
            num_healable_tokens=0,
            grammar=grammar,
            healed_text=text,
            num_healed_tokens=num_healed,
        )
        on_incomplete = request.sampling_params.on_incomplete
        if (request.closes or on_incomplete != "return") and not self._can_end(request, grammar):
            if on_incomplete != "return":
                max_tokens = self._limits.max_tokens(request) - request.num_healed_tokens
                raise GrammarError(
                    f"no text was found that satisfies the constraint within {max_tokens} tokens: raise max_tokens, "
                    f"or take on_incomplete='return' instead of {on_incomplete!r}"
                )
            request = replace(request, closes=False)
        return request

    def _can_end(self, request: Request, grammar: Grammar) -> bool:
        """Some text is complete within max_tokens."""
        return grammar.ending().tokens(grammar.new_state(), self._limits.max_tokens(request)) is not None
