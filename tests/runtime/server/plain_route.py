"""The plainest endpoint there can be, streamed and not, for tests of what all endpoints have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterable

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from ramet import SamplingParams
from ramet.runtime.request import Request as EngineRequest
from ramet.runtime.server.dependencies import Caller, RequestId, Service
from ramet.runtime.server.errors import ApiError, openai_body
from ramet.runtime.server.json_route import JsonRoute
from ramet.runtime.server.json_text import to_json
from ramet.runtime.server.live_requests import LiveRequests
from ramet.runtime.server.preparation import Preparation
from ramet.runtime.server.streaming import DONE, EventStream, answer_unless_disconnected, event

router = APIRouter(route_class=JsonRoute)


class Ask(BaseModel):
    """Tokens that go on with a prompt, whether they end it or not."""

    prompt: str = "Once upon a time"
    max_tokens: int = 16
    stream: bool = False


@router.post("/plain")
async def plain(http: Request, ask: Ask, service: Service, caller: Caller, request_id: RequestId) -> Response:
    def make(_: Preparation) -> list[EngineRequest]:
        params = SamplingParams(max_tokens=ask.max_tokens, temperature=0.0, ignore_eos=True)
        token_ids = tuple(service.llm.tokenizer.encode(ask.prompt))
        return [
            EngineRequest(
                request_id=service.llm.new_request_id(),
                prompt_token_ids=token_ids,
                sampling_params=params,
                cache_namespace=caller.namespace(),
            )
        ]

    live = service.submit(make, 1, tenant=caller.name, is_streamed=ask.stream)
    if ask.stream:
        return EventStream(_events(live), _end_of_error, request_id)
    return await answer_unless_disconnected(http, _answer(live))


async def _answer(submitting: Awaitable[LiveRequests]) -> Response:
    async with await submitting as live:
        (output,) = await live.succeeded()
    return Response(to_json({"text": output.outputs[0].text}), media_type="application/json")


async def _events(submitting: Awaitable[LiveRequests]) -> AsyncIterator[bytes]:
    async with await submitting as live:
        async for _, chunk in live.chunks():
            yield event({"text": chunk.text})
        yield DONE


def _end_of_error(error: ApiError) -> Iterable[bytes]:
    yield event(openai_body(error))
    yield DONE
