"""Servers that answer as OpenAI's and Anthropic's do, with a scripted model whose tokens are characters."""

from __future__ import annotations

from typing import Any

from .stub_server import Exchange

HEAD = {"id": "c", "object": "chunk", "created": 0, "model": "fake"}


def _cut(reply: str, max_tokens: int, stops: list[str]) -> tuple[str, str]:
    """The reply as far as it goes, and why it ends."""
    text, reason = (reply[:max_tokens], "length") if len(reply) > max_tokens else (reply, "stop")
    hits = sorted((text.index(stop) + len(stop), stop) for stop in stops if stop in text)
    return (text[: hits[0][0] - len(hits[0][1])], "stop") if hits else (text, reason)


class FakeOpenAI:
    """A script for a StubServer. Tells which stop string it was, as vLLM does."""

    def __init__(self, reply: str) -> None:
        self._reply = reply

    def __call__(self, exchange: Exchange) -> None:
        body = exchange.body
        if body.get("echo"):
            return self._echo(exchange)
        is_chat = exchange.path.endswith("/chat/completions")
        prompt = "".join(message["content"] for message in body["messages"]) if is_chat else body["prompt"]
        stops = body.get("stop", [])
        text, reason = _cut(self._reply, body["max_tokens"], stops)
        matched = {"stop_reason": stops[0]} if stops and reason == "stop" else {}
        chunks = []
        for index in range(body.get("n", 1)):
            chunks += [self._chunk(index, character, body, is_chat=is_chat) for character in text]
            chunks.append(self._chunk(index, "", body, is_chat=is_chat, finish_reason=reason, **matched))
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(text) * body.get("n", 1), "total_tokens": 0}
        return exchange.events([*chunks, {**HEAD, "choices": [], "usage": usage}])

    @staticmethod
    def _chunk(index: int, text: str, body: dict[str, Any], *, is_chat: bool, **choice: Any) -> dict[str, Any]:
        choice = {"index": index, "finish_reason": None, **choice}
        has_logprobs = bool(text) and body.get("logprobs") not in (None, False)
        if is_chat:
            choice["delta"] = {"content": text}
            items = [{"token": text, "bytes": list(text.encode()), "logprob": -0.5, "top_logprobs": []}]
            choice["logprobs"] = {"content": items} if has_logprobs else None
        else:
            choice["text"] = text
            choice["logprobs"] = {"tokens": [text], "token_logprobs": [-0.5]} if has_logprobs else None
        return {**HEAD, "choices": [choice]}

    @staticmethod
    def _echo(exchange: Exchange) -> None:
        choices = []
        for index, prompt in enumerate(exchange.body["prompt"]):
            logprobs = {
                "tokens": [*prompt, "~"],
                "token_logprobs": [None, *[-1.0] * len(prompt)],
                "text_offset": list(range(len(prompt) + 1)),
            }
            choices.append({"index": index, "text": f"{prompt}~", "finish_reason": "length", "logprobs": logprobs})
        exchange.json({**HEAD, "choices": choices})


class FakeAnthropic:
    """A script for a StubServer."""

    def __init__(self, reply: str) -> None:
        self._reply = reply

    def __call__(self, exchange: Exchange) -> None:
        body = exchange.body
        num_prompt_tokens = sum(len(message["content"]) for message in body["messages"])
        stops = body.get("stop_sequences", [])
        text, reason = _cut(self._reply, body["max_tokens"], stops)
        exchange.begin_events()
        message = {"usage": {"input_tokens": num_prompt_tokens, "output_tokens": 0}, "content": []}
        exchange.event({"type": "message_start", "message": message}, "message_start")
        for character in text:
            delta = {"type": "text_delta", "text": character}
            exchange.event({"type": "content_block_delta", "index": 0, "delta": delta}, "content_block_delta")
        matched = stops[0] if stops and reason == "stop" else None
        kind = "max_tokens" if reason == "length" else "stop_sequence" if matched else "end_turn"
        end = {"stop_reason": kind, "stop_sequence": matched}
        usage = {"output_tokens": len(text)}
        exchange.event({"type": "message_delta", "delta": end, "usage": usage}, "message_delta")
        exchange.event({"type": "message_stop"}, "message_stop")
        exchange.end_events()
