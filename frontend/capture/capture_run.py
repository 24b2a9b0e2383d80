"""What a capture runs on: a backend that calls nothing, and a run that notes what is before each call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..backend import Backend, GenerateCall, Message, ProgramHint, ScoreCall, Scoring, TextSegment
from ..generation import Generation
from ..run_context import RunContext
from .placeholder import Capture, constant_start

Segments = tuple[TextSegment, ...]


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
