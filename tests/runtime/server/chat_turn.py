"""A chat turn as the engine tells it, for tests of what each API makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ramet import RequestOutput
from ramet.runtime.outputs import RequestMetrics
from ramet.runtime.server.chat.ask import FinishLiteral, SampleEnd

OUTPUT = RequestOutput(
    request_id="r",
    prompt=None,
    prompt_token_ids=list(range(20)),
    prompt_logprobs=None,
    outputs=[],
    finished=True,
    metrics=RequestMetrics(arrival_time=0.0),
    num_cached_tokens=15,
)
"""Of a prompt of 20 tokens, of which 15 were cached."""


def end(finish: FinishLiteral = "stop", stop_reason: int | str | None = None) -> SampleEnd:
    """After 8 tokens."""
    return SampleEnd(0, finish, stop_reason, None, 8)


def parsed(pieces: Iterable[bytes]) -> list[dict[str, Any]]:
    """The data of events, each of which is named by its type."""
    values = []
    for piece in pieces:
        head, data = piece.decode().removesuffix("\n\n").split("\n")
        values.append(json.loads(data.removeprefix("data: ")))
        assert head == f"event: {values[-1]['type']}"
    return values
