"""What the mock backend knows of constraints: as much as the standard library can check."""

from __future__ import annotations

import json
import re

from ...grammar_spec import GrammarSpec
from ...sampling_params import SamplingParams
from ..errors import InvalidProgramError

FREE_REPLY = "ok"


def default_reply(params: SamplingParams) -> str:
    """What the mock answers when it was given no replies: the first choice, or "ok"."""
    spec = params.grammar_spec
    return spec.source[0] if spec is not None and spec.kind == "choices" else FREE_REPLY


def satisfies(spec: GrammarSpec, text: str) -> bool:
    """Whether a text is of the language, as far as can be told: re.fullmatch; one of the choices; JSON, of whatever
    schema; anything, for a grammar."""
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
    except ValueError:
        return False
    return True
