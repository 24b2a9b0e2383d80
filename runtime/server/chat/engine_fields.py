"""EngineFields: what a request may say to the engine beyond the API whose endpoint it uses; the names are vLLM's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict

from ....grammar_spec import OnIncomplete
from ....sampling_params import SamplingParams
from ..body import Body
from ..body_types import ListOf
from .wording import in_words_of

_SAMPLING_FIELDS = (
    *("top_k", "min_p", "seed", "repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens"),
    *("stop_token_ids", "ignore_eos", "on_incomplete", "regex", "ebnf", "choices"),
)


class EngineFields(Body):
    """Base of the bodies of Anthropic's messages and OpenAI's responses. Values are checked by SamplingParams."""

    model_config = ConfigDict(extra="ignore", strict=True)

    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: ListOf[int] | None = None
    ignore_eos: bool | None = None
    on_incomplete: OnIncomplete | None = None
    regex: str | None = None
    ebnf: str | None = None
    choices: ListOf[str] | None = None
    cache_salt: str | None = None
    priority: int | None = None
    rid: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def sampling_params(self, names: Mapping[str, str], *, max_tokens: int | None, **fields: Any) -> SamplingParams:
        """Of the fields that were given, and of `fields`, of which None stands for the default as well.

        Args:
            names: as for `in_words_of`.

        Raises:
            ApiError: 400, a value is out of its range.
        """
        given = {name: getattr(self, name) for name in _SAMPLING_FIELDS} | fields
        chosen = {name: value for name, value in given.items() if value is not None}
        with in_words_of(names, None):
            return SamplingParams(max_tokens=max_tokens, **chosen)
