"""Job: what one engine thinks of every token of the passages."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any, Protocol


class ScoringSession(Protocol):
    """A session that can tell of every token of a text but the first."""

    def token_scores(self, token_ids: list[int]) -> tuple[list[float], list[int]]:
        """The negative log-likelihood of token_ids[1:], and the likeliest token in each place."""
        ...

    def close(self) -> None: ...


def run(options: dict[str, Any]) -> dict[str, Any]:
    """Options: `module`, `windows` (path), and those of the engine's `open_session`. By kind, the scores in order."""
    module = importlib.import_module(f".engines.{options['module']}", __package__)
    session: ScoringSession = module.open_session(options)
    windows: dict[str, list[list[int]]] = json.loads(Path(options["windows"]).read_text(encoding="utf-8"))
    scores: dict[str, Any] = {}
    for kind, token_lists in windows.items():
        nll: list[float] = []
        top: list[int] = []
        for token_ids in token_lists:
            window_nll, window_top = session.token_scores(token_ids)
            nll += window_nll
            top += window_top
        scores[kind] = {"nll": nll, "top": top}
    session.close()
    return scores
