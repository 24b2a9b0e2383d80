"""The page over endpoints that answer what a test wants: it needs no model, and fails as told."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from ramet.runtime.server.web.routes import router as web_router


@dataclass
class StubApi:
    """What is answered, and what was asked.

    Attributes:
        pieces: texts of a stream, one chunk each.
        tool_calls: deltas of a chat's first answer, instead of its pieces.
        failure: (status, message, headers) of every call, instead of an answer.
        failure_after: the stream has an error after so many pieces.
        cut_after: the connection ends after so many.
        pause_s: between two pieces.
        key: that calls must bring.
        bodies: what was asked.
    """

    pieces: list[str] = field(default_factory=lambda: ["Hello", ", ", "world."])
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    failure: tuple[int, str, dict[str, str]] | None = None
    failure_after: int | None = None
    cut_after: int | None = None
    pause_s: float = 0.0
    key: str | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    num_left: int = 0


def stub_app(stub: StubApi) -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None)
    app.include_router(web_router)

    @app.get("/v1/models")
    async def models(http: Request) -> Response:
        return _refusal(stub, http) or JSONResponse({"data": [{"id": "stub-model", "max_model_len": 512}]})

    async def answer(http: Request, *, is_chat: bool) -> Response:
        refusal = _refusal(stub, http)
        if refusal is not None:
            return refusal
        stub.bodies.append(await http.json())
        if stub.failure is not None:
            status, message, headers = stub.failure
            return JSONResponse({"error": {"message": message, "param": "temperature"}}, status, headers)
        return StreamingResponse(_stream(stub, stub.bodies[-1], is_chat=is_chat), media_type="text/event-stream")

    @app.post("/v1/chat/completions")
    async def chat(http: Request) -> Response:
        return await answer(http, is_chat=True)

    @app.post("/v1/completions")
    async def completions(http: Request) -> Response:
        return await answer(http, is_chat=False)

    return app


def _refusal(stub: StubApi, http: Request) -> Response | None:
    if stub.key is None or http.headers.get("authorization") == f"Bearer {stub.key}":
        return None
    return JSONResponse({"error": {"message": "the API key is missing or not known", "param": None}}, 401)


async def _stream(stub: StubApi, body: dict[str, Any], *, is_chat: bool) -> AsyncIterator[bytes]:
    try:
        if stub.tool_calls and len(stub.bodies) == 1:
            yield _event({"choices": [{"index": 0, "delta": {"tool_calls": stub.tool_calls}}]})
            yield _event({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
            yield b"data: [DONE]\n\n"
            return
        for idx, piece in enumerate(stub.pieces):
            if idx == stub.failure_after:
                yield _event({"error": {"message": "the step failed"}})
                return
            if idx == stub.cut_after:
                return
            choice: dict[str, Any] = {"index": 0, "finish_reason": None}
            if is_chat:
                choice["delta"] = {"content": piece}
            else:
                choice["text"] = piece
                if body.get("logprobs"):
                    choice["logprobs"] = _logprobs(piece, idx)
            yield _event({"choices": [choice]})
            await asyncio.sleep(stub.pause_s)
        last: dict[str, Any] = {"index": 0, "finish_reason": "stop", "delta": {}, "text": ""}
        yield _event({"choices": [last]})
        usage = {
            "prompt_tokens": 40,
            "completion_tokens": len(stub.pieces),
            "prompt_tokens_details": {"cached_tokens": 32},
        }
        yield _event({"choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"
    finally:
        stub.num_left += 1


def _logprobs(piece: str, idx: int) -> dict[str, Any]:
    logprob = (-0.01, -0.5, -1.2, -3.0)[idx % 4]
    top = {piece: logprob, " other": -1.5, "\n": -2.5, "<b>": -4.0}
    return {"tokens": [piece], "token_logprobs": [logprob], "top_logprobs": [top], "text_offset": [0]}


def _event(data: Any) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


@contextmanager
def stub_server(stub: StubApi) -> Iterator[str]:
    """Where it listens."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(stub_app(stub), http="h11", ws="none", lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
        listening.close()
