"""Families of OpenAI's endpoints that a model of text has nothing to answer with."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi import Request as HttpRequest

from ..errors import ApiError

router = APIRouter(tags=["openai"], include_in_schema=False)

_FAMILIES = {
    "/v1/embeddings": "embeddings",
    "/v1/rerank": "rankings",
    "/rerank": "rankings",
    "/v1/score": "scores of pairs of texts",
    "/score": "scores of pairs of texts",
    "/v1/classify": "classes",
    "/classify": "classes",
    "/pooling": "embeddings",
    "/v1/moderations": "moderation",
    "/v1/audio/{kind}": "audio",
    "/v1/images/{kind}": "images",
}


async def refuse(http: HttpRequest) -> None:
    what = _FAMILIES[http.scope["route"].path]
    raise ApiError(
        404, f"{http.url.path}: there are no {what} here, this model generates text only", code="not_supported"
    )


for path in _FAMILIES:
    router.add_api_route(path, refuse, methods=["POST"])
