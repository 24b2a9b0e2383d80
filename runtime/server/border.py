"""The border of the server: what every request passes before a route sees it. Pure ASGI.

In this order: an id for the request, a boundary for errors, the size of the headers, the host that was asked for, the
API key, the size of the body. Nothing is allocated for a request that is turned away here.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .config import ServerConfig
from .errors import ApiError, error_body, reported
from .json_text import to_json
from .origins import HostCheck
from .streaming import ClientDisconnectedError
from .tenant import Tenants

PUBLIC_PATHS = frozenset({"/", "/health", "/ready", "/docs", "/openapi.json"})
"""They hold nothing that belongs to anybody, and are open without a key."""
PUBLIC_PREFIXES = ("/assets/",)
ADMIN_PATHS = frozenset({"/flush_cache", "/metrics", "/start_profile", "/stop_profile", "/v1/loads", "/get_load"})
ADMIN_PREFIXES = ("/live/",)
"""They act on, or tell of, what belongs to others."""
REQUEST_ID_HEADERS = (b"x-request-id", b"request-id")
"""Where OpenAI's clients look for it, and where Anthropic's do."""


def error_response(path: str, error: ApiError, request_id: str) -> Response:
    headers = {"x-request-id": request_id}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, round(error.retry_after_s)))
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(to_json(error_body(path, error)), error.status, headers, "application/json")


class Border:
    """Wraps the application. Sets `scope["state"]["request_id"]` and `["tenant"]`."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._app = app
        self._config = config
        self._tenants = Tenants(config)
        self._hosts = HostCheck(config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request_id = f"req-{secrets.token_hex(12)}"
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        is_started = False

        async def send_with_id(message: Message) -> None:
            nonlocal is_started
            if message["type"] == "http.response.start":
                is_started = True
                headers = [pair for pair in message.get("headers", ()) if pair[0] not in REQUEST_ID_HEADERS]
                ids = [(name, request_id.encode()) for name in REQUEST_ID_HEADERS]
                message = {**message, "headers": [*headers, *ids]}
            await send(message)

        try:
            self._check_headers(scope)
            self._hosts.check(scope["headers"])
            state["tenant"] = self._tenant(scope)
            await self._app(scope, self._limited(scope, receive), send_with_id)
        except ClientDisconnectedError:
            return None
        except Exception as error:
            failure = reported(error, request_id)
            if is_started:  # too late to say it: the connection is cut, which the client sees
                raise
            await error_response(scope["path"], failure, request_id)(scope, receive, send_with_id)
        return None

    def _check_headers(self, scope: Scope) -> None:
        most = self._config.max_header_bytes
        if sum(len(name) + len(value) for name, value in scope["headers"]) > most:
            raise ApiError(431, f"the headers have more than {most} bytes, the limit of this server")

    def _tenant(self, scope: Scope) -> object:
        path = scope["path"]
        if path in PUBLIC_PATHS or path.startswith(PUBLIC_PREFIXES) or scope["method"] == "OPTIONS":
            return None
        tenant = self._tenants.find(given_keys(scope["headers"]))
        if not tenant.is_admin and (path in ADMIN_PATHS or path.startswith(ADMIN_PREFIXES)):
            raise ApiError(403, f"{path} is for admin keys only: it tells of all tenants", code="not_admin")
        return tenant

    def _limited(self, scope: Scope, receive: Receive) -> Receive:
        most = self._config.max_body_bytes
        error = ApiError(413, f"the body has more than {most} bytes, the limit of this server")
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > most:
            raise error
        num_bytes = 0

        async def receive_limited() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > most:
                raise error
            return message

        return receive_limited


def given_keys(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[str]:
    """The API keys that a request brings: OpenAI's clients send one header, Anthropic's the other."""
    for name, value in headers:
        text = value.decode("latin-1").encode("latin-1").decode("utf-8", "surrogateescape").strip()
        if name == b"authorization" and text[:7].lower() == "bearer ":
            yield text[7:].strip()
        elif name == b"x-api-key":
            yield text
