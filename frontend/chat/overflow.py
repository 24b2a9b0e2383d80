"""What happens to a conversation that is too long for the model: never anything that nobody asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ..backend import Backend, Message
from ..errors import ContextOverflowError, InvalidProgramError
from .history import Entry, Prompt, adopt, forget_places

MIN_RESERVE = 32
"""A reply is left this much room at least, or all that it may have if that is less."""


@dataclass(frozen=True, slots=True)
class Overflow:
    """A conversation that does not fit.

    Attributes:
        messages: all of them, the open question included.
        num_prompt_tokens: their length.
        num_reply_tokens: the room that the reply needs.
        max_context_len: what both may have together.
    """

    messages: list[Message]
    num_prompt_tokens: int
    num_reply_tokens: int
    max_context_len: int

    def to_error(self, remedy: str) -> ContextOverflowError:
        return ContextOverflowError(
            f"the conversation needs {self.num_prompt_tokens} tokens and the reply {self.num_reply_tokens}, but the "
            f"context limit is {self.max_context_len}: {remedy}"
        )


OverflowPolicy = Literal["error", "drop_oldest"] | Callable[[Overflow], Sequence[Message]]
"""A function gets the overflow and returns the messages to go on with, such as a summary and the last few."""


@dataclass(frozen=True, slots=True)
class ContextLimit:
    """How long a conversation may be, and what is done when it is longer.

    Attributes:
        max_context_len: in tokens; None for no known limit.
        reply_reserve: tokens that must be left for a reply; None for its max_tokens, but at most a quarter of the
            context.
    """

    max_context_len: int | None
    policy: OverflowPolicy
    reply_reserve: int | None

    @classmethod
    def of(
        cls, backend: Backend, max_context_len: int | None, policy: OverflowPolicy, reply_reserve: int | None
    ) -> ContextLimit:
        """With the backend's limit where none is given.

        Raises:
            InvalidProgramError: a number is less than 1, or the policy is none.
        """
        for name, value in (("max_context_len", max_context_len), ("reply_reserve", reply_reserve)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidProgramError(
                    f"{name}={value!r} is not allowed: it must be a number of tokens from 1, or None"
                )
        if policy not in ("error", "drop_oldest") and not callable(policy):
            raise InvalidProgramError(
                f"on_overflow={policy!r} is not allowed: it must be 'error', 'drop_oldest' or a function of an Overflow"
            )
        known = backend.info().get("max_context_len")
        limit = max_context_len or (known if isinstance(known, int) else None)
        return cls(limit, policy, reply_reserve)

    def fit(
        self, entries: Sequence[Entry], render: Callable[[Sequence[Entry]], Prompt], max_tokens: int | None
    ) -> tuple[Prompt, list[Message]]:
        """The prompt, once the policy has made it fit, and the messages that this cost.

        Raises:
            ContextOverflowError: it cannot be made to fit.
        """
        dropped: list[Message] = []
        num_rounds = 0
        while True:
            prompt = render(entries)
            overflow = self._overflow(prompt, max_tokens)
            if overflow is None:
                return prompt, dropped
            if callable(self.policy) and num_rounds:
                raise overflow.to_error("what the on_overflow function returned is still too long")
            entries, lost = shortened(entries, overflow, self.policy)
            dropped += lost
            num_rounds += 1

    def _overflow(self, prompt: Prompt, max_tokens: int | None) -> Overflow | None:
        """None where the prompt and its reply fit."""
        limit = self.max_context_len
        if limit is None:
            return None
        most = limit - 1 if max_tokens is None else max_tokens
        reserve = max(MIN_RESERVE, limit // 4) if self.reply_reserve is None else self.reply_reserve
        num_reply_tokens = min(most, reserve, limit - 1)
        if prompt.num_tokens + num_reply_tokens <= limit:
            return None
        return Overflow([dict(entry.message) for entry in prompt.entries], prompt.num_tokens, num_reply_tokens, limit)


def shortened(
    entries: Sequence[Entry], overflow: Overflow, policy: OverflowPolicy
) -> tuple[list[Entry], list[Message]]:
    """The conversation after one application of the policy, and the messages that it lost.

    "drop_oldest" drops the oldest turn as a whole: a question with its answers, tool calls and their results. System
    messages at the beginning stay, and so does the last turn.

    Raises:
        ContextOverflowError: the policy is to raise it, or leaves nothing to drop.
    """
    if policy == "error":
        raise overflow.to_error("shorten the message, rewind, or choose another on_overflow")
    if callable(policy):
        kept = adopt(entries, [dict(message) for message in policy(overflow)])
        left = [entry.message for entry in kept]
        return kept, [entry.message for entry in entries if entry.message not in left]
    starts = turn_starts(entries)
    if len(starts) < 2:
        raise overflow.to_error("shorten the message; nothing older is left to drop")
    num_system, end = starts[0], starts[1]
    dropped = [entry.message for entry in entries[num_system:end]]
    return [*entries[:num_system], *forget_places(entries[end:])], dropped


def turn_starts(entries: Sequence[Entry]) -> list[int]:
    """Where each turn begins: at a user message, or where the messages after the system's begin otherwise."""
    num_system = 0
    while num_system < len(entries) and entries[num_system].message["role"] in ("system", "developer"):
        num_system += 1
    return [idx for idx in range(num_system, len(entries)) if idx == num_system or _is_user(entries[idx])]


def _is_user(entry: Entry) -> bool:
    return bool(entry.message["role"] == "user")
