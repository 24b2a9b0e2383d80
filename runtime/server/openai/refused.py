"""OpenAI's endpoints that there is nothing to answer with: a model of text has none of it, or it is not kept."""

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


_NOT_KEPT = {
    ("GET", "/v1/responses/{response_id}/input_items"): "the items of an input are not kept, only what they came to",
    ("POST", "/v1/responses/{response_id}/cancel"): "no response is made in the background; close the connection",
}


async def refuse(http: HttpRequest) -> None:
    what = _FAMILIES[http.scope["route"].path]
    raise ApiError(
        404, f"{http.url.path}: there are no {what} here, this model generates text only", code="not_supported"
    )


async def refuse_unkept(http: HttpRequest) -> None:
    why = _NOT_KEPT[http.method, http.scope["route"].path]
    raise ApiError(404, f"{http.url.path:.100} is not served: {why}", code="not_supported")


for path in _FAMILIES:
    router.add_api_route(path, refuse, methods=["POST"])
for method, path in _NOT_KEPT:
    router.add_api_route(path, refuse_unkept, methods=[method])
