"""A server that answers as SGLang's or ramet's `/generate` does, with a scripted model and a tokenizer of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .stub_server import Exchange

FIRST_ID = 500
Item = tuple[float | None, int, str | None]


class FakeRuntime:
    """A script for a StubServer.

    Args:
        reply: what the model writes after a prompt.
        merges: texts that are one token; all other tokens are characters.
        specials: special tokens, which SGLang finds in any text, and ramet in the template's only.
    """

    def __init__(
        self,
        reply: Callable[[str], str],
        *,
        is_ramet: bool,
        merges: Sequence[str] = (),
        specials: Sequence[str] = ("<|im_start|>", "<|im_end|>"),
        model_info: dict[str, Any] | None = None,
    ) -> None:
        self.is_ramet = is_ramet
        self.model_info: dict[str, Any] = {"model_path": "fake", **(model_info or {})}
        if is_ramet:
            self.model_info["ramet"] = {"version": "0"}
        self._reply = reply
        self._specials = tuple(specials)
        self._merges = tuple(sorted(merges, key=len, reverse=True))
        self._texts: list[str] = []
        self._seen: list[list[int]] = []

    def __call__(self, exchange: Exchange) -> None:
        body = exchange.body
        match exchange.path:
            case "/get_model_info":
                exchange.json(self.model_info)
            case "/server_info":
                exchange.json({"model_path": "fake", "num_requests": 1})
            case "/flush_cache":
                self._seen.clear()
                exchange.text("Cache flushed.")
            case "/tokenize":
                exchange.json({"tokens": self._tokenize(body)})
            case "/detokenize":
                texts = ["".join(self.text_of(token_id) for token_id in ids) for ids in body["tokens"]]
                exchange.json({"text": texts})
            case "/generate":
                self._generate(exchange)
            case _:
                exchange.json({"detail": "Not Found"}, 404)

    def ids_of(self, text: str, *, parses_special: bool = True) -> list[int]:
        known = (*(self._specials if parses_special else ()), *self._merges)
        pattern = "|".join([*map(re.escape, known), "."])
        return [self._id_of(piece) for piece in re.findall(pattern, text, re.DOTALL)]

    def text_of(self, token_id: int) -> str:
        return self._texts[token_id - FIRST_ID]

    def _id_of(self, piece: str) -> int:
        if piece not in self._texts:
            self._texts.append(piece)
        return FIRST_ID + self._texts.index(piece)

    def _tokenize(self, body: dict[str, Any]) -> list[int]:
        if "segments" in body:
            assert self.is_ramet
            pairs = [(segment["text"], segment["is_template"]) for segment in body["segments"]]
            return [token_id for text, special in pairs for token_id in self.ids_of(text, parses_special=special)]
        return self.ids_of(body["prompt"])

    def _generate(self, exchange: Exchange) -> None:
        body = exchange.body
        given = body["text"] if "text" in body else body["input_ids"]
        is_single = isinstance(given, str) or (bool(given) and isinstance(given[0], int))
        prompts = [
            self.ids_of(each) if isinstance(each, str) else list(each) for each in ([given] if is_single else given)
        ]
        n = body["sampling_params"].get("n", 1)
        answers = [self._answer(ids, body) for ids in prompts for _ in range(n)]
        if not body.get("stream"):
            exchange.json(answers[0] if is_single and n == 1 else answers)
            return
        (answer,) = answers
        exchange.begin_events()
        for end in range(1, len(answer["text"])):
            exchange.event({**answer, "text": answer["text"][:end]})
        exchange.event(answer)
        exchange.event("[DONE]")
        exchange.end_events()

    def _answer(self, prompt: list[int], body: dict[str, Any]) -> dict[str, Any]:
        params = body["sampling_params"]
        num_cached = max((_common_len(prompt[:-1], seen) for seen in self._seen), default=0)
        reply = self._reply("".join(map(self.text_of, prompt))) if params["max_new_tokens"] != 0 else ""
        token_ids = self.ids_of(reply)
        reason: dict[str, Any] = {"type": "stop", "matched": 2}
        if params["max_new_tokens"] is not None and len(token_ids) > params["max_new_tokens"]:
            token_ids = token_ids[: params["max_new_tokens"]]
            reason = {"type": "length", "length": len(token_ids)}
        text = "".join(map(self.text_of, token_ids))
        hits = sorted((text.index(stop) + len(stop), stop) for stop in params.get("stop", ()) if stop in text)
        if hits:
            end, stop = hits[0]
            while len("".join(map(self.text_of, token_ids[:-1]))) >= end:
                token_ids.pop()
            text, reason = text[: end - len(stop)], {"type": "stop", "matched": stop}
        self._seen.append([*prompt, *token_ids])
        meta: dict[str, Any] = {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(token_ids),
            "cached_tokens": num_cached,
            "finish_reason": reason,
        }
        if body.get("return_logprob"):
            start = body.get("logprob_start_len", -1)
            meta["input_token_logprobs"] = (
                list(self._items(prompt, start, has_text=body.get("return_text_in_logprobs", False)))
                if start >= 0
                else []
            )
            meta["output_token_logprobs"] = [(-0.5, token_id, self.text_of(token_id)) for token_id in token_ids]
            meta["output_top_logprobs"] = [
                [(-0.5, token_id, self.text_of(token_id))] * body.get("top_logprobs_num", 0) for token_id in token_ids
            ]
        return {"text": text, "output_ids": token_ids, "meta_info": meta}

    def _items(self, token_ids: Sequence[int], start: int, *, has_text: bool) -> Iterator[Item]:
        """SGLang has no logprob of the first token that is asked for. Longer tokens are less likely."""
        for idx in range(start, len(token_ids)):
            text = self.text_of(token_ids[idx])
            yield (None if idx == start else -float(len(text)), token_ids[idx], text if has_text else None)


def _common_len(left: Sequence[int], right: Sequence[int]) -> int:
    length = min(len(left), len(right))
    return next((idx for idx in range(length) if left[idx] != right[idx]), length)
