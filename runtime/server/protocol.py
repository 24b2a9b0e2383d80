"""HttpProtocol: uvicorn's HTTP/1.1 on one connection, for clients that mean no good or are very slow.

Added to it: time limits on reading a request and on taking its answer, a limit to connections, refusals in JSON, and
heads that are read strictly (`strict_connection.py`).

A client that closes its side has left, and what it asked for is cancelled: nothing tells one that still listens from
one that does not. So reading never stops while an answer is made, whatever else a client sends meanwhile.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from ...counted import counted
from .border import error_response, id_headers, new_request_id
from .config import ServerConfig
from .errors import ApiError, shutting_down
from .streaming import WRITE_EXTENSION
from .strict_connection import StrictConnection

_LINGER_SECONDS = 1.0
_MAX_PIPELINED_BYTES = 64 * 1024
"""Of requests that come before the answer to the one before them. Who sends more is cut off."""
_ALWAYS_ANSWERED = frozenset({"/health", "/ready"})
"""However many connections there are: whoever looks after the server must not take a busy one for a dead one."""


class HttpProtocol(H11Protocol):
    """One connection.

    Args:
        limits: of time and number; the rest are uvicorn's.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ServerConfig,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self.conn: StrictConnection = StrictConnection(limits.max_header_bytes)
        self._reading: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._is_refused = False
        self.app = self._serve

    @property
    def is_answering(self) -> bool:
        """A request has come in whole, and somebody waits for the rest of its answer."""
        is_awaited = self._owes_answer and not self.cycle.disconnected
        return is_awaited and self.conn.their_state is not h11.SEND_BODY

    def refuse_unfinished(self) -> None:
        """The server ends: no more is read of a body that has not come in whole."""
        if self.conn.their_state is h11.SEND_BODY:
            self._refuse(shutting_down())

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.max_connections:
            self.app = self._turn_away
        self._watch("head")

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch(None)
        self._unset_write_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._is_refused:
            super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self._is_refused:
            return
        state = self.conn.their_state
        if state not in (h11.IDLE, h11.SEND_BODY) and self._owes_answer:
            self._keep_reading()
        if state is h11.SEND_BODY:
            self._watch("body")
        elif state is h11.IDLE and self.conn.trailing_data[0]:
            self._watch("head")
        else:
            self._watch(None)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._cut_off_later()

    def resume_writing(self) -> None:
        self._unset_write_timer()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._cut_off_later()  # closing waits for what the client has not taken

    def _cut_off_later(self) -> None:
        self._unset_write_timer()
        self._write_timer = self.loop.call_later(self._limits.write_timeout_s, self.transport.abort)

    def _unset_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(*(self.conn.fault or (400, msg))))

    @property
    def _owes_answer(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _keep_reading(self) -> None:
        """However much a client sends ahead: uvicorn would look for the end of the connection only after the answer."""
        if len(self.conn.trailing_data[0]) > _MAX_PIPELINED_BYTES:
            self._leave()
        else:
            self.flow.resume_reading()

    def _watch(self, part: str | None) -> None:
        """Give the client time for a part of its request; what has begun goes on."""
        if part == self._reading:
            return
        self._reading = part
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if part is not None:
            seconds = self._limits.header_timeout_s if part == "head" else self._limits.body_timeout_s
            self._timer = self.loop.call_later(seconds, self._time_out, part, seconds)

    def _time_out(self, part: str, seconds: float) -> None:
        if part == "head" and not self.conn.trailing_data[0]:  # it has said nothing, so nobody waits for an answer
            self.transport.close()
        else:
            self._refuse(ApiError(408, f"the {part} of the request took more than {seconds:g} s to come"))

    def _refuse(self, error: ApiError) -> None:
        """Answer, if no answer has begun, and close."""
        self._watch(None)
        if self.transport.is_closing() or self._is_refused:
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._is_refused = True
            path = "" if self.cycle is None else self.cycle.scope["path"]
            answer = error_response(path, error)
            head = h11.Response(
                status_code=error.status,
                headers=[*answer.raw_headers, *id_headers(new_request_id()), (b"connection", b"close")],
                reason=STATUS_PHRASES[error.status],
            )
            for event in (head, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self._leave()

    def _leave(self) -> None:
        """Close; the application is told that nobody listens. A client that may still be sending would be reset, and
        never read why it is refused: it gets a while to take that."""
        if self._owes_answer:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self._is_refused and self.transport.can_write_eof():
            self.transport.write_eof()
            self.flow.resume_reading()
            self.loop.call_later(_LINGER_SECONDS, self.transport.close)
        else:
            self.transport.close()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application, with a short way for streams."""
        if scope["http_version"] == "1.1" and scope["method"] != "HEAD":
            scope["extensions"] = {WRITE_EXTENSION: partial(self._write_chunk, self.cycle)}
        cycle = self.cycle
        try:
            await self.config.loaded_app(scope, receive, send)
        except asyncio.CancelledError:  # the server has ended, and its client is gone: no fault of the application's
            if not cycle.disconnected:
                raise

    async def _write_chunk(self, cycle: RequestResponseCycle, piece: bytes) -> None:
        """What h11 makes of a part of a body whose length is not known before."""
        if self.flow.write_paused and not cycle.disconnected:
            await self.flow.drain()
        if piece and not cycle.disconnected:
            self.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))

    async def _turn_away(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in _ALWAYS_ANSWERED:
            return await self._serve(scope, receive, send)
        full = ApiError(
            503,
            f"the server has {counted(self._limits.max_connections, 'connection')}, and takes no more; try again later",
            code="too_many_connections",
            retry_after_s=5.0,
        )
        response = error_response(scope["path"], full)
        response.raw_headers += [*id_headers(new_request_id()), (b"connection", b"close")]
        return await response(scope, receive, send)
