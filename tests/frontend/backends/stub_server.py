"""A small HTTP server on the loopback, in a thread, that answers from a script and writes down what it was sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

WAIT_S = 20.0


@dataclass
class Exchange:
    """One request, and how to answer it."""

    handler: BaseHTTPRequestHandler = field(repr=False)
    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]

    def json(self, payload: object, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self._content(json.dumps(payload).encode(), status, {"Content-Type": "application/json", **(headers or {})})

    def text(self, text: str) -> None:
        self._content(text.encode(), 200, {"Content-Type": "text/plain"})

    def _content(self, data: bytes, status: int, headers: Mapping[str, str]) -> None:
        self.handler.send_response(status)
        sent = {"Content-Length": str(len(data)), **headers}
        for name, value in sent.items():
            self.handler.send_header(name, value)
        self.handler.end_headers()
        self.handler.wfile.write(data)

    def begin_events(self) -> None:
        self.handler.send_response(200)
        self.handler.send_header("Content-Type", "text/event-stream")
        self.handler.send_header("Transfer-Encoding", "chunked")
        self.handler.end_headers()

    def event(self, payload: object, kind: str | None = None) -> None:
        """Send one server-sent event; a str as it is."""
        data = payload if isinstance(payload, str) else json.dumps(payload)
        self._chunk((f"event: {kind}\n" if kind else "") + f"data: {data}\n\n")

    def end_events(self) -> None:
        self.handler.wfile.write(b"0\r\n\r\n")

    def events(self, payloads: Iterable[object]) -> None:
        """A whole stream, ended as OpenAI ends one."""
        self.begin_events()
        for payload in payloads:
            self.event(payload)
        self.event("[DONE]")
        self.end_events()

    def break_off(self) -> None:
        """Close the connection in the middle."""
        self.handler.close_connection = True

    def wait_closed_by_client(self) -> bool:
        """Whether the client closes the connection before long."""
        self.handler.connection.settimeout(WAIT_S)
        try:
            return self.handler.rfile.read(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        finally:
            self.handler.close_connection = True

    def _chunk(self, text: str) -> None:
        data = text.encode()
        self.handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.handler.wfile.flush()


Script = Callable[[Exchange], None]


class StubServer:
    """Answers with `script`; tests set it. `requests` has every request, in order of arrival."""

    def __init__(self) -> None:
        self.script: Script = lambda exchange: exchange.json({"error": {"message": "no script"}}, 500)
        self.requests: list[Exchange] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler_class())
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="stub", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request.body for request in self.requests]

    def play(self, *scripts: Script) -> None:
        """Answer the requests to come with these, one each; the last one answers all that follow."""
        left = list(scripts)

        def next_script(exchange: Exchange) -> None:
            with self._lock:
                script = left.pop(0) if len(left) > 1 else left[0]
            script(exchange)

        self.script = next_script

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _handler_class(self) -> type[BaseHTTPRequestHandler]:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            timeout = WAIT_S

            def _answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length) or b"{}")
                exchange = Exchange(self, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                with stub._lock:
                    stub.requests.append(exchange)
                try:
                    stub.script(exchange)
                except ConnectionError:
                    self.close_connection = True

            do_GET = do_POST = _answer  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                return

        return Handler


def deltas(text: str, size: int = 4) -> Iterator[str]:
    """A text in pieces."""
    return (text[start : start + size] for start in range(0, len(text), size))
