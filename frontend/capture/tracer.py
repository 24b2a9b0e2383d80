"""Tracer: captures the graph of a program ahead of a run, with placeholders for what only a run can know.

The body runs once, on a state that records its calls and answers them with placeholders. It is asked for explicitly
and never happens before or during a usual run: a body may do anything. Nothing reaches a model; of the backend that is
given, only the template and the tokenizer are used.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...sampling_params import SamplingParams
from ..appendable import AppendableState
from ..backend import Backend, GenerateCall
from ..calls import Call, Failure
from ..errors import GenerationError, InvalidProgramError, described, words_of
from ..interpreter import Interpreter
from ..primitives import Expression, Gen, RoleBegin, RoleEnd, Select, Text
from ..program_body import ProgramBody
from ..scope import Scope
from ..values import Joined, OnError
from .capture_run import CaptureBackend, CaptureRun, Segments
from .capture_state import AsyncCaptureState, CaptureJoined, CaptureState
from .placeholder import (
    CURRENT_CAPTURE,
    Capture,
    CaptureStopped,
    Placeholder,
    mark,
)
from .program_graph import ProgramGraph, node_of

MAX_NODES = 10_000

_PACKAGE_DIR = str(Path(__file__).parents[1])


def capture_program(
    body: ProgramBody,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    ahead: Mapping[str, Any],
    *,
    backend: Backend | None,
    sampling: Mapping[str, Any],
) -> ProgramGraph:
    """Run the body once with placeholders for arguments that are not given and have no default.

    Args:
        ahead: arguments that the others may replace.

    Raises:
        InvalidProgramError: the arguments do not fit the program.
        InvalidSamplingParamsError: a sampling default is out of range.
    """
    file = body.function.__code__.co_filename if inspect.isfunction(body.function) else ""
    capture = Capture(file)
    run = CaptureRun(body.name, CaptureBackend(backend), sampling, capture)
    taken = list(body.signature.parameters)[1 : 1 + len(args)]
    bound = {name: value for name, value in ahead.items() if name not in taken}
    arguments = _arguments(body.name, body.signature, args, {**bound, **kwargs}, capture)
    scope = CaptureScope(run)
    token = CURRENT_CAPTURE.set(capture)
    try:
        _run_body(body, AsyncCaptureState(scope) if body.is_async else CaptureState(scope), arguments, capture)
    except CaptureStopped:
        pass
    except Exception as error:
        capture.note_stop(f"the program raised {described(error)}", _source_of(error, file))
    finally:
        CURRENT_CAPTURE.reset(token)
        run.end_body(None)
    if capture.stopped is not None:  # any call may follow what is written until here
        run.prompts += scope.texts()
    records = run.graph.records()
    prefix = run.constant_prefix()
    num_tokens = None if backend is None else len(backend.encode(prefix, at_start=True)) if prefix else 0
    nodes = tuple(node_of(record, run.roles.get(record.call_id)) for record in records)
    return ProgramGraph(body.name, nodes, prefix, num_tokens, capture.stopped)


def _run_body(body: ProgramBody, state: AppendableState, arguments: inspect.BoundArguments, capture: Capture) -> None:
    """Run it; a coroutine without an event loop, for reads of a capture wait for nothing."""
    running = body.function(state, *arguments.args[1:], **arguments.kwargs)
    if not inspect.iscoroutine(running):
        return
    try:
        running.send(None)
    except StopIteration:
        return
    try:
        capture.stop("the program waits for something that is no read")
    finally:
        running.close()


def cache_prefix(graph: ProgramGraph, backend: Backend) -> int:
    """Let `backend` compute the constant prefix of a program that was captured for it, so that its cache has it.

    Returns:
        How many tokens it has; 0 if there is no constant prefix, and then nothing is computed.

    Raises:
        GenerationError: the backend refuses it or fails, with the cause.
    """
    token_ids = tuple(backend.encode(graph.prefix, at_start=True)) if graph.prefix else ()
    if token_ids:
        call = GenerateCall(token_ids, SamplingParams(max_tokens=1, temperature=0.0), name="constant prefix")
        try:
            backend.generate(call).result()
        except Exception as error:
            message = f"the constant prefix of {graph.program_name!r} cannot be computed: {words_of(error)}"
            raise GenerationError(message) from error
    return len(token_ids)


class CaptureInterpreter(Interpreter):
    """Answers every call with a placeholder at once."""

    @property
    def written(self) -> Segments:
        """All text, with marks: nothing is ever tokenised."""
        return self._tokens.pending

    def _submit(self, call: Call) -> bool:
        run = self._run
        assert isinstance(run, CaptureRun)
        run.prompts.append(self.written)
        text = mark(str(call.record.call_id), call.record.name or call.record.kind)
        self._tokens.add_text(text)
        self.transcript.write(text)
        call.fail(Failure(f"{call.record.describe()} has no value: the program was only captured", None))
        return False


class CaptureScope(Scope):
    """Notes roles and call values; ends the capture where it grows beyond all bounds."""

    interpreter_type = CaptureInterpreter

    @property
    def capture(self) -> Capture:
        assert isinstance(self.run, CaptureRun)
        return self.run.capture

    def texts(self) -> list[Segments]:
        """What is written in this state and in all its branches."""
        assert isinstance(self.interpreter, CaptureInterpreter)
        branches = [branch.texts() for branch in self.branches if isinstance(branch, CaptureScope)]
        return [self.interpreter.written, *(text for texts in branches for text in texts)]

    def add(self, expression: Expression) -> None:
        self._check()
        role, roles = self._role, []
        for part in expression.parts():
            if isinstance(part, RoleBegin | RoleEnd):
                role = part.role if isinstance(part, RoleBegin) else None
            elif isinstance(part, Text | Gen | Select):
                roles.append(role)
        first = len(self.run.graph.records())
        super().add(expression)
        assert isinstance(self.run, CaptureRun)
        self.run.roles.update(enumerate(roles, start=first))

    def fork(self, size: int) -> list[Scope]:
        self._check()
        return super().fork(size)

    def join(self, branches: Sequence[Scope], on_error: OnError) -> dict[str, Joined]:
        self._check()
        joined = super().join(branches, on_error)
        captured: dict[str, Joined] = {
            name: CaptureJoined(self.capture, name, each.values, on_error) for name, each in joined.items()
        }
        self.bind(captured)
        return captured

    def _check(self) -> None:
        self.capture.check()
        if len(self.run.graph.records()) >= MAX_NODES:
            self.capture.stop(f"the program has more than {MAX_NODES} nodes")


def _arguments(
    name: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any], capture: Capture
) -> inspect.BoundArguments:
    """The body's arguments after the state, with placeholders for what is missing."""
    try:
        bound = signature.bind_partial(None, *args, **kwargs)
    except TypeError as error:
        raise InvalidProgramError(f"wrong arguments for {name}: {error}") from None
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    given = dict(bound.arguments)
    for parameter in list(signature.parameters.values())[1:]:
        if parameter.name in given or parameter.kind in variadic:
            continue
        kind = str if parameter.annotation in (str, "str") else None
        given[parameter.name] = (
            Placeholder(capture, mark(f"@{parameter.name}", parameter.name), kind)
            if parameter.default is inspect.Parameter.empty
            else parameter.default
        )
    bound.arguments = {key: given[key] for key in signature.parameters if key in given}
    return bound


def _source_of(error: Exception, file: str) -> str:
    """The last line of the program, or else of anything but this package, that the error went through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file]
    frame = (own or [each for each in frames if not each.filename.startswith(_PACKAGE_DIR)] or list(frames))[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"
