"""What SGLang's clients tell a server to do: abort requests, forget its cache, write down what it does."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field, StrictBool, StrictStr
from starlette.responses import PlainTextResponse, Response

from ...errors import PrefixesKeptError
from ..dependencies import Caller, Service
from ..document import answers_as
from ..errors import ApiError
from ..json_route import JsonRoute
from ..json_text import to_json
from ..profile import Profile

router = APIRouter(route_class=JsonRoute, tags=["native"])
_ERASE_SECONDS = 30.0
_PROFILES = {kind: {"schema": {"type": "string"}} for kind in ("application/x-ndjson", "text/html", "image/svg+xml")}


class AbortBody(BaseModel):
    """Whose requests are to end: the one of this `rid`, or all of the caller's."""

    rid: StrictStr | None = Field(default=None, max_length=256)
    abort_all: StrictBool = False


@router.post("/abort_request")
async def abort_request(body: AbortBody, service: Service, tenant: Caller) -> Response:
    """Cancel requests of the caller's own. What they were to answer ends with finish_reason "abort"."""
    if not body.rid and not body.abort_all:
        raise ApiError(400, "give the rid of a request, or abort_all=true", param="rid")
    num_aborted = service.abort(tenant.name, None if body.abort_all else body.rid)
    return Response(to_json({"num_aborted": num_aborted}), media_type="application/json")


@router.post("/flush_cache", response_class=PlainTextResponse)
async def flush_cache(service: Service) -> PlainTextResponse:
    """Forget all cached prefixes that no running request holds, those in memory of the host and in the cache
    directory (`--cache-dir`) of this model too: they are gone for good. An error says that some are left in the
    directory, and why. For admin keys."""
    reset = await service.ask_while_well(lambda engine: engine.reset_prefix_cache())
    try:
        async with asyncio.timeout(_ERASE_SECONDS):
            await asyncio.gather(*map(asyncio.wrap_future, reset.erasures))
    except PrefixesKeptError as error:
        raise ApiError(503, f"the memory is free again, but {error}", code="prefixes_kept") from error
    except TimeoutError:
        message = "the memory is free again, but the disk of the cache directory hangs: what is there is erased later"
        raise ApiError(503, message, code="prefixes_kept") from None
    return PlainTextResponse(f"Cache flushed: {reset.num_freed_blocks} blocks are free again.\n")


@router.post("/start_profile", response_class=PlainTextResponse)
async def start_profile(
    http: Request, num_steps: Annotated[int, Query(ge=1, le=100_000)] = 10_000
) -> PlainTextResponse:
    """Begin to write down what every step of the engine does; of more than `num_steps` the last are kept. For admin
    keys."""
    await _profile(http).start(num_steps)
    return PlainTextResponse("Start profiling.\n")


@router.post("/stop_profile", response_class=Response, responses=answers_as(_PROFILES))
async def stop_profile(http: Request, format: Literal["jsonl", "html", "svg"] = "jsonl") -> Response:
    """What was written since /start_profile: a line per step (`Trace.load_jsonl` reads them), or a picture of them.
    For admin keys."""
    media_type = {"jsonl": "application/x-ndjson", "html": "text/html", "svg": "image/svg+xml"}[format]
    return Response(await _profile(http).stop(format), media_type=media_type)


def _profile(http: Request) -> Profile:
    profile = http.app.state.profile
    assert isinstance(profile, Profile)
    return profile


for path, handler in (("/start_profile", start_profile), ("/stop_profile", stop_profile)):
    router.get(path, include_in_schema=False)(handler)  # SGLang's frontend asks so
