"""AnswerLog: notes how every HTTP request was answered, for metrics and, where it is wanted, for the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .metrics import ServerMetrics
from .tenant import Tenant

logger = logging.getLogger(__name__)


class AnswerLog:
    """Wraps the application and its border. Pure ASGI.

    Args:
        routes: what is behind the border: a request that is turned away there has not met its route.
        is_logging: write a line for each; it has no text and no key of the request in it.
    """

    def __init__(self, app: ASGIApp, metrics: ServerMetrics, routes: Iterable[BaseRoute], *, is_logging: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._routes = [route for route in routes if isinstance(route, Route | Mount)]
        self._is_logging = is_logging

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started = time.monotonic()
        status = 0

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        finally:
            path = self._path_of(scope)
            self._metrics.note_answer(scope["method"], path, status)
            if self._is_logging:
                self._log(scope, path, status, time.monotonic() - started)
        return None

    def _path_of(self, scope: Scope) -> str | None:
        """That of its route, by whatever method; None if there is none."""
        route = scope.get("route")
        if route is None:
            route = next((each for each in self._routes if each.path_regex.match(scope["path"])), None)
        return None if route is None else str(route.path)

    def _log(self, scope: Scope, path: str | None, status: int, seconds: float) -> None:
        state = scope.get("state", {})
        tenant = state.get("tenant")
        logger.info(
            "%s %s %s %s %d %.3f s",
            state.get("request_id", "-"),
            tenant.name if isinstance(tenant, Tenant) else "-",
            scope["method"] if scope["method"].isalpha() else "other",
            path or "none",
            status,
            seconds,
        )
