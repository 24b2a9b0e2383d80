"""`/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from starlette.responses import Response

from ...outputs import RequestOutput, TokenLogprobs
from ...tokenizer import Tokenizer
from ..chat.ask import ChatEnd, ChatMessage, SampleEnd, TextDelta, ToolCallBegin, ToolCallDelta
from ..chat.run import ChatRun, start_chat
from ..chat.wording import in_words_of
from ..dependencies import Caller, RequestId, Service
from ..json_route import JsonRoute
from ..streaming import DONE, EventStream, answer_unless_disconnected, event
from .answers import Heading, counts, end_of_error, extension, json_response, usage_body
from .chat_request import ChatCompletionRequest
from .models import check_model
from .token_logprobs import token_logprobs

router = APIRouter(route_class=JsonRoute, prefix="/v1", tags=["openai"])


@router.post("/chat/completions")
async def create_chat_completion(
    body: ChatCompletionRequest, http: HttpRequest, service: Service, caller: Caller, request_id: RequestId
) -> Response:
    """The assistant's next message: text, or calls of tools."""
    model = check_model(service, body.model)
    ask = await service.workers.call(caller.name, body.ask)
    tokenizer = service.llm.tokenizer
    answer_id = f"chatcmpl-{request_id.removeprefix('req-')}"

    async def start() -> ChatRun:
        with in_words_of(body.names(), None):
            return await start_chat(service, caller, ask)

    if ask.is_streamed:
        stream = ChatStream(Heading(answer_id, "chat.completion.chunk", model), tokenizer, body)
        return EventStream(stream.events(start), end_of_error, request_id)

    async def answer() -> Response:
        async with await start() as run:
            messages, output = await run.messages()

        def written() -> Response:
            heading = Heading(answer_id, "chat.completion", model)
            choices = [_choice(tokenizer, message, body, run.unenforced_tools) for message in messages]
            extra = {"prompt_token_ids": output.prompt_token_ids} if body.return_token_ids else {}
            return json_response(heading.body(choices=choices, usage=usage_body([output]), **extra))

        is_long = body.logprobs
        return await service.workers.call(caller.name, written) if is_long else written()

    return await answer_unless_disconnected(http, answer())


def _choice(
    tokenizer: Tokenizer, message: ChatMessage, body: ChatCompletionRequest, unenforced_tools: Sequence[str]
) -> dict[str, Any]:
    calls = [
        {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    content = None if calls and not message.content else message.content
    logprobs = None
    if message.logprobs is not None:
        logprobs = _logprobs(tokenizer, message.token_ids, message.logprobs, body)
    said: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    return {
        "index": message.index,
        "message": {**said, "tool_calls": calls} if calls else said,
        "logprobs": logprobs,
        **_ending(message.end, unenforced_tools),
        **({"token_ids": message.token_ids} if body.return_token_ids else {}),
    }


def _ending(end: SampleEnd, unenforced_tools: Sequence[str]) -> dict[str, Any]:
    ours = extension(end.reason, end.complete)
    return {
        "finish_reason": end.finish,
        "stop_reason": end.stop_reason,
        "ramet": {**ours, "unenforced_tools": unenforced_tools} if unenforced_tools else ours,
    }


def _logprobs(
    tokenizer: Tokenizer, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], body: ChatCompletionRequest
) -> dict[str, Any]:
    return {"content": token_logprobs(tokenizer, token_ids, logprobs, body.top_logprobs or 0), "refusal": None}


class ChatStream:
    """Writes what a ChatRun says as OpenAI's chunks."""

    def __init__(self, heading: Heading, tokenizer: Tokenizer, body: ChatCompletionRequest) -> None:
        self._heading = heading
        self._tokenizer = tokenizer
        self._body = body
        self._num_prompt_tokens = 0
        self._num_tokens = [0] * (body.n or 1)

    async def events(self, start: Callable[[], Awaitable[ChatRun]]) -> AsyncIterator[bytes]:
        async with await start() as run:
            self._num_prompt_tokens = len(run.prompt_token_ids)
            for index in range(self._body.n or 1):
                yield self._begin(index, run.prompt_token_ids)
            async for happened in run.events():
                match happened:
                    case TextDelta():
                        self._num_tokens[happened.index] += len(happened.token_ids)
                        if happened.text or happened.logprobs or self._body.return_token_ids:
                            yield self._text(happened)
                    case ToolCallBegin():
                        function = {"name": happened.name, "arguments": ""}
                        call = {"id": happened.call_id, "type": "function", "function": function}
                        yield self._call(happened.index, happened.call_idx, call)
                    case ToolCallDelta():
                        call = {"function": {"arguments": happened.arguments}}
                        yield self._call(happened.index, happened.call_idx, call)
                    case SampleEnd():
                        self._num_tokens[happened.index] = happened.num_tokens
                        yield self._chunk(happened.index, {}, **_ending(happened, run.unenforced_tools))
                    case ChatEnd():
                        if self._body.has_usage:
                            yield self._usage(happened.output)
            yield DONE

    def _begin(self, index: int, prompt_token_ids: Sequence[int]) -> bytes:
        """The first chunk of all tells the prompt's ids."""
        has_ids = index == 0 and self._body.return_token_ids
        top = {"prompt_token_ids": prompt_token_ids} if has_ids else {}
        return self._chunk(index, {"role": "assistant", "content": ""}, top)

    def _text(self, delta: TextDelta) -> bytes:
        more: dict[str, Any] = {}
        if delta.logprobs:
            more["logprobs"] = _logprobs(self._tokenizer, delta.token_ids, delta.logprobs, self._body)
        if self._body.return_token_ids:
            more["token_ids"] = delta.token_ids
        return self._chunk(delta.index, {"content": delta.text}, **more)

    def _call(self, index: int, call_idx: int, call: dict[str, Any]) -> bytes:
        return self._chunk(index, {"tool_calls": [{"index": call_idx, **call}]})

    def _chunk(self, index: int, delta: dict[str, Any], top: Mapping[str, Any] | None = None, **more: Any) -> bytes:
        """
        Args:
            top: what stands beside the choices.
            more: what stands in the choice.
        """
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        usage: dict[str, Any] = {}
        if self._body.has_running_usage:
            usage = {"usage": counts(self._num_prompt_tokens, sum(self._num_tokens))}
        elif self._body.has_usage:
            usage = {"usage": None}
        return event(self._heading.body(choices=[choice], **usage, **(top or {})))

    def _usage(self, output: RequestOutput) -> bytes:
        return event(self._heading.body(choices=[], usage=usage_body([output])))
