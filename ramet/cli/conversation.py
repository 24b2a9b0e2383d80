"""Conversation: a chat as token ids that only grow, so that every turn finds all earlier turns in the cache."""

from __future__ import annotations

from collections.abc import Sequence

from ..frontend.backend import Backend, GenerateCall, Message, TextSegment
from ..frontend.generation import Generation, Sample
from ..sampling_params import SamplingParams
from .errors import CommandError

_MIN_REPLY_LEN = 32


class Conversation:
    """Messages so far and the exact tokens the model has seen of them.

    Args:
        max_context_len: the model's context limit in tokens.

    Attributes:
        messages: the complete messages, the system message included.
        num_dropped: messages the context limit has cost so far.
    """

    def __init__(self, backend: Backend, max_context_len: int, system_prompt: str | None = None) -> None:
        self._backend = backend
        self._max_context_len = max_context_len
        self.num_dropped = 0
        self.messages: list[Message] = []
        self._token_ids: list[int] = []
        self._pending: list[TextSegment] = []
        self.reset(system_prompt)

    @property
    def system_prompt(self) -> str | None:
        return self.messages[0]["content"] if self.messages and self.messages[0]["role"] == "system" else None

    def reset(self, system_prompt: str | None) -> None:
        """Start over with this system message, or the one the template brings."""
        self._start_from([] if system_prompt is None else [{"role": "system", "content": system_prompt}])

    def ask(self, text: str, params: SamplingParams) -> Generation:
        """Send a user message. `params.max_tokens` is an upper limit: the context may leave room for less.

        Call `accept` or `accept_partial` before the next one. Oldest turns are dropped when the context is full.

        Raises:
            CommandError: the message does not fit even alone; the conversation is unchanged.
            Exception: what the backend refuses it with; the conversation is unchanged.
        """
        before = (self.messages[:], self._token_ids[:], self._pending[:], self.num_dropped)
        try:
            return self._ask(text, params)
        except Exception:
            self.messages, self._token_ids, self._pending, self.num_dropped = before
            raise

    def _ask(self, text: str, params: SamplingParams) -> Generation:
        max_tokens = params.max_tokens or self._max_context_len
        reserve = min(max_tokens, max(_MIN_REPLY_LEN, self._max_context_len // 4), self._max_context_len - 1)
        self._open_reply(text)
        while len(self._token_ids) + reserve > self._max_context_len:
            kept = self._without_oldest_turn()
            if kept is None:
                raise CommandError(
                    f"the message needs {len(self._token_ids)} tokens and the reply {reserve}, but the context limit "
                    f"is {self._max_context_len}: shorten the message"
                )
            self._start_from(kept)
            self._open_reply(text)
        room = self._max_context_len - len(self._token_ids)
        return self._backend.generate(
            GenerateCall(tuple(self._token_ids), params.replace(max_tokens=min(max_tokens, room)))
        )

    def accept(self, sample: Sample) -> None:
        """The reply is complete: keep its own tokens."""
        self._token_ids.extend(sample.kept_token_ids)
        self._close_reply(sample.text, sample.leftover_text)

    def accept_partial(self, text: str) -> None:
        """The reply was cut off: keep what was shown of it."""
        self._close_reply(text, text)

    def _open_reply(self, text: str) -> None:
        self._add_message("user", text)
        self._append(self._backend.role_prefix(self.messages, "assistant"))
        self._token_ids.extend(self._backend.encode(self._pending, at_start=not self._token_ids))
        self._pending = []

    def _close_reply(self, text: str, untokenised: str) -> None:
        assert not self._pending, "a reply follows an open question"
        self._append([TextSegment(untokenised)])
        self._append(self._backend.role_suffix(self.messages, "assistant"))
        self.messages.append({"role": "assistant", "content": text})

    def _add_message(self, role: str, content: str) -> None:
        self._append(self._backend.role_prefix(self.messages, role))
        self._append([TextSegment(content)])
        self._append(self._backend.role_suffix(self.messages, role))
        self.messages.append({"role": role, "content": content})

    def _append(self, segments: Sequence[TextSegment]) -> None:
        """Add text to be tokenised with the next question, together with its neighbours of the same kind."""
        for segment in segments:
            text = segment.text
            if not text:
                continue
            if self._pending and self._pending[-1].is_template == segment.is_template:
                text = self._pending.pop().text + text
            self._pending.append(TextSegment(text, segment.is_template))

    def _start_from(self, messages: list[Message]) -> None:
        self.messages, self._token_ids, self._pending = [], [], []
        for message in messages:
            self._add_message(message["role"], message["content"])

    def _without_oldest_turn(self) -> list[Message] | None:
        """Messages before the open question without the first question and reply; None if there are none."""
        num_system = 0 if self.system_prompt is None else 1
        turns = self.messages[num_system:-1]
        if not turns:
            return None
        self.num_dropped += 2
        return self.messages[:num_system] + turns[2:]
