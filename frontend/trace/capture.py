"""From a run to its ProgramTrace. Never waits: what has not come yet is not in the trace."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache

from ...sampling_params import SamplingParams
from ..backend import Backend, Message, TextSegment
from ..calls import PACKAGE_DIR, CallRecord, Failure, ParseFailure
from ..errors import ProgramCancelledError, described, words_of
from ..run_context import RunContext
from .plain_values import jsonable
from .program_trace import CallStatus, CallTrace, ErrorTrace, ProgramStatus, ProgramTrace, TokenText

_MAX_CAUSES = 8


class TokenReader:
    """What token ids read as, asked of a backend once for each id. One reader may serve many traces of a backend; it is
    not thread-safe."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._known: dict[int, TokenText] = {}

    def text(self, token_ids: Sequence[int]) -> str | None:
        """Of all of them together; None if the backend cannot tell."""
        if not token_ids:
            return ""
        try:
            return self._backend.decode(token_ids)
        except Exception:  # a trace must come about whatever a backend does
            return None

    def vocabulary(self, token_ids: Iterable[int]) -> tuple[TokenText, ...]:
        """Each of the ids once, in order, without those that the backend cannot tell."""
        tokens = (self._token(token_id) for token_id in sorted(set(token_ids)))
        return tuple(token for token in tokens if token is not None)

    def _token(self, token_id: int) -> TokenText | None:
        if token_id not in self._known:
            text = self.text([token_id])
            if text is None:
                return None
            self._known[token_id] = TokenText(token_id, text, self._is_special(token_id, text))
        return self._known[token_id]

    def _is_special(self, token_id: int, text: str) -> bool:
        """Whether template text becomes this token and literal text does not."""
        if not text or "\ufffd" in text:
            return False
        try:
            literal, template = (
                list(self._backend.encode([TextSegment(text, is_template=is_template)], at_start=False))
                for is_template in (False, True)
            )
        except Exception:
            return False
        return literal != [token_id] and template == [token_id]


def capture_trace(run: RunContext, messages: Sequence[Message] = (), reader: TokenReader | None = None) -> ProgramTrace:
    """The run as far as it has come. O(tokens of all prompts): each is decoded once.

    Args:
        messages: the complete chat messages of the state that is asked.
        reader: one of the run's backend, if there is one already.
    """
    is_body_over = run.is_body_over  # before the calls are read, so that a run that is over is shown whole
    records = run.graph.records()
    reader = TokenReader(run.backend) if reader is None else reader
    calls = tuple(_call_trace(record, run.started_at, reader) for record in records)
    statuses = {call.status for call in calls}
    is_running = not is_body_over or bool(statuses & {"waiting", "running"})
    raised = run.raised
    ends = [call.ended_s for call in calls if call.ended_s is not None]
    if run.body_ended_at is not None:
        ends.append(run.body_ended_at - run.started_at)
    return ProgramTrace(
        name=run.program_name,
        run_id=run.run_id,
        status=_program_status(raised, statuses, is_running=is_running),
        arguments=_object(run.arguments),
        start_time=run.start_time,
        duration_s=time.monotonic() - run.started_at if is_running else max(ends, default=0.0),
        error=None if raised is None else _error_trace(raised),
        calls=calls,
        messages=tuple(map(_object, messages)),
        model=_model_info(run.backend) if any(call.submitted_s is not None for call in calls) else {},
        vocabulary=reader.vocabulary(_token_ids(calls)),
    )


def _object(values: Mapping[str, object]) -> dict[str, object]:
    return {name: jsonable(value) for name, value in values.items()}


def _program_status(raised: BaseException | None, statuses: set[CallStatus], *, is_running: bool) -> ProgramStatus:
    if raised is not None:
        return "raised"
    if is_running:
        return "running"
    return "failed" if statuses & {"failed", "cancelled", "unparsed"} else "done"


def _call_trace(record: CallRecord, run_started_at: float, reader: TokenReader) -> CallTrace:
    meta, failure = record.meta, record.failure  # read once: another thread may settle the call now

    def since_start(at: float | None) -> float | None:
        return None if at is None else at - run_started_at

    prompt_token_ids = record.prompt_token_ids
    submitted_s = since_start(record.submitted_at)
    return CallTrace(
        call_id=record.call_id,
        kind=record.kind,
        name=record.name,
        status=_call_status(record, failure),
        parent_ids=record.parent_ids,
        branch=record.branch,
        source=record.source,
        num_branches=record.num_branches,
        text=record.text_so_far(),
        prompt_token_ids=prompt_token_ids,
        prompt_text=reader.text(prompt_token_ids) if prompt_token_ids else None,
        params=_params(record),
        value=None if meta is None or failure is not None else jsonable(record.value),
        meta=meta,
        asked_s=record.asked_at - run_started_at,
        submitted_s=submitted_s,
        started_s=_later(submitted_s, None if meta is None else meta.queued_s),
        first_token_s=_later(submitted_s, None if meta is None else meta.first_token_s),
        ended_s=since_start(record.ended_at) if meta is not None or failure is not None else None,
        error=None if failure is None else _failure_trace(failure),
    )


def _later(start_s: float | None, seconds: float | None) -> float | None:
    return None if start_s is None or seconds is None else start_s + seconds


def _call_status(record: CallRecord, failure: Failure | None) -> CallStatus:
    if isinstance(failure, ParseFailure):
        return "unparsed"
    if failure is not None:
        return "cancelled" if failure.error_type is ProgramCancelledError else "failed"
    if record.kind not in ("gen", "select") or record.meta is not None:
        return "done"
    return "waiting" if record.submitted_at is None else "running"


@cache
def _default_params() -> SamplingParams:
    return SamplingParams()


def _params(record: CallRecord) -> dict[str, object]:
    if record.kind == "select":
        return {"choices": list(record.choices), "choices_method": record.choices_method}
    params = record.sampling_params
    if params is None:
        return {}
    return {
        item.name: jsonable(value)
        for item in fields(params)
        if (value := getattr(params, item.name)) != getattr(_default_params(), item.name)
    }


def _failure_trace(failure: Failure) -> ErrorTrace:
    causes = _causes(failure.cause) if failure.cause is not None else ()
    return ErrorTrace(failure.error_type.__name__, failure.message, causes)


def _error_trace(error: BaseException) -> ErrorTrace:
    return ErrorTrace(type(error).__name__, words_of(error), _causes(error)[1:], _raising_line(error))


def _causes(error: BaseException) -> tuple[str, ...]:
    """The error and what it came from, in words."""
    told: list[str] = []
    current: BaseException | None = error
    while current is not None and len(told) < _MAX_CAUSES:
        told.append(described(current))
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return tuple(told)


def _raising_line(error: BaseException) -> str | None:
    """The last line outside this package that the error went through."""
    line, trace = None, error.__traceback__
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if not filename.startswith(PACKAGE_DIR):
            line = f"{os.path.basename(filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return line


def _model_info(backend: Backend) -> dict[str, object]:
    try:
        return _object(backend.info())
    except Exception:  # a backend that was closed, or is out of reach
        return {}


def _token_ids(calls: Sequence[CallTrace]) -> set[int]:
    token_ids: set[int] = set()
    for call in calls:
        token_ids.update(call.prompt_token_ids)
        for sample in call.meta.samples if call.meta is not None else ():
            token_ids.update(sample.token_ids)
            for token in sample.logprobs or ():
                token_ids.update(other for other, _ in token.top)
        for choice in call.meta.choices if call.meta is not None else ():
            token_ids.update(choice.choice.token_ids)
    return token_ids
