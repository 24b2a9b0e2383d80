"""Runs a ChatAsk: renders the prompt, enforces tool calls, and takes the text apart into content and calls."""

from __future__ import annotations

import dataclasses
import secrets
import string
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Self

from ...outputs import CompletionOutput, FinishReason, OutputChunk, RequestOutput, TokenLogprobs
from ...request import Request
from ..errors import ApiError, as_api_error
from ..live_requests import LiveRequests
from ..service import EngineService
from ..tenant import Tenant
from .ask import (
    ChatAsk,
    ChatEnd,
    ChatEvent,
    ChatMessage,
    FinishLiteral,
    SampleEnd,
    TextDelta,
    ToolCallBegin,
    ToolCallDelta,
    ToolCallMade,
)
from .call_reader import Arguments, CallBegin, CallReader, Content, Piece
from .constraint import Constrained, check_tools, constrained, reads_calls
from .prompt import ChatPrompt, chat_prompt

_ID_CHARS = string.ascii_lowercase + string.digits


class ChatRun:
    """A ChatAsk that was submitted. Use it as `async with`: leaving the block cancels what still runs.

    Attributes:
        unenforced_tools: names of those that may be called with any object (see Constrained).
    """

    def __init__(
        self,
        live: LiveRequests,
        ask: ChatAsk,
        prompt: ChatPrompt,
        stop_token_ids: frozenset[int],
        unenforced_tools: tuple[str, ...],
    ) -> None:
        self.unenforced_tools = unenforced_tools
        self._live = live
        self._ask = ask
        self._prompt = prompt
        self._stop_token_ids = stop_token_ids

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        return self._prompt.token_ids

    def abort(self) -> None:
        """Cancel what still runs. Idempotent."""
        self._live.abort()

    async def events(self) -> AsyncIterator[ChatEvent]:
        """As they come, of an ask that is streamed; the last is ChatEnd.

        Raises:
            ApiError: the request failed.
        """
        samples = [self._sample(idx) for idx in range(self._ask.sampling.n)]
        async for _, chunk in self._live.chunks():
            for event in samples[chunk.index].take(chunk):
                yield event
            if chunk.output is not None:
                yield ChatEnd(chunk.output)

    async def messages(self) -> tuple[list[ChatMessage], RequestOutput]:
        """All samples, whole, in order; and the output, which has the usage.

        Raises:
            ApiError: the request failed.
        """
        (output,) = await self._live.succeeded()
        return [self._message(completion) for completion in output.outputs], output

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.abort()

    def _sample(self, index: int) -> _Sample:
        names = [tool["function"]["name"] for tool in self._ask.tools]
        reader = CallReader(self._prompt.tool_format, names) if reads_calls(self._ask) else None
        spec = self._ask.sampling.grammar_spec
        is_json = spec is not None and spec.kind == "json_schema"
        return _Sample(index, reader, self._stop_token_ids, is_json=is_json)

    def _message(self, completion: CompletionOutput) -> ChatMessage:
        """The whole text goes the way of a streamed one, so that both say the same."""
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
        for event in self._sample(completion.index).take(chunk):
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


class _Sample:
    """One sample's way from chunks to events.

    Args:
        reader: None where all text is content.
        is_json: the content is held to be JSON.
    """

    def __init__(self, index: int, reader: CallReader | None, stop_token_ids: frozenset[int], *, is_json: bool) -> None:
        self._is_json = is_json
        self._index = index
        self._reader = reader
        self._stop_token_ids = stop_token_ids
        self._num_tokens = 0
        self._token_ids: tuple[int, ...] = ()
        self._logprobs: tuple[TokenLogprobs, ...] = ()

    def take(self, chunk: OutputChunk) -> Iterator[ChatEvent]:
        """What a chunk adds; SampleEnd with the sample's last one."""
        is_end = chunk.finish_reason is not None
        self._num_tokens += len(chunk.token_ids)
        num_text_tokens = len(chunk.token_ids) - self._ends_with_stop_token(chunk)
        self._token_ids += chunk.token_ids[:num_text_tokens]
        self._logprobs += (chunk.logprobs or ())[:num_text_tokens]
        for piece in self._pieces(chunk.text, is_end):
            yield self._event(piece)
        if self._token_ids:
            yield self._event(Content(""))
        if chunk.finish_reason is not None:
            finish = self._finish(chunk)
            reason = chunk.finish_reason.value
            yield SampleEnd(self._index, finish, chunk.stop_reason, chunk.complete, self._num_tokens, reason)

    def _ends_with_stop_token(self, chunk: OutputChunk) -> bool:
        is_stop = chunk.finish_reason is FinishReason.STOP and not isinstance(chunk.stop_reason, str)
        return is_stop and bool(chunk.token_ids) and chunk.token_ids[-1] in self._stop_token_ids

    def _pieces(self, text: str, is_end: bool) -> Iterator[Piece]:
        if self._reader is None:
            if text:
                yield Content(text)
            return
        yield from self._reader.feed(text)
        if is_end:
            yield from self._reader.finish()

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
        has_calls = self._reader is not None and self._reader.num_calls > 0
        is_behind_call = self._reader is not None and self._reader.is_behind_call
        is_whole = chunk.complete is True and (is_behind_call or (self._is_json and not has_calls))
        if chunk.finish_reason is FinishReason.LENGTH and not is_whole:
            return "length"
        return "tool_calls" if has_calls else "stop"


async def start_chat(service: EngineService, tenant: Tenant, ask: ChatAsk) -> ChatRun:
    """Submit it.

    Raises:
        ApiError: it is refused, with the field at fault; or the server is full.
    """
    _check(service, ask)
    namespace = tenant.namespace(ask.cache_salt)
    llm = service.llm
    made: list[tuple[ChatPrompt, Constrained]] = []

    def make() -> list[Request]:
        prompt = chat_prompt(llm.tokenizer, ask, service.check_prompt_len)
        asked = _cut_at_context(ask, llm.max_context_len - len(prompt.token_ids))
        request = Request(
            request_id=llm.new_request_id(),
            prompt_token_ids=prompt.token_ids,
            sampling_params=asked.sampling,
            priority=ask.priority,
            cache_namespace=namespace,
        )
        held = constrained(llm, request, asked, prompt.tool_format)
        made.append((prompt, held))
        return [held.request]

    try:
        live = await service.submit(
            make,
            ask.sampling.num_sequences,
            tenant=tenant.name,
            is_streamed=ask.is_streamed,
            is_constrained=reads_calls(ask) or ask.sampling.grammar_spec is not None,
            name=ask.rid,
        )
    except ValueError as error:
        raise as_api_error(error, "?") from error
    stop_token_ids = frozenset(llm.tokenizer.eos_token_ids) | frozenset(ask.sampling.stop_ids)
    ((prompt, held),) = made
    return ChatRun(live, ask, prompt, stop_token_ids, held.unenforced_tools)


async def count_prompt_tokens(service: EngineService, tenant: Tenant, ask: ChatAsk) -> int:
    """How long the prompt is that `start_chat` would submit.

    Raises:
        ApiError: the messages do not fit the model's template, or too many are being counted.
    """
    _check(service, ask)

    def count() -> int:
        return len(chat_prompt(service.llm.tokenizer, ask, service.check_prompt_len).token_ids)

    try:
        return await service.workers.call_aside(tenant.name, count)
    except ValueError as error:
        raise as_api_error(error, "?") from error


def _check(service: EngineService, ask: ChatAsk) -> None:
    if ask.chat_template is not None and not service.config.allow_request_template:
        raise ApiError(
            400,
            "this server takes no chat_template from a request; start it with --allow-request-template if it is to",
            param="chat_template",
        )
    most = service.config.max_n
    if ask.sampling.num_sequences > most:
        raise ApiError(400, f"n={ask.sampling.num_sequences} is more than the {most} of this server", param="n")
    check_tools(ask)


def _cut_at_context(ask: ChatAsk, num_left: int) -> ChatAsk:
    sampling = ask.sampling
    if not ask.is_cut_at_context or sampling.max_tokens is None or sampling.max_tokens <= num_left:
        return ask
    return dataclasses.replace(ask, sampling=sampling.replace(max_tokens=None))


def _new_call_id() -> str:
    """Nine letters and digits: some templates insist."""
    return "".join(secrets.choice(_ID_CHARS) for _ in range(9))
