"""MessageLog: the messages of a conversation and what can be done to them without a model."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...chat_message import content_text
from ...tool_formats import ToolCall
from ..backend import Message
from ..errors import InvalidProgramError
from .history import Entry, adopt, forget_places
from .messages import checked_message, checked_messages, open_tool_calls
from .overflow import turn_starts
from .reply import PendingReply, checked_no_open_reply
from .tool_use import result_text

Content = str | Sequence[Mapping[str, Any]]
"""A text, or a list of {"type": "text", "text": ...} parts."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What a conversation goes back to when a reply fails."""

    entries: tuple[Entry, ...]
    dropped: tuple[Message, ...]


class MessageLog:
    """Messages, and the tokens of those that a model wrote.

    Attributes:
        pending_reply: the last that was sent.
    """

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._dropped: tuple[Message, ...] = ()
        self.pending_reply: PendingReply | None = None

    @property
    def messages(self) -> list[Message]:
        """The messages, as OpenAI writes them; copies. Setting them keeps the tokens of those that stay the same."""
        return [copy.deepcopy(entry.message) for entry in self._entries]

    @messages.setter
    def messages(self, messages: Sequence[Message]) -> None:
        checked_no_open_reply(self.pending_reply)
        self._entries = adopt(self._entries, checked_messages(messages))

    @property
    def system(self) -> str | None:
        """The text of the first message, if it is the system's. Setting it keeps the others; None removes it."""
        first = self._entries[0].message if self._entries else None
        is_system = first is not None and first["role"] == "system"
        return content_text("system", first.get("content")) if first is not None and is_system else None

    @system.setter
    def system(self, text: str | None) -> None:
        checked_no_open_reply(self.pending_reply)
        rest = self._entries if self.system is None else self._entries[1:]
        first = [] if text is None else [Entry(checked_message({"role": "system", "content": text}, "system"))]
        self._entries = [*first, *forget_places(rest)]

    def add(self, message: Message) -> None:
        """Append a message that nobody has to answer, such as an example or what another model said.

        Raises:
            InvalidProgramError: it is malformed.
        """
        checked_no_open_reply(self.pending_reply)
        self._entries.append(Entry(checked_message(message, "message")))

    def add_tool_result(self, call: ToolCall, result: object) -> None:
        """Answer a tool call of the last answer. A result that is no text is written as JSON.

        Raises:
            InvalidProgramError: the call is not open.
            ToolCallError: the result cannot be written as JSON.
        """
        if call.call_id not in [each.call_id for each in self.open_tool_calls]:
            raise InvalidProgramError(f"the last answer has no open tool call {call.call_id!r}")
        content = result_text(call.name, result)
        self.add({"role": "tool", "tool_call_id": call.call_id, "name": call.name, "content": content})

    @property
    def open_tool_calls(self) -> list[ToolCall]:
        """The calls of the last answer that have no result yet."""
        return open_tool_calls([entry.message for entry in self._entries])

    @property
    def dropped(self) -> list[Message]:
        """The messages that the context limit has cost so far, oldest first."""
        return list(self._dropped)

    @property
    def num_dropped(self) -> int:
        """How many messages the context limit has cost so far."""
        return len(self._dropped)

    def to_json(self, indent: int | None = None) -> str:
        """The messages as a JSON list. Token ids are not in it: another model has others."""
        return json.dumps(self.messages, ensure_ascii=False, indent=indent)

    @property
    def num_turns(self) -> int:
        return len(turn_starts(self._entries))

    def edit(self, turn_idx: int, content: Content) -> list[Message]:
        """Change the question of a turn and drop all that follows it; `ask()` without a text then answers it.

        Args:
            turn_idx: from 0; negative ones count from the end.

        Returns:
            What was dropped.

        Raises:
            InvalidProgramError: there is no such turn, or it begins with no question.
        """
        start = self._turn_start(turn_idx)
        if self._entries[start].message["role"] != "user":
            raise InvalidProgramError(f"turn {turn_idx} begins with no question; set messages instead")
        message = checked_message({**self._entries[start].message, "content": content}, "message")
        dropped = [entry.message for entry in self._entries[start + 1 :]]
        self._entries[start:] = [Entry(message)]
        return dropped

    def rewind(self, num_turns: int = 1) -> list[Message]:
        """Drop the last turns, questions included. `undo` is the last one. What on_overflow dropped does not come back.

        Returns:
            What was dropped.

        Raises:
            InvalidProgramError: there are fewer.
        """
        if isinstance(num_turns, bool) or not isinstance(num_turns, int) or num_turns < 0:
            raise InvalidProgramError(f"rewind({num_turns!r}) is not allowed: give a number of turns from 0")
        start = self._turn_start(-num_turns) if num_turns else len(self._entries)
        dropped = [entry.message for entry in self._entries[start:]]
        del self._entries[start:]
        return dropped

    def undo(self) -> list[Message]:
        """Drop the last turn. Returns what was dropped."""
        return self.rewind(1)

    def clear(self) -> None:
        """Start over, with the system messages at the beginning."""
        self.rewind(self.num_turns)

    def _turn_start(self, turn_idx: int) -> int:
        checked_no_open_reply(self.pending_reply)
        starts = turn_starts(self._entries)
        if isinstance(turn_idx, bool) or not isinstance(turn_idx, int) or not -len(starts) <= turn_idx < len(starts):
            raise InvalidProgramError(f"there is no turn {turn_idx!r}: this conversation has {len(starts)}")
        return starts[turn_idx]

    def _moment(self) -> Moment:
        return Moment(tuple(self._entries), self._dropped)

    def _go_back(self, moment: Moment) -> None:
        self._entries = list(moment.entries)
        self._dropped = moment.dropped
