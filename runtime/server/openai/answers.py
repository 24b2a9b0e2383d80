"""What the answers of OpenAI's endpoints share."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from ...outputs import RequestOutput
from ...tokenizer import Tokenizer
from ..errors import ApiError, openai_body
from ..json_text import to_json
from ..streaming import DONE, event


@dataclass(frozen=True, slots=True)
class Heading:
    """What every body of an answer begins with."""

    answer_id: str
    kind: str
    model: str
    created: int = field(default_factory=lambda: int(time.time()))

    def body(self, **rest: Any) -> dict[str, Any]:
        return {"id": self.answer_id, "object": self.kind, "created": self.created, "model": self.model, **rest}


def usage_body(outputs: Iterable[RequestOutput], num_completion_tokens: int | None = None) -> dict[str, Any]:
    """
    Args:
        num_completion_tokens: None counts what was generated.
    """
    outputs = list(outputs)
    num_prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    if num_completion_tokens is None:
        num_completion_tokens = sum(len(each.token_ids) for output in outputs for each in output.outputs)
    cached = sum(output.num_cached_tokens for output in outputs)
    return {**counts(num_prompt_tokens, num_completion_tokens), "prompt_tokens_details": {"cached_tokens": cached}}


def counts(num_prompt_tokens: int, num_completion_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_completion_tokens,
        "total_tokens": num_prompt_tokens + num_completion_tokens,
    }


def extension(reason: str, complete: bool | None) -> dict[str, Any]:
    """What OpenAI has no word for: the engine's own reason, and whether a constrained text is complete."""
    return {"finish_reason": reason, "complete": complete}


def json_response(body: Mapping[str, Any]) -> Response:
    return Response(to_json(body), media_type="application/json")


def end_of_error(error: ApiError) -> Iterator[bytes]:
    """How a stream ends that fails in its middle."""
    yield event(openai_body(error))
    yield DONE


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """The text of one token; of one that is no whole characters its bytes, so that different tokens look different."""
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
