"""ChatRun: a ChatAsk on its way through the engine. What it says comes as ChatEvents, or as whole ChatMessages."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from ...outputs import RequestOutput
from ...request import Request
from ..errors import ApiError
from ..live_requests import LiveRequests
from ..preparation import Preparation
from ..service import EngineService
from ..tenant import Tenant
from .ask import ChatAsk, ChatEnd, ChatEvent, ChatMessage
from .call_reader import CallReader
from .constraint import Constrained, constrained
from .prompt import ChatPrompt, chat_prompt
from .sample import Sample
from .tools import check_tools


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
        return [self._sample(completion.index).message(completion) for completion in output.outputs], output

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.abort()

    def _sample(self, index: int) -> Sample:
        names = [function["name"] for _, function in self._ask.callable_tools]
        reader = CallReader(self._prompt.tool_format, names) if names else None
        spec = self._ask.sampling.grammar_spec
        is_json = spec is not None and spec.kind == "json_schema"
        return Sample(index, reader, self._stop_token_ids, is_json=is_json)


async def start_chat(service: EngineService, tenant: Tenant, ask: ChatAsk) -> ChatRun:
    """Submit it.

    Raises:
        ApiError: it asks for what there is not, or the server is full.
        InvalidRequestError, ChatTemplateError: it is refused further in, in words of a ChatAsk; see `in_words_of`.
    """
    _check(service, ask)
    namespace = tenant.namespace(ask.cache_salt)
    llm = service.llm
    made: list[tuple[ChatPrompt, Constrained]] = []

    def make(preparation: Preparation) -> list[Request]:
        prompt = chat_prompt(llm.tokenizer, ask, service.check_prompt_len)
        asked = _cut_at_context(ask, llm.max_context_len - len(prompt.token_ids))
        request = Request(
            request_id=llm.new_request_id(),
            prompt_token_ids=prompt.token_ids,
            sampling_params=asked.sampling,
            priority=ask.priority,
            cache_namespace=namespace,
            is_prompt_only=ask.is_prompt_only,
        )
        held = constrained(preparation, request, asked, prompt.tool_format)
        made.append((prompt, held))
        return [held.request]

    live = await service.submit(
        make,
        ask.sampling.num_sequences,
        tenant=tenant.name,
        is_streamed=ask.is_streamed,
        is_constrained=bool(ask.callable_tools) or ask.sampling.grammar_spec is not None,
        name=ask.rid,
    )
    stop_token_ids = frozenset(llm.tokenizer.eos_token_ids) | frozenset(ask.sampling.stop_ids)
    ((prompt, held),) = made
    return ChatRun(live, ask, prompt, stop_token_ids, held.unenforced_tools)


def read_prompt(service: EngineService, ask: ChatAsk, *, opens_answer: bool = True) -> ChatPrompt:
    """The prompt that `start_chat` submits. Tokenises: for a worker.

    Args:
        opens_answer: as `chat_prompt`.

    Raises:
        ApiError, ChatTemplateError: as `start_chat`.
    """
    _check(service, ask)
    return chat_prompt(service.llm.tokenizer, ask, service.check_prompt_len, opens_answer=opens_answer)


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
    _check_num_messages(ask, service.llm.max_context_len)
    check_tools(ask)


def _check_num_messages(ask: ChatAsk, context_len: int) -> None:
    """Each message and each call has a token at least. Looked at before anything is done with them, as templates take
    their time."""
    calls = (message.get("tool_calls") for message in ask.messages)
    count = len(ask.messages) + sum(len(each) for each in calls if isinstance(each, list))
    if count > context_len:
        raise ApiError(
            400,
            f"messages has {count} messages and tool calls, and the model's context has {context_len} tokens: "
            "shorten the conversation",
            param="messages",
        )


def _cut_at_context(ask: ChatAsk, num_left: int) -> ChatAsk:
    sampling = ask.sampling
    if not ask.is_cut_at_context or sampling.max_tokens is None or not 0 < num_left < sampling.max_tokens:
        return ask
    return dataclasses.replace(ask, sampling=sampling.replace(max_tokens=None))
