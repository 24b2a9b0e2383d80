"""`/generate`: SGLang's endpoint for prompts, whole or streamed."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from ..dependencies import Caller, RequestId, Service
from ..errors import ApiError, openai_body
from ..json_route import JsonRoute
from ..json_text import LEAST_LOGPROB, to_json
from ..streaming import DONE, EventStream, answer_unless_disconnected, event
from .generate_body import GenerateBody
from .generate_job import GenerateJob

router = APIRouter(route_class=JsonRoute, tags=["native"])


@router.post("/generate")
async def generate(
    body: GenerateBody, http: HttpRequest, service: Service, tenant: Caller, request_id: RequestId
) -> Response:
    """Run one prompt or a list of them.

    Answers with {"text", "output_ids", "meta_info"}, or a list of these; with `stream`, with events that each have the
    text so far and, in a list, "index".
    """
    job = GenerateJob(service, tenant, dict(body), request_id)
    if not job.is_streamed:
        return await answer_unless_disconnected(http, _answer(job))
    return EventStream(_events(job), _last_events, request_id)


router.put("/generate", include_in_schema=False)(generate)


async def _answer(job: GenerateJob) -> Response:
    async with await job.submit() as live:
        return Response(await job.answer(live, _json), media_type="application/json")


async def _events(job: GenerateJob) -> AsyncIterator[bytes]:
    async with await job.submit() as live, aclosing(job.stream(live)) as stream:  # type: ignore[type-var]
        async for answer in stream:
            yield b"data: " + _json(answer) + b"\n\n"
    yield DONE


def _last_events(error: ApiError) -> Iterable[bytes]:
    return event(openai_body(error)), DONE


def _json(answer: Any) -> bytes:
    try:
        return to_json(answer)
    except ValueError:
        return to_json(_all_finite(answer))


def _all_finite(value: Any) -> Any:
    """A copy in which no number is infinite: there is none in JSON."""
    if isinstance(value, dict):
        return {name: _all_finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_all_finite(item) for item in value]
    return LEAST_LOGPROB if isinstance(value, float) and not math.isfinite(value) else value
