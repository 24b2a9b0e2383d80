"""`/v1/responses`: text and function calls, and conversations that go on from a response that was kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from ...outputs import TokenLogprobs
from ..chat.ask import ChatAsk, ChatEnd
from ..chat.run import ChatRun, start_chat
from ..chat.turns import OpenAIMessage
from ..chat.wording import in_words_of
from ..dependencies import Caller, RequestId, Service
from ..errors import ApiError
from ..json_route import JsonRoute
from ..json_text import to_json
from ..service import EngineService
from ..streaming import EventStream, answer_unless_disconnected
from ..tenant import Tenant
from .answers import json_response
from .models import check_model
from .responses_answer import Envelope, Json, answer_messages, message_items
from .responses_ask import NAMES, chat_ask, check_served
from .responses_input import item_messages
from .responses_schema import ResponsesBody
from .responses_store import ResponseStore, StoredResponse
from .responses_stream import ResponseEvents
from .token_logprobs import token_logprobs

router = APIRouter(route_class=JsonRoute, prefix="/v1/responses", tags=["openai"])


@dataclass(frozen=True, slots=True)
class _Turn:
    """One request for a response, understood."""

    service: EngineService
    tenant: Tenant
    store: ResponseStore
    envelope: Envelope
    messages: list[OpenAIMessage]
    ask: ChatAsk

    async def whole(self) -> bytes:
        async with await self._start() as run:
            (message,), output = await run.messages()

        def written() -> tuple[bytes, StoredResponse | None]:
            logprobs = self.list_logprobs(message.token_ids, message.logprobs or ())
            response = self.envelope.ended(message_items(message, logprobs), message.end, output)
            return to_json(response), self._stored(response)

        content, stored = await self.service.workers.call(self.tenant.name, written)
        self._keep(stored)
        return content

    async def streamed(self, events: ResponseEvents) -> AsyncIterator[bytes]:
        def last(happened: ChatEnd) -> tuple[list[bytes], StoredResponse | None]:
            pieces = list(events.of(happened))
            assert events.ended is not None
            return pieces, self._stored(events.ended)

        async with await self._start() as run:
            begun = await self.service.workers.call(self.tenant.name, lambda: list(events.start()))
            for piece in begun:
                yield piece
            async for happened in run.events():
                if isinstance(happened, ChatEnd):
                    pieces, stored = await self.service.workers.call(self.tenant.name, partial(last, happened))
                    self._keep(stored)  # before the client knows, who may go on from it at once
                else:
                    pieces = list(events.of(happened))
                for piece in pieces:
                    yield piece

    def list_logprobs(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> list[Json]:
        """Of tokens of the text; none if nobody has asked for them."""
        num_top = self.envelope.body.num_logprobs
        return [] if num_top is None else token_logprobs(self.service.llm.tokenizer, token_ids, logprobs, num_top)

    async def _start(self) -> ChatRun:
        with in_words_of(NAMES, "input"):
            return await start_chat(self.service, self.tenant, self.ask)

    def _stored(self, response: Json) -> StoredResponse | None:
        """What is kept of it, if it is. Writes down the whole conversation, to see how long it is: for a worker."""
        if not self.envelope.is_stored:
            return None
        messages = (*self.messages, *answer_messages(response["output"]))
        return StoredResponse(response, messages, len(to_json(response)) + len(to_json(messages)))

    def _keep(self, stored: StoredResponse | None) -> None:
        if stored is not None:
            self.store.put(self.tenant.namespace_id, stored)


@router.post("")
async def create_response(
    body: ResponsesBody, http: HttpRequest, service: Service, tenant: Caller, request_id: RequestId
) -> Response:
    """The next response of a conversation, whole or as events."""
    model = check_model(service, body.model)
    check_served(body)
    given = body.input
    assert given is not None
    store = _store(http)
    before = _previous(store, tenant, body.previous_response_id)
    envelope = Envelope(body, model, is_stored=store.is_open and body.store is not False)

    def understood() -> _Turn:
        messages = [*before, *item_messages(given, before)]
        return _Turn(service, tenant, store, envelope, messages, chat_ask(body, messages))

    turn = await service.workers.call(tenant.name, understood)
    if body.stream:
        events = ResponseEvents(envelope, turn.list_logprobs)
        return EventStream(turn.streamed(events), events.error, request_id)
    return Response(await answer_unless_disconnected(http, turn.whole()), media_type="application/json")


@router.get("/{response_id}")
async def get_response(response_id: str, http: HttpRequest, service: Service, tenant: Caller) -> Response:
    """A response that was kept."""
    if http.query_params.get("stream", "false").lower() not in ("false", "0"):
        raise ApiError(400, "stream: a response that was kept is not streamed again; leave it out", param="stream")
    stored = _store(http).get(tenant.namespace_id, response_id)
    if stored is None:
        raise _not_kept(404, response_id, "response_id", "not_found")
    content = await service.workers.call(tenant.name, lambda: to_json(stored.body))
    return Response(content, media_type="application/json")


@router.delete("/{response_id}")
async def delete_response(response_id: str, http: HttpRequest, tenant: Caller) -> Response:
    """Forget a response. Those that went on from it stay."""
    if not _store(http).drop(tenant.namespace_id, response_id):
        raise _not_kept(404, response_id, "response_id", "not_found")
    return json_response({"id": response_id, "object": "response", "deleted": True})


def _previous(store: ResponseStore, tenant: Tenant, response_id: str | None) -> tuple[OpenAIMessage, ...]:
    if response_id is None:
        return ()
    stored = store.get(tenant.namespace_id, response_id)
    if stored is None:
        raise _not_kept(400, response_id, "previous_response_id", "previous_response_not_found")
    return stored.messages


def _not_kept(status: int, response_id: str, param: str, code: str) -> ApiError:
    message = f"{param}={response_id!r:.80}: there is no such response, or it is not kept any more"
    return ApiError(status, message, param=param, code=code)


def _store(http: HttpRequest) -> ResponseStore:
    store = http.app.state.responses
    assert isinstance(store, ResponseStore)
    return store
