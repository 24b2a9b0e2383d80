"""A server of ramet as far as RuntimeEndpoint needs one: an Engine behind a StubServer."""

from __future__ import annotations

from typing import Any

from ramet import Engine
from ramet.runtime.chat_template import TextSegment

from .stub_server import Exchange


class EngineServer:
    """A script for a StubServer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tokenizer = engine.llm.tokenizer

    def __call__(self, exchange: Exchange) -> None:
        body = exchange.body
        match exchange.path:
            case "/get_model_info":
                info = {"model_path": self._engine.llm.model_name, "ramet": {"version": "0"}}
                exchange.json({**info, "chat_template": self._tokenizer.chat_template.source})
            case "/tokenize":
                segments = [TextSegment(segment["text"], segment["is_template"]) for segment in body["segments"]]
                exchange.json({"tokens": self._tokenizer.encode_segments(segments, is_text_start=body["at_start"])})
            case "/detokenize":
                exchange.json({"bytes": [self._tokenizer.token_bytes(ids[0]).hex() for ids in body["tokens"]]})
            case "/generate":
                self._generate(exchange, body)
            case _:
                exchange.json({"detail": "Not Found"}, 404)

    def _generate(self, exchange: Exchange, body: dict[str, Any]) -> None:
        arguments = {"prompt" if name == "text" else name: value for name, value in body.items()}
        try:
            answer: Any = self._engine.generate(**arguments)
        except ValueError as error:
            exchange.json({"error": {"message": str(error)}}, 400)
            return
        if body.get("stream"):
            exchange.events(answer)
        else:
            exchange.json(answer)
