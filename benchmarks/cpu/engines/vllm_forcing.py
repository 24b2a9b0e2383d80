"""Makes a vLLM request generate given tokens, for their log-probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from .vllm_engine import FORCED


class ForcedTokens(AdapterLogitsProcessor):  # type: ignore[misc]
    """Requests with `extra_args[FORCED]` take those tokens, one after the other."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Callable[[list[int], torch.Tensor], torch.Tensor] | None:
        token_ids = (params.extra_args or {}).get(FORCED)
        if token_ids is None:
            return None

        def force(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            forced = torch.full_like(logits, float("-inf"))
            forced[token_ids[len(output_ids)]] = 0.0
            return forced

        return force
