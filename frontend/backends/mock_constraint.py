"""What the mock backend knows of constraints: as much as the standard library can check."""

from __future__ import annotations

import json
import re

from ...grammar_spec import GrammarSpec
from ...regex_outline import MAX_REGEX_CHARS, RegexSyntaxError, outline
from ...sampling_params import InvalidSamplingParamsError, SamplingParams
from ..errors import InvalidProgramError

FREE_REPLY = "ok"


_MAX_STOP_REPEATS = 512
_MAX_REPEATS = 10_000
"""As the engine has them. They also keep `re` from counting for hours."""


def check_patterns(params: SamplingParams) -> None:
    """Refuse patterns that no engine could enforce. What is left may still be too large for one.

    Raises:
        InvalidSamplingParamsError: a pattern has look-around, a back-reference or the like, repeats too much, or is a
            stop_regex with an anchor.
    """
    for pattern in params.stop_regexes:
        _check_pattern("stop_regex", pattern, _MAX_STOP_REPEATS)
        if outline(pattern).has_anchors:
            raise InvalidSamplingParamsError(
                f"stop_regex={pattern!r} is not allowed: it is looked for everywhere in the text, so an anchor has no "
                "meaning in it; leave it out"
            )
    spec = params.grammar_spec
    if spec is not None and spec.kind == "regex":
        assert isinstance(spec.source, str)
        if len(spec.source) > MAX_REGEX_CHARS:
            raise InvalidSamplingParamsError(f"a regex must have at most {MAX_REGEX_CHARS:,} characters")
        _check_pattern("regex", spec.source, _MAX_REPEATS)


def _check_pattern(name: str, pattern: str, max_repeats: int) -> None:
    try:
        found = outline(pattern)
    except RegexSyntaxError as error:
        raise InvalidSamplingParamsError(f"{name}={pattern!r:.200} is not allowed: {error}") from None
    if found.undecidable is not None:
        raise InvalidSamplingParamsError(
            f"{name}={pattern!r:.200} is not allowed: it has {found.undecidable}, which cannot be decided character by "
            "character"
        )
    if found.max_repeats > max_repeats:
        raise InvalidSamplingParamsError(
            f"{name}={pattern!r:.200} is not allowed: its repeats multiply to {found.max_repeats}, at most "
            f"{max_repeats} is allowed"
        )


def default_reply(params: SamplingParams) -> str:
    """What the mock answers when it was given no replies: the first choice, or "ok"."""
    spec = params.grammar_spec
    return spec.source[0] if spec is not None and spec.kind == "choices" else FREE_REPLY


def satisfies(spec: GrammarSpec, text: str) -> bool:
    """Whether a text is of the language, as far as can be told: re.fullmatch; one of the choices; JSON, of whatever
    schema; anything, for a grammar. `re` backtracks: a regex that is ambiguous may take long on a long reply."""
    if spec.kind == "regex":
        assert isinstance(spec.source, str)
        return re.fullmatch(spec.source, text) is not None
    if spec.kind == "choices":
        return text in spec.source
    if spec.kind == "json_schema":
        return _is_json(text)
    return True


def check_reply(params: SamplingParams, reply: str) -> None:
    """
    Raises:
        InvalidProgramError: the reply is none that a model under this constraint could give.
    """
    spec = params.grammar_spec
    if spec is None or satisfies(spec, reply):
        return
    wanted = {
        "regex": f"must match the regex {spec.source!r}",
        "choices": f"must be one of {list(spec.source)}",
        "json_schema": "must be JSON",
    }
    raise InvalidProgramError(
        f"the mock backend's reply {reply!r} {wanted[spec.kind]}: script one that does, MockBackend(replies)"
    )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
