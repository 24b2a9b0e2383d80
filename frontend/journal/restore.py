"""A line of a journal as the finished run that it was made of. The body does not run, and no backend is asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...sampling_params import InvalidSamplingParamsError, SamplingParams
from ..backend import TextSegment
from ..callbacks import Callback, Forget, nothing_to_forget
from ..calls import Call, CallMeta, CallRecord, Failure, ParseFailure
from ..errors import GenerationError, ProgramCancelledError, ProgramError, UnparsedTextError
from ..operations import Snapshot
from ..scope import Scope
from ..token_log import TokenLog
from ..trace.program_trace import CallTrace, ProgramTrace
from ..values import Joined, Value
from .shapes import check_state

_ERROR_TYPES: Mapping[str, type[ProgramError]] = {
    kind.__name__: kind for kind in (ProgramError, GenerationError, ProgramCancelledError)
}


class JournaledError(RuntimeError):
    """What an exception of an earlier process said: "Type: message". The cause of errors that come from a journal."""


class KnownValue:
    """A value that is there, or a Failure, and belongs to no call."""

    def __init__(self, value: object) -> None:
        self._value = value

    @property
    def is_done(self) -> bool:
        return True

    def wait(self, timeout: float | None = None) -> None:
        """It is there."""

    def when_done(self, callback: Callback) -> Forget:
        callback()
        return nothing_to_forget

    def get(self, timeout: float | None = None) -> object:
        """Raises what it failed with."""
        if isinstance(self._value, Failure):
            raise self._value.to_error()
        return self._value

    def metas(self, timeout: float | None = None) -> list[CallMeta]:
        return []

    def chunks(self, timeout: float | None = None) -> Iterator[str]:
        yield str(self.get())


def restored_scope(record: Mapping[str, Any], new_scope: Callable[[], Scope]) -> Scope:
    """The run of a record, as a scope that has ended.

    Raises:
        Exception: the record is damaged.
    """
    state = record["state"]
    check_state(state)
    trace = ProgramTrace.from_json(json.dumps(record["trace"]))
    run = new_scope().run
    scope = Scope(run, is_branch=True)
    calls: dict[int, Call] = {}
    for item in trace.calls:
        call_record = _call_record(item, run.started_at)
        run.graph.append(call_record)
        if item.is_model_call:
            calls[item.call_id] = _ended_call(call_record, item, state["values"])
    run.arguments = trace.arguments
    run.start_time = trace.start_time
    run.restored_trace = trace
    scope.bind({name: _value(name, item, calls) for name, item in state["variables"].items()})
    scope.return_value = state["return_value"]
    _end_interpreter(scope, state)
    run.end_without_body(_failure(state["body_error"]))
    return scope


def _end_interpreter(scope: Scope, state: Mapping[str, Any]) -> None:
    backend = scope.run.backend
    pending = [TextSegment(text, is_template) for text, is_template in state["pending"]]
    own_failure, first_failure = _failure(state["failure"]), _failure(state["first_failure"])
    end = Snapshot(
        tokens=TokenLog.restored(backend, state["token_ids"], pending),
        text=state["text"],
        messages=tuple(state["messages"]),
        role=state["role"],
        role_text=state["role_text"],
        failure=own_failure,
        backend=backend,
    )
    scope.interpreter.start(end)
    if own_failure is None and first_failure is not None:  # of a branch, or a text that did not become a value
        stand_in = Scope(scope.run, is_branch=True)
        stand_in.interpreter.start(Snapshot(TokenLog(backend), "", (), None, "", first_failure, backend))
        scope.branches.append(stand_in)


def _call_record(item: CallTrace, started_at: float) -> CallRecord:
    record = CallRecord(item.call_id, item.kind, item.name, item.parent_ids, item.branch, item.source)
    record.asked_at = started_at + item.asked_s
    record.num_branches = item.num_branches
    if not item.is_model_call:
        record.text = item.text
    elif item.kind == "gen":
        record.sampling_params = _sampling_params(item.params)
    else:
        choices = item.params.get("choices")
        record.choices = tuple(choices) if isinstance(choices, list) else ()
    if item.submitted_s is not None:
        record.set_prompt(item.prompt_token_ids, len(item.prompt_token_ids))
        record.submitted_at = started_at + item.submitted_s
    return record


def _sampling_params(params: Mapping[str, object]) -> SamplingParams | None:
    """None where JSON did not keep them exactly: they are for reading only."""
    try:
        return SamplingParams(**params)  # type: ignore[arg-type]
    except (InvalidSamplingParamsError, TypeError):
        return None


def _ended_call(record: CallRecord, item: CallTrace, values: Mapping[str, object]) -> Call:
    call = Call(record)
    method = item.params.get("choices_method")
    record.choices_method = method if isinstance(method, str) else None
    failure: Failure | None = None
    if item.error is not None:
        cause = _cause(item.error.causes)
        if item.meta is not None:
            failure = ParseFailure(item.error.message, cause, text=item.text)
        else:
            failure = Failure(item.error.message, cause, _ERROR_TYPES.get(item.error.type, GenerationError))
    if item.meta is None:
        call.fail(failure or Failure(f"{record.describe()} has no outcome in the journal", None))
    else:
        call.start(None)
        call.succeed(failure or values.get(str(item.call_id), item.text), item.text, item.meta)
    return call


def _value(name: str, reference: Any, calls: Mapping[int, Call]) -> Value:
    if isinstance(reference, int):
        return calls[reference]
    if "joined" in reference:
        values = [_value(name, item, calls) for item in reference["joined"]]
        return Joined(name, values, reference["on_error"])
    failure = _failure(reference.get("error"))
    return KnownValue(reference["value"] if failure is None else failure)


def _failure(error: Mapping[str, Any] | None) -> Failure | None:
    if error is None:
        return None
    message, cause = error["message"], _cause(error["causes"])
    if error["type"] == UnparsedTextError.__name__:
        return ParseFailure(message, cause, text=error["text"])
    return Failure(message, cause, _ERROR_TYPES.get(error["type"], ProgramError))


def _cause(causes: Sequence[str]) -> JournaledError | None:
    """The chain of what was told of causes, the nearest first."""
    error: JournaledError | None = None
    for told in reversed(causes):
        outer = JournaledError(told)
        outer.__cause__ = error
        error = outer
    return error
