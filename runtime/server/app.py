"""The ASGI application: every router there is, behind the border."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from .answer_log import AnswerLog
from .border import Border, error_response
from .errors import ApiError
from .health import router as health_router
from .metrics import ServerMetrics
from .metrics import router as metrics_router
from .openai.chat import router as chat_router
from .openai.completions import router as completions_router
from .openai.models import router as models_router
from .openai.refused import router as refused_router
from .service import EngineService

ROUTERS: tuple[APIRouter, ...] = (
    health_router,
    metrics_router,
    models_router,
    chat_router,
    completions_router,
    refused_router,
)
"""A new family of endpoints is one file and one line here."""


def build_app(service: EngineService) -> FastAPI:
    """The application over an engine. It takes the loop it is started on for its own."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        service.close()

    app = FastAPI(
        title="ramet",
        description="A prefix-caching LLM server: OpenAI's, Anthropic's and SGLang's endpoints over one engine.",
        version=_version(),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    app.state.metrics = metrics = ServerMetrics(service)
    service.finished.append(metrics.note_output)
    for router in ROUTERS:
        app.include_router(router)
    app.add_exception_handler(RequestValidationError, _on_invalid_body)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_middleware(Border, config=service.config)
    app.add_middleware(AnswerLog, metrics=metrics, is_logging=service.config.log_requests)
    return app


async def _on_invalid_body(http: Request, error: Exception) -> Response:
    """A field has a value that it may not have."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    path = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
    field = "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path).lstrip(".")
    given = "" if first["type"] == "missing" else f", not {first['input']!r:.100}"
    message = f"{field or 'the body'}: {first['msg']}{given}"
    return error_response(http.url.path, ApiError(400, message, param=field or None), http.state.request_id)


async def _on_http_error(http: Request, error: Exception) -> Response:
    """There is no such route, or not by this method."""
    assert isinstance(error, HTTPException)
    what = {404: f"there is no {http.url.path} here", 405: f"{http.url.path} is not used with {http.method}"}
    message = what.get(error.status_code, str(error.detail))
    return error_response(http.url.path, ApiError(error.status_code, message), http.state.request_id)


async def _on_api_error(http: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(http.url.path, error, http.state.request_id)


def _version() -> str:
    from importlib.metadata import version

    return version("ramet")
