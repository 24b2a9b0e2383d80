"""What a state does by itself: literal text, what opens and closes messages, and marks in the text."""

from __future__ import annotations

from collections.abc import Sequence

from .backend import Backend, TextSegment
from .continuation import History
from .operations import Mark, SpanBegin, SpanEnd
from .primitives import RoleBegin, RoleEnd, Text
from .token_log import TokenLog
from .transcript import Transcript


def add_literal(
    operation: Text | RoleBegin | RoleEnd | History, tokens: TokenLog, transcript: Transcript, backend: Backend
) -> None:
    """Add to the tokens and the transcript what the operation says.

    Raises:
        Exception: what the backend's template refuses it with.
    """
    if isinstance(operation, Text):
        tokens.add_text(operation.text)
        transcript.write(operation.text)
    elif isinstance(operation, RoleBegin):
        _add_template(backend.role_prefix(transcript.messages(), operation.role), tokens, transcript)
        transcript.open_message(operation.role)
    elif isinstance(operation, RoleEnd):
        transcript.check_closes(operation.role)
        _add_template(backend.role_suffix(transcript.messages(), operation.role), tokens, transcript)
        transcript.close_message(operation)
    else:
        tokens.commit_as(operation.token_ids)
        for text, is_template in operation.tail:
            tokens.add_text(text, is_template=is_template)
        transcript.add_messages(operation.messages)
        transcript.show(operation.text)


def run_mark(operation: Mark, tokens: TokenLog, transcript: Transcript) -> None:
    """Remember or hand out a part of the text. All calls before it are over."""
    if isinstance(operation, SpanBegin):
        transcript.begin_span(operation.span)
    elif isinstance(operation, SpanEnd):
        transcript.end_span(operation.span)
    else:
        operation.settle(transcript.own_text(), tokens)


def _add_template(segments: Sequence[TextSegment], tokens: TokenLog, transcript: Transcript) -> None:
    for segment in segments:
        tokens.add_text(segment.text, is_template=segment.is_template)
    transcript.show("".join(segment.text for segment in segments))
