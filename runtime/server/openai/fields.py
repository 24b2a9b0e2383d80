"""Fields that `/v1/completions` and `/v1/chat/completions` share, OpenAI's and the extensions of vLLM and SGLang.

A field that is not known is accepted silently; a known one with a value that it may not have is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from ....sampling_params import SamplingParams
from ..body import Body
from ..body_types import ListOf
from ..chat.wording import in_words_of
from ..errors import ApiError
from .constraints import constraint_names, constraint_of

MAX_LISTED_LOGPROBS = 100
"""Of every token; each is a number and a text in the answer."""

_SEEDS = 1 << 63
_NUMBER = re.compile(r"-?[0-9]{1,18}")

Texts = Annotated[
    Any,
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]}),
]
Biases = Annotated[
    Any,
    WithJsonSchema({"anyOf": [{"type": "object", "additionalProperties": {"type": "number"}}, {"type": "null"}]}),
]
Schema = Annotated[
    Any, WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "string"}, {"type": "boolean"}, {"type": "null"}]})
]
Mode = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "null"}]})]
"""Forms that are judged further in, where a better message can be given."""

_PASSED_ON = (
    *("n", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("min_tokens", "stop", "stop_token_ids", "ignore_eos", "skip_special_tokens", "include_stop_str_in_output"),
)


class StreamOptions(BaseModel):
    """What a stream has beside the answer."""

    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SharedFields(Body):
    """How tokens are chosen, and how the request is served."""

    CALLED_HERE: ClassVar[Mapping[str, str]] = {"json_schema": "response_format"}
    model_config = ConfigDict(extra="ignore", strict=True)

    model: str | None = None
    max_tokens: int | None = Field(None, ge=0)
    n: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = None
    stop: Texts = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0)
    logit_bias: Biases = None
    min_tokens: int | None = Field(None, ge=0)
    stop_token_ids: ListOf[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    use_beam_search: bool | None = None
    best_of: int | None = Field(None, ge=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    priority: int | None = None
    rid: str | None = None
    request_id: str | None = None
    return_token_ids: bool | None = None
    response_format: Mode = None
    structured_outputs: Mode = None
    guided_json: Schema = None
    guided_regex: str | None = None
    guided_choice: ListOf[str] | None = None
    guided_grammar: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    json_schema: Schema = None

    def sampling(self, **own: Any) -> SamplingParams:
        """
        Args:
            own: what the endpoint has names of its own for.

        Raises:
            ApiError: a value is out of range, or values contradict each other; under the client's name.
        """
        if self.use_beam_search:
            raise ApiError(400, "use_beam_search=true is not supported: take best_of", param="use_beam_search")
        given = {name: getattr(self, name) for name in _PASSED_ON if getattr(self, name) is not None}
        if self.seed is not None:
            given["seed"] = self.seed % _SEEDS  # some clients send negative ones
        if self.logit_bias is not None:
            given["logit_bias"] = _numbered(self.logit_bias)
        constraint = constraint_of(self)
        with in_words_of(self.names(), None):
            return SamplingParams(**given, **constraint, **own)

    def names(self) -> dict[str, str]:
        """For `in_words_of`: what the client calls fields that have other names further in."""
        return constraint_names(self)

    @property
    def own_id(self) -> str | None:
        """The client's name for the request."""
        return self.rid or self.request_id or None

    @property
    def has_usage(self) -> bool:
        """A stream ends with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def has_running_usage(self) -> bool:
        """Every chunk of a stream has the usage so far."""
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)


def _numbered(biases: object) -> dict[int, Any]:
    """JSON has no numbers as keys."""
    if not isinstance(biases, dict) or not all(map(_NUMBER.fullmatch, biases)):
        raise ApiError(400, f"logit_bias={biases!r:.80} must map token ids to numbers", param="logit_bias")
    numbered = {int(key): bias for key, bias in biases.items()}
    if len(numbered) < len(biases):
        raise ApiError(400, "logit_bias has a token twice, in two spellings of its id", param="logit_bias")
    return numbered
