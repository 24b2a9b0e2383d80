"""`/`, `/docs` and what they load: plain files, which need no network and may run no script but their own."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from .files import web_files

router = APIRouter(include_in_schema=False)

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""A browser that knows trusted types lets no text become markup either, whatever a script of ours should try."""
_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}
_READ = ["GET", "HEAD"]


@router.api_route("/", methods=_READ)
async def index(http: Request) -> Response:
    return _answer(http, "index.html")


@router.api_route("/docs", methods=_READ)
async def docs(http: Request) -> Response:
    return _answer(http, "docs.html")


@router.api_route("/assets/{name}", methods=_READ)
async def asset(http: Request, name: str) -> Response:
    return _answer(http, name)


def _answer(http: Request, name: str) -> Response:
    """The file, or that the browser has it already."""
    file = web_files().get(name)
    if file is None:
        raise HTTPException(404)
    headers = {**_HEADERS, "etag": file.etag}
    if file.etag in http.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)
