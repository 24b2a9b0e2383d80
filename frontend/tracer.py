"""Tracer: captures the graph of a program ahead of a run, with placeholders for what only a run can know.

The body runs once, on a state that records its calls and answers them with placeholders. It is asked for explicitly
and never happens before or during a usual run: a body may do anything. Nothing reaches a model; of the backend that is
given, only the template and the tokenizer are used.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..sampling_params import SamplingParams
from .backend import Backend, GenerateCall, Message, ProgramHint, ScoreCall, Scoring, TextSegment
from .calls import Call, Failure
from .errors import InvalidProgramError
from .execution import Execution
from .generation import Generation
from .interpreter import Interpreter
from .placeholder import (
    CURRENT_CAPTURE,
    Capture,
    CaptureStopped,
    Placeholder,
    constant_start,
    mark,
)
from .primitives import Expression, Gen, RoleBegin, RoleEnd, Select, Text
from .program_graph import ProgramGraph, node_of
from .run_context import RunContext
from .scope import Scope
from .state import ProgramState
from .values import Joined, OnError, Value

MAX_NODES = 10_000

_PACKAGE_DIR = str(Path(__file__).parent)
_VALUE_TYPES = {"int": int, "float": float, "bool": bool, "str": str}

Segments = tuple[TextSegment, ...]


def capture_program(
    name: str,
    body: Callable[..., object],
    signature: inspect.Signature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    backend: Backend | None,
    sampling: Mapping[str, Any],
) -> ProgramGraph:
    """Run the body once with placeholders for arguments that are not given and have no default.

    Raises:
        InvalidProgramError: the arguments do not fit the program.
        InvalidSamplingParamsError: a sampling default is out of range.
    """
    file = body.__code__.co_filename if inspect.isfunction(body) else ""
    capture = Capture(file)
    run = CaptureRun(name, CaptureBackend(backend), sampling, capture)
    arguments = _arguments(name, signature, args, kwargs, capture)
    scope = CaptureScope(run)
    token = CURRENT_CAPTURE.set(capture)
    try:
        body(CaptureState(scope), *arguments.args[1:], **arguments.kwargs)
    except CaptureStopped:
        pass
    except Exception as error:
        capture.note_stop(f"the program raised {type(error).__name__}: {error}", _source_of(error, file))
    finally:
        CURRENT_CAPTURE.reset(token)
        run.end_body(None)
    if capture.stopped is not None:  # any call may follow what is written until here
        run.prompts += scope.texts()
    records = run.graph.records()
    prefix = run.constant_prefix()
    num_tokens = None if backend is None else len(backend.encode(prefix, at_start=True)) if prefix else 0
    nodes = tuple(node_of(record, run.roles.get(record.call_id)) for record in records)
    return ProgramGraph(name, nodes, prefix, num_tokens, capture.stopped)


def cache_prefix(graph: ProgramGraph, backend: Backend, timeout: float | None = None) -> int:
    """Let `backend` compute the constant prefix of a program that was captured for it, so that its cache has it.

    Returns:
        How many tokens it has; 0 if there is no constant prefix, and then nothing is computed.

    Raises:
        TimeoutError: it took longer than `timeout` seconds.
        Exception: what the backend refuses it or fails with.
    """
    token_ids = tuple(backend.encode(graph.prefix, at_start=True)) if graph.prefix else ()
    if token_ids:
        call = GenerateCall(token_ids, SamplingParams(max_tokens=1, temperature=0.0), name="constant prefix")
        backend.generate(call).result(timeout)
    return len(token_ids)


class CaptureBackend:
    """Knows the template of a backend, or marks messages where there is none, and runs nothing."""

    def __init__(self, backend: Backend | None) -> None:
        self._backend = backend

    def encode(self, segments: Sequence[TextSegment], *, at_start: bool) -> list[int]:
        return []

    def decode(self, token_ids: Sequence[int]) -> str:
        return ""

    def role_prefix(self, messages: Sequence[Message], role: str) -> Sequence[TextSegment]:
        if self._backend is not None:
            return self._backend.role_prefix(messages, role)
        return (TextSegment(f"<{role}>", is_template=True),)

    def role_suffix(self, messages: Sequence[Message], role: str) -> Sequence[TextSegment]:
        if self._backend is not None:
            return self._backend.role_suffix(messages, role)
        return (TextSegment(f"</{role}>\n", is_template=True),)

    def chat_segments(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> Sequence[TextSegment]:
        if self._backend is not None:
            return self._backend.chat_segments(messages, tools=tools, add_generation_prompt=add_generation_prompt)
        return tuple(TextSegment(f"<{each['role']}>{each['content']}</{each['role']}>\n") for each in messages)

    def generate(self, call: GenerateCall) -> Generation:
        raise AssertionError("a capture runs no calls")

    def score(self, call: ScoreCall) -> Scoring:
        raise AssertionError("a capture runs no calls")

    def hint(self, hint: ProgramHint) -> None:
        pass

    def flush_cache(self) -> None:
        pass

    def info(self) -> Mapping[str, object]:
        return {"backend": "capture"}


class CaptureRun(RunContext):
    """What all branches of a capture share.

    Attributes:
        roles: the open role of every node, by its id.
        prompts: what is before each call, with marks.
    """

    def __init__(self, name: str, backend: Backend, sampling: Mapping[str, Any], capture: Capture) -> None:
        super().__init__(name, backend, sampling)
        self.capture = capture
        self.roles: dict[int, str | None] = {}
        self.prompts: list[Segments] = []

    def constant_prefix(self) -> Segments:
        """What the prompts of all calls begin with."""
        prefix: Segments | None = None
        for prompt in self.prompts:
            constant = _constant_segments(prompt)
            prefix = constant if prefix is None else _common_segments(prefix, constant)
        return prefix or ()


class CaptureInterpreter(Interpreter):
    """Answers every call with a placeholder at once."""

    @property
    def written(self) -> Segments:
        """All text, with marks: nothing is ever tokenised."""
        return self._tokens.pending_segments

    def _submit(self, call: Call) -> Execution | None:
        run = self._run
        assert isinstance(run, CaptureRun)
        run.prompts.append(self.written)
        text = mark(str(call.record.call_id), call.record.name or call.record.kind)
        self._tokens.add_text(text)
        self._role_text.append(text)
        self._show(text)
        call.fail(Failure(f"{call.record.describe()} has no value: the program was only captured", None))
        return None


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
        self._bind(captured)
        return captured

    def _check(self) -> None:
        self.capture.check()
        if len(self.run.graph.records()) >= MAX_NODES:
            self.capture.stop(f"the program has more than {MAX_NODES} nodes")


class CaptureJoined(Joined):
    """A placeholder for each branch."""

    def __init__(self, capture: Capture, name: str, values: Sequence[Value], on_error: OnError) -> None:
        super().__init__(name, values, on_error)
        self._capture = capture

    def get(self, timeout: float | None = None) -> list[Any]:
        return [_placeholder(self._capture, f"{self.name}[{idx}]", value) for idx, value in enumerate(self.values)]


def _placeholder(capture: Capture, name: str, value: Value) -> Any:
    """What stands for a value: a list of placeholders where the value is a list."""
    if isinstance(value, CaptureJoined):
        return value.get()
    assert isinstance(value, Call)
    key, params, value_type = str(value.record.call_id), value.record.sampling_params, value.value_type
    kind = str if value_type is None else _VALUE_TYPES.get(value_type.name)
    if params is not None and params.n > 1:
        return [Placeholder(capture, mark(key, f"{name}[{idx}]"), kind) for idx in range(params.n)]
    return Placeholder(capture, mark(key, name), kind)


class CaptureState(ProgramState):
    """A state whose values are placeholders. What only a run can tell ends the capture."""

    def get(self, name: str, timeout: float | None = None) -> Any:
        return _placeholder(self._capture, name, self._scope.lookup(name, None, until_body_over=False))

    @property
    def _capture(self) -> Capture:
        assert isinstance(self._scope, CaptureScope)
        return self._scope.capture

    def _lookup(self, name: str, timeout: float | None) -> Value:
        self._scope.lookup(name, None, until_body_over=False)
        self._capture.stop(f"the program reads how {name!r} came about")

    def text(self, timeout: float | None = None) -> Any:
        text = self._scope.interpreter.text_so_far()
        return text if constant_start(text) == text else Placeholder(self._capture, text, str)

    text_so_far = text

    def messages(self, timeout: float | None = None) -> list[Message]:
        messages = self._scope.interpreter.messages()
        if any(constant_start(each["content"]) != each["content"] for each in messages):
            self._capture.stop("the program reads messages that calls have written")
        return messages

    def token_ids(self, timeout: float | None = None) -> NoReturn:
        self._capture.stop("the program reads token ids")

    def text_iter(self, name: str | None = None, timeout: float | None = None) -> Iterator[str]:
        self._capture.stop("the program reads text as it comes")

    def error(self) -> NoReturn:
        self._capture.stop("the program reads whether something failed")

    def cancel(self) -> NoReturn:
        self._capture.stop("the program cancels itself")


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


def _constant_segments(prompt: Segments) -> Segments:
    constant: list[TextSegment] = []
    for segment in prompt:
        start = constant_start(segment.text)
        if start:
            constant.append(TextSegment(start, segment.is_template))
        if start != segment.text:
            break
    return tuple(constant)


def _common_segments(left: Segments, right: Segments) -> Segments:
    """The longest beginning that both have."""
    common: list[TextSegment] = []
    for one, other in zip(left, right, strict=False):
        if one.is_template != other.is_template:
            break
        pairs = zip(one.text, other.text, strict=False)
        length = next((idx for idx, (a, b) in enumerate(pairs) if a != b), min(len(one.text), len(other.text)))
        if length:
            common.append(TextSegment(one.text[:length], one.is_template))
        if length < max(len(one.text), len(other.text)):
            break
    return tuple(common)


def _source_of(error: Exception, file: str) -> str:
    """The last line of the program, or else of anything but this package, that the error went through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file]
    frame = (own or [each for each in frames if not each.filename.startswith(_PACKAGE_DIR)] or list(frames))[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"
