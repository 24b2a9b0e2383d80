"""`/live/state` and `/live/events`: the engine as it works, for admins (the border sees to that)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..dependencies import RequestId
from ..document import EVENTS, answers_as
from ..errors import ApiError, openai_body
from ..json_text import to_json
from ..streaming import EventStream, event
from .collector import LiveCollector

router = APIRouter(prefix="/live", tags=["live"])


@router.get("/state")
async def live_state(http: Request) -> Response:
    """The engine at this moment: counters, memory, sequences, the last steps, and the most used part of the cache.

    Steps are recorded from the first call on, as long as somebody asks again within ten seconds.
    """
    return Response(to_json(await _collector(http).state()), media_type="application/json")


@router.get("/events", response_class=Response, responses=answers_as(EVENTS))
async def live_events(http: Request, request_id: RequestId) -> Response:
    """Server-sent events: `state` once, then `tick` about four times a second and `tree` when the cache has changed."""
    return EventStream(_events(_collector(http)), _failure, request_id)


async def _events(collector: LiveCollector) -> AsyncIterator[bytes]:
    async with aclosing(collector.watch()) as seen:
        async for name, data in seen:
            yield event(data, name)


def _failure(error: ApiError) -> Iterator[bytes]:
    yield event(openai_body(error), "error")


def _collector(http: Request) -> LiveCollector:
    collector = http.app.state.live
    assert isinstance(collector, LiveCollector)
    return collector
