"""`/v1/messages` and `/v1/messages/count_tokens`, as Anthropic's clients call them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from ..chat.ask import ChatAsk
from ..chat.run import ChatRun, read_prompt, start_chat
from ..chat.wording import in_words_of
from ..dependencies import Caller, RequestId, Service
from ..json_route import JsonRoute
from ..json_text import to_json
from ..openai.models import check_model
from ..service import EngineService
from ..streaming import EventStream, answer_unless_disconnected
from ..tenant import Tenant
from .answer import Envelope, MessageEvents, message_body
from .ask import NAMES, chat_ask, prompt_ask
from .schema import CountTokensBody, MessagesBody

router = APIRouter(route_class=JsonRoute, prefix="/v1/messages", tags=["anthropic"])


@router.post("")
async def create_message(
    body: MessagesBody, http: HttpRequest, service: Service, tenant: Caller, request_id: RequestId
) -> Response:
    """The next message of a conversation, whole or as events."""
    envelope = Envelope(check_model(service, body.model), body.max_tokens)
    ask = await service.workers.call(tenant.name, lambda: chat_ask(body))
    if body.stream:
        events = MessageEvents(envelope)
        return EventStream(_streamed(service, tenant, ask, events), events.error, request_id)
    answer = await answer_unless_disconnected(http, _whole(service, tenant, ask, envelope))
    return Response(answer, media_type="application/json")


@router.post("/count_tokens")
async def count_tokens(body: CountTokensBody, http: HttpRequest, service: Service, tenant: Caller) -> Response:
    """How many tokens the prompt of such a message has."""
    check_model(service, body.model)
    ask = await service.workers.call(tenant.name, lambda: prompt_ask(body))

    async def count() -> Response:
        with in_words_of(NAMES, "messages"):
            prompt = await service.workers.call_aside(tenant.name, lambda: read_prompt(service, ask))
        return Response(to_json({"input_tokens": len(prompt.token_ids)}), media_type="application/json")

    return await answer_unless_disconnected(http, count())


async def _start(service: EngineService, tenant: Tenant, ask: ChatAsk) -> ChatRun:
    with in_words_of(NAMES, "messages"):
        return await start_chat(service, tenant, ask)


async def _whole(service: EngineService, tenant: Tenant, ask: ChatAsk, envelope: Envelope) -> bytes:
    async with await _start(service, tenant, ask) as run:
        (message,), output = await run.messages()
    return to_json(message_body(envelope, message, output))


async def _streamed(
    service: EngineService, tenant: Tenant, ask: ChatAsk, events: MessageEvents
) -> AsyncIterator[bytes]:
    async with await _start(service, tenant, ask) as run:
        yield events.start(len(run.prompt_token_ids))
        async for happened in run.events():
            for piece in events.of(happened):
                yield piece
