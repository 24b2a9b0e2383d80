"""Between conversations and programs: each can go on from the tokens of the other."""

from __future__ import annotations

from collections.abc import Sequence

from ..backend import Backend, Message, TextSegment
from ..continuation import History
from ..errors import InvalidProgramError
from ..operations import Snapshot
from .history import Entry, Prompt, Spelling


def as_history(backend: Backend, prompt: Prompt, messages: Sequence[Message]) -> History:
    """What a program begins with that goes on from this prompt."""
    tail = tuple((segment.text, segment.is_template) for segment in prompt.tail)
    text = backend.decode(prompt.token_ids) + "".join(text for text, _ in tail)
    return History(prompt.token_ids, tail, tuple(messages), text)


def entry_of_state(snapshot: Snapshot) -> Entry:
    """The last message of a state, with the tokens of the whole state before and in it.

    Raises:
        InvalidProgramError: the state has no messages, one is open, or there is text after the last one.
    """
    if not snapshot.messages or snapshot.role is not None:
        what = "no chat messages" if snapshot.role is None else f"an open {snapshot.role} message: close it first"
        raise InvalidProgramError(f"a conversation cannot go on from this state: it has {what}")
    last = snapshot.messages[-1]
    if not snapshot.tokens.token_ids:
        return Entry(last)
    suffix = snapshot.backend.role_suffix(snapshot.messages[:-1], last["role"])
    kept = _without_end(snapshot.tokens.pending, "".join(segment.text for segment in suffix))
    if kept is None:
        raise InvalidProgramError("a conversation cannot go on from this state: there is text after its last message")
    ids = tuple(snapshot.tokens.token_ids)
    return Entry(last, Spelling((), kept, before=ids, is_bound=True))


def _without_end(segments: Sequence[TextSegment], end: str) -> tuple[TextSegment, ...] | None:
    """The segments without this text at their end; None if they do not end so."""
    whole = "".join(segment.text for segment in segments)
    if not whole.endswith(end):
        return None
    left = len(whole) - len(end)
    kept: list[TextSegment] = []
    for segment in segments:
        if left > 0:
            kept.append(TextSegment(segment.text[:left], segment.is_template))
        left -= len(segment.text)
    return tuple(kept)
