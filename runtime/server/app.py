"""The ASGI application: every router there is, behind the border."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from .answer_log import AnswerLog
from .anthropic.messages import router as messages_router
from .border import Border, error_response, is_public
from .document import Document
from .errors import ApiError
from .health import router as health_router
from .json_route import invalid_value
from .live.collector import LiveCollector
from .live.routes import router as live_router
from .metrics import ServerMetrics
from .metrics import router as metrics_router
from .native.control import router as control_router
from .native.generate import router as generate_router
from .native.info import router as info_router
from .native.tokens import router as tokens_router
from .openai.chat import router as chat_router
from .openai.completions import router as completions_router
from .openai.models import router as models_router
from .openai.refused import router as refused_router
from .openai.responses import router as responses_router
from .openai.responses_store import ResponseStore
from .profile import Profile
from .service import EngineService
from .web.routes import router as web_router
from .wrong_path import not_found

ROUTERS: tuple[APIRouter, ...] = (
    health_router,
    metrics_router,
    models_router,
    generate_router,
    control_router,
    info_router,
    tokens_router,
    messages_router,
    responses_router,
    live_router,
    web_router,
    chat_router,
    completions_router,
    refused_router,
)
"""A new family of endpoints is one file and one line here."""
_PATHS = frozenset(route.path for router in ROUTERS for route in router.routes if isinstance(route, APIRoute))
_GRPC_GRACE_SECONDS = 1.0
"""For the last words of calls. When the application ends, what ran has been answered."""


def build_app(service: EngineService) -> FastAPI:
    """The application over an engine. It takes the loop it is started on for its own."""
    live = LiveCollector(service)
    profile = Profile(service)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        async with AsyncExitStack() as stack:
            if service.config.grpc_port is not None:
                from .grpc.server import start_grpc

                grpc_server = await start_grpc(service)
                stack.push_async_callback(grpc_server.stop, _GRPC_GRACE_SECONDS)
                service.grpc_port = grpc_server.port
            try:
                yield
            finally:
                await live.close()
                profile.close()
        service.close()

    app = FastAPI(
        title="ramet",
        description="A prefix-caching LLM server: OpenAI's, Anthropic's and SGLang's endpoints over one engine.",
        version=_version(),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    app.state.metrics = metrics = ServerMetrics(service)
    service.finished.append(metrics.note_output)
    app.state.responses = ResponseStore(service.config.max_stored_response_bytes)
    app.state.live = live
    app.state.profile = profile
    routes = [*app.routes, *(route for router in ROUTERS for route in router.routes)]
    for router in ROUTERS:
        app.include_router(router)
    app.openapi = Document(app, has_keys=service.tenants.has_keys, is_public=is_public)  # type: ignore[method-assign]
    app.add_exception_handler(RequestValidationError, _on_invalid_parameter)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_middleware(Border, config=service.config, tenants=service.tenants, bodies=service.bodies)
    app.add_middleware(AnswerLog, metrics=metrics, routes=routes, is_logging=service.config.log_requests)
    if service.config.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.config.allowed_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "request-id", "retry-after"],
        )
    return app


async def _on_invalid_parameter(http: Request, error: Exception) -> Response:
    """A parameter of the path or the query has a value that it may not have; bodies are looked at by JsonRoute."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = first["loc"][-1]
    return await _on_api_error(http, invalid_value({**first, "loc": (name,)}, {name: None}))


async def _on_http_error(http: Request, error: Exception) -> Response:
    """There is no such route, or not by this method."""
    assert isinstance(error, HTTPException)
    path, message, meant = http.url.path, str(error.detail), None
    if error.status_code == 404:
        message, meant = not_found(path, _PATHS)
    elif error.status_code == 405:
        message = f"{path:.100} is not used with {http.method:.20}"
    answer = error_response(meant or path, ApiError(error.status_code, message))
    answer.headers.update(error.headers or {})  # of a 405 the methods that it is used with
    return answer


async def _on_api_error(http: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(http.url.path, error)


def _version() -> str:
    from importlib.metadata import version

    return version("ramet")
