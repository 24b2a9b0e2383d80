"""Sample: one sample's way from what the engine says to the events of a chat."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterator

from ...outputs import CompletionOutput, FinishReason, OutputChunk, TokenLogprobs
from .ask import ChatEvent, ChatMessage, FinishLiteral, SampleEnd, TextDelta, ToolCallBegin, ToolCallDelta, ToolCallMade
from .call_reader import Arguments, CallBegin, CallReader, Content, Piece

_ID_CHARS = string.ascii_lowercase + string.digits


class Sample:
    """
    Args:
        index: which of the n samples.
        reader: None where all text is content.
        stop_token_ids: of which the last one may be, which then is no text.
        is_json: the content is held to be JSON.
    """

    def __init__(self, index: int, reader: CallReader | None, stop_token_ids: frozenset[int], *, is_json: bool) -> None:
        self._index = index
        self._reader = reader
        self._stop_token_ids = stop_token_ids
        self._is_json = is_json
        self._is_call_given_up = False
        self._num_tokens = 0
        self._token_ids: tuple[int, ...] = ()
        self._logprobs: tuple[TokenLogprobs, ...] = ()

    def take(self, chunk: OutputChunk) -> Iterator[ChatEvent]:
        """What a chunk adds; SampleEnd with the sample's last one."""
        self._num_tokens += len(chunk.token_ids)
        num_text_tokens = len(chunk.token_ids) - self._ends_with_stop_token(chunk)
        self._token_ids += chunk.token_ids[:num_text_tokens]
        self._logprobs += (chunk.logprobs or ())[:num_text_tokens]
        for piece in self._pieces(chunk):
            yield self._event(piece)
        if self._token_ids:
            yield self._event(Content(""))
        if chunk.finish_reason is not None:
            finish = self._finish(chunk)
            reason = chunk.finish_reason.value
            yield SampleEnd(self._index, finish, chunk.stop_reason, chunk.complete, self._num_tokens, reason)

    def message(self, completion: CompletionOutput) -> ChatMessage:
        """The sample as a whole. Its text goes the way of a streamed one, so that both say the same."""
        chunk = OutputChunk(
            "",
            completion.index,
            completion.text,
            tuple(completion.token_ids),
            None if completion.logprobs is None else tuple(completion.logprobs),
            completion.finish_reason,
            completion.stop_reason,
            completion.complete,
        )
        content = ""
        calls: list[ToolCallMade] = []
        end = None
        for event in self.take(chunk):
            match event:
                case TextDelta():
                    content += event.text
                case ToolCallBegin():
                    calls.append(ToolCallMade(event.call_id, event.name, ""))
                case ToolCallDelta():
                    call = calls[-1]
                    calls[-1] = ToolCallMade(call.call_id, call.name, call.arguments + event.arguments)
                case SampleEnd():
                    end = event
        assert end is not None
        num_text_tokens = len(completion.token_ids) - completion.has_stop_token
        logprobs = None if completion.logprobs is None else tuple(completion.logprobs[:num_text_tokens])
        token_ids = tuple(completion.token_ids[:num_text_tokens])
        return ChatMessage(completion.index, content, tuple(calls), end, token_ids, logprobs)

    def _ends_with_stop_token(self, chunk: OutputChunk) -> bool:
        is_stop = chunk.finish_reason is FinishReason.STOP and not isinstance(chunk.stop_reason, str)
        return is_stop and bool(chunk.token_ids) and chunk.token_ids[-1] in self._stop_token_ids

    def _pieces(self, chunk: OutputChunk) -> Iterator[Piece]:
        if self._reader is None:
            if chunk.text:
                yield Content(chunk.text)
            return
        yield from self._reader.feed(chunk.text)
        if chunk.finish_reason is not None:
            # The engine ends a text in the middle of a mark where the call would not fit into max_tokens.
            self._is_call_given_up = self._ends_with_stop_token(chunk) and self._reader.is_inside_mark
            is_cut = chunk.finish_reason is FinishReason.LENGTH or self._is_call_given_up
            yield from self._reader.finish(is_cut=is_cut)

    def _event(self, piece: Piece) -> ChatEvent:
        call_idx = self._reader.num_calls - 1 if self._reader is not None else 0
        match piece:
            case Content():
                delta = TextDelta(self._index, piece.text, self._token_ids, self._logprobs)
                self._token_ids = self._logprobs = ()
                return delta
            case CallBegin():
                return ToolCallBegin(self._index, call_idx, _new_call_id(), piece.name)
            case Arguments():
                return ToolCallDelta(self._index, call_idx, piece.text)

    def _finish(self, chunk: OutputChunk) -> FinishLiteral:
        if self._reader is not None and self._reader.is_inside_call:
            return "length"
        has_calls = self._reader is not None and self._reader.num_calls > 0
        is_behind_call = self._reader is not None and self._reader.is_behind_call
        if self._is_call_given_up and not is_behind_call:
            return "length"
        is_whole = chunk.complete is True and (is_behind_call or (self._is_json and not has_calls))
        if chunk.finish_reason is FinishReason.LENGTH and not is_whole:
            return "length"
        return "tool_calls" if has_calls else "stop"


def _new_call_id() -> str:
    """Nine letters and digits: some templates insist."""
    return "".join(secrets.choice(_ID_CHARS) for _ in range(9))
