"""The border of the server: what every request passes before a route sees it. Pure ASGI.

In this order: an id for the request, a boundary for errors, the host that was asked for, the API key, the size of the
body. Nothing is allocated for a request that is turned away here. How large the head of a request may be is the affair
of whatever speaks HTTP, such as `protocol.py`: here it is in memory already.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .body_budget import BodyBudget
from .config import ServerConfig
from .errors import ApiError, error_body, reported
from .json_text import to_json
from .origins import HostCheck
from .tenant import Tenant, Tenants

PUBLIC_PATHS = frozenset({"/", "/health", "/ready", "/docs", "/openapi.json"})
"""They hold nothing that belongs to anybody, and are open without a key."""
PUBLIC_PREFIXES = ("/assets/",)
ADMIN_PATHS = frozenset({"/flush_cache", "/metrics", "/start_profile", "/stop_profile", "/v1/loads", "/get_load"})
ADMIN_PREFIXES = ("/live/",)
"""They act on, or tell of, what belongs to others."""
CHANGED_BY_GET = frozenset({"/start_profile", "/stop_profile"})
"""SGLang's frontend asks so for what is not only looking."""


def is_public(path: str) -> bool:
    """Whether it is open without a key."""
    return path in PUBLIC_PATHS or path.startswith(PUBLIC_PREFIXES)


def error_response(path: str, error: ApiError) -> Response:
    """In the form that clients of this path know, without the id of the request."""
    headers: dict[str, str] = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, round(error.retry_after_s)))
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.status == 504:  # clients of both kinds obey it: they would have the same computed again, for as long
        headers["x-should-retry"] = "false"
    return Response(to_json(error_body(path, error)), error.status, headers, "application/json")


def new_request_id() -> str:
    return f"req-{secrets.token_hex(12)}"


def id_headers(request_id: str) -> list[tuple[bytes, bytes]]:
    """Where OpenAI's clients look for it, and where Anthropic's do."""
    return [(name, request_id.encode()) for name in (b"x-request-id", b"request-id")]


class Border:
    """Wraps the application. Sets `scope["state"]["request_id"]` and `["tenant"]`."""

    def __init__(self, app: ASGIApp, config: ServerConfig, tenants: Tenants, bodies: BodyBudget) -> None:
        self._app = app
        self._tenants = tenants
        self._hosts = HostCheck(config)
        self._budget = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request_id = new_request_id()
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        is_started = False

        async def send_with_id(message: Message) -> None:
            nonlocal is_started
            if message["type"] == "http.response.start":
                is_started = True
                message = {**message, "headers": [*message.get("headers", ()), *id_headers(request_id)]}
            await send(message)

        body = self._budget.open()
        try:
            self._hosts.check(scope["headers"], is_only_looking=_is_only_looking(scope))
            state["tenant"] = tenant = self._tenant(scope)
            _check_admin(tenant, scope["path"])
            announced = dict(scope["headers"]).get(b"content-length", b"")
            if announced.isdigit():
                self._budget.check_len(int(announced))
            await self._app(scope, body.counted(receive), send_with_id)
        except ClientDisconnect:  # in the middle of its body, or of what is made for it
            return None
        except Exception as error:
            failure = reported(error, request_id)
            if is_started:  # too late to say it: the connection is cut, which the client sees
                raise
            await error_response(scope["path"], failure)(scope, receive, send_with_id)
        finally:
            body.free()
        return None

    def _tenant(self, scope: Scope) -> Tenant | None:
        path = scope["path"]
        if is_public(path) or scope["method"] == "OPTIONS":
            return None
        return self._tenants.find(given_keys(scope["headers"]))


def _check_admin(tenant: Tenant | None, path: str) -> None:
    if tenant is not None and not tenant.is_admin and (path in ADMIN_PATHS or path.startswith(ADMIN_PREFIXES)):
        raise ApiError(
            403, f"{path:.100} is for admin keys only: it acts on, or tells of, what is others'", code="not_admin"
        )


def _is_only_looking(scope: Scope) -> bool:
    return scope["method"] in ("GET", "HEAD", "OPTIONS") and scope["path"] not in CHANGED_BY_GET


def given_keys(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[str]:
    """The API keys that a request brings: OpenAI's clients send one header, Anthropic's the other."""
    for name, value in headers:
        text = value.decode("latin-1").encode("latin-1").decode("utf-8", "surrogateescape").strip()
        if name == b"authorization" and text[:7].lower() == "bearer ":
            yield text[7:].strip()
        elif name == b"x-api-key":
            yield text
