"""A finished run as a line of a journal.

    {"key": ..., "occurrence": 0, "item": 12, "failed": false, "state": {...}, "trace": {...}}

The trace has the calls; the state has what is read from it beside them: names and what they are bound to, text,
messages, tokens, the value that the body returned, and what went wrong. `restore.py` makes a run of it again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from ..calls import Call
from ..errors import ProgramCancelledError, ProgramError, UnparsedTextError, described, words_of
from ..scope import Scope
from ..trace.capture import TokenReader, capture_trace
from ..values import Joined, Value
from .identity import ItemKey
from .plain_data import plain_data

_MAX_CAUSES = 8


def record_line(key: ItemKey, scope: Scope, reader: TokenReader) -> str:
    """The line of a run that has ended. O(tokens of all prompts).

    Raises:
        NotPlainDataError: the body returned what JSON has no form for.
    """
    failure = scope.run.body_error() or scope.failure()
    head = {
        "key": key.digest,
        "occurrence": key.occurrence,
        "item": key.item_idx,
        "failed": failure is not None,
        "state": _state_of(scope),
    }
    trace = capture_trace(scope.run, scope.interpreter.transcript.messages(), reader).to_json()
    return f'{json.dumps(head, separators=(",", ":"))[:-1]},"trace":{trace}}}'


def _state_of(scope: Scope) -> dict[str, Any]:
    snapshot = scope.interpreter.snapshot()
    body_error = scope.run.body_error()
    other_failure = scope.failure()
    variables = scope.variables()
    return {
        "variables": {name: _reference(value) for name, value in variables.items()},
        "values": {str(call.record.call_id): plain_data(call.get()) for call in _calls_with_values(variables.values())},
        "return_value": plain_data(scope.return_value, "the value that the program returned"),
        "text": snapshot.text,
        "messages": plain_data(snapshot.messages, "the messages"),
        "role": snapshot.role,
        "role_text": snapshot.role_text,
        "token_ids": snapshot.tokens.token_ids,
        "pending": [[segment.text, segment.is_template] for segment in snapshot.tokens.pending],
        "failure": None if snapshot.failure is None else _error_of(snapshot.failure.to_error()),
        "first_failure": None if other_failure is None else _error_of(other_failure),
        "body_error": None if body_error is None else _error_of(body_error),
    }


def _reference(value: Value) -> Any:
    """A call by its id, joined values as a list of references, anything else by what it is."""
    if isinstance(value, Call):
        return value.record.call_id
    if isinstance(value, Joined):
        return {"joined": [_reference(item) for item in value.values], "on_error": value.on_error}
    if not value.is_done:
        return {"error": _error_of(ProgramCancelledError("it had no value yet when the item ended"))}
    try:
        return {"value": plain_data(value.get())}
    except ProgramError as error:
        return {"error": _error_of(error)}


def _calls_with_values(values: Iterable[Value]) -> Iterator[Call]:
    """The calls among some values, joined ones included, whose value is another than their text."""
    for value in values:
        if isinstance(value, Joined):
            yield from _calls_with_values(value.values)
        elif isinstance(value, Call) and value.is_done and value.record.failure is None and not _is_text(value):
            yield value


def _is_text(call: Call) -> bool:
    value = call.get()
    return isinstance(value, str) and value == call.text


def _error_of(error: ProgramError) -> dict[str, Any]:
    causes: list[str] = []
    cause = error.__cause__
    while cause is not None and len(causes) < _MAX_CAUSES:
        causes.append(described(cause))
        cause = cause.__cause__
    told = {"type": type(error).__name__, "message": words_of(error), "causes": causes}
    return {**told, "text": error.text} if isinstance(error, UnparsedTextError) else told
