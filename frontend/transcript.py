"""Transcript: what a state says so far: its text in parts, as readers see it, and its chat messages."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from .backend import Message
from .bound_values import TextSpan
from .calls import Call
from .errors import InvalidProgramError
from .primitives import RoleEnd

Part = str | Call
"""Literal text, or a call that was submitted."""


class Transcript:
    """One interpreter writes it; any thread may read. Nothing here blocks.

    Attributes:
        role: of the open message.
    """

    def __init__(self, text: str = "", messages: Sequence[Message] = (), role: str | None = None, role_text: str = ""):
        """What a branch starts with; see Snapshot."""
        self.role = role
        self._lock = threading.Lock()
        self._parts: list[Part] = [text] if text else []
        self._num_inherited = len(self._parts)
        self._messages = [dict(message) for message in messages]
        self._role_text = [role_text]
        self._span_starts: dict[TextSpan, int] = {}

    # What the interpreter writes

    def write(self, text: str) -> None:
        """Text of the program, or of its branches."""
        self._role_text.append(text)
        self.show(text)

    def show(self, part: Part) -> None:
        """Text that is no message's content: a template's. Or a call, whose text is content once it has ended."""
        if part != "":
            with self._lock:
                self._parts.append(part)

    def end_call(self, text: str) -> None:
        """The last call has ended with this text."""
        self._role_text.append(text)

    def open_message(self, role: str) -> None:
        self.role = role
        self._role_text = []

    def close_message(self, end: RoleEnd) -> None:
        message = {"role": end.role, "content": self.role_text, **dict(end.fields)}
        with self._lock:
            self._messages.append(message)
        self.role = None

    def check_closes(self, role: str) -> None:
        """
        Raises:
            InvalidProgramError: the open message is not of this role.
        """
        if self.role != role:
            raise InvalidProgramError(f"{role} cannot be closed: the open role is {self.role}")

    def add_messages(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Whole messages of a conversation, whose text is shown apart."""
        with self._lock:
            self._messages.extend(dict(message) for message in messages)

    def begin_span(self, span: TextSpan) -> None:
        self._span_starts[span] = len(self._parts)

    def end_span(self, span: TextSpan) -> None:
        """Settle it. All calls before it are over."""
        span.settle(self._text_since(self._span_starts.pop(span)))

    def own_text(self) -> str:
        """What was added since the fork. All calls are over."""
        return self._text_since(self._num_inherited)

    def _text_since(self, position: int) -> str:
        return "".join([part if isinstance(part, str) else part.text for part in self._parts[position:]])

    # What readers see

    @property
    def role_text(self) -> str:
        """The content of the open message. Only where the interpreter stands still."""
        return "".join(self._role_text)

    def part(self, position: int) -> Part | None:
        """Part number `position`, if there is one by now."""
        with self._lock:
            return self._parts[position] if position < len(self._parts) else None

    def parts(self) -> list[tuple[str, bool]]:
        """The text there is now in pieces, and whether a call of this state wrote each."""
        with self._lock:
            parts = list(self._parts)
        return [(part, False) if isinstance(part, str) else (part.text_so_far(), True) for part in parts]

    def text(self) -> str:
        """The text there is now."""
        return "".join(text for text, _ in self.parts())

    def messages(self) -> list[Message]:
        """The messages that are complete now."""
        with self._lock:
            return [dict(message) for message in self._messages]
