"""The body of `/v1/completions`, and the requests that it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from ....sampling_params import SamplingParams
from ...errors import InvalidRequestError
from ...llm import LLM
from ...prompts import tokenize_prompt
from ...request import Request
from ...tokenizer import Tokenizer
from ..chat.constraint import closing
from ..config import ServerConfig
from ..errors import ApiError
from ..preparation import Preparation
from ..tenant import Tenant
from .fields import MAX_LISTED_LOGPROBS, SharedFields

DEFAULT_MAX_TOKENS = 16

_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXT = {"type": "string", "minLength": 1}
_FORMS = [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}, _TOKENS]
Prompts = Annotated[Any, WithJsonSchema({"anyOf": [*_FORMS, {"type": "array", "items": _TOKENS, "minItems": 1}]})]


@dataclass(frozen=True, slots=True)
class CompletionAsk:
    """What a client wants to have completed.

    Attributes:
        prompts: texts or token ids.
        sampling: of every prompt.
        num_logprobs: None without logprobs.
        is_prompt_only: max_tokens was 0. `sampling` then has one token, which does not count, and one sample.
        num_choices: of every prompt.
    """

    prompts: list[str | list[int]]
    sampling: SamplingParams
    num_logprobs: int | None
    has_echo: bool
    is_prompt_only: bool
    num_choices: int


class CompletionRequest(SharedFields):
    """As OpenAI's, with the extensions of vLLM and SGLang."""

    prompt: Prompts
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_LISTED_LOGPROBS)
    add_special_tokens: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    def ask(self, config: ServerConfig) -> CompletionAsk:
        """
        Raises:
            ApiError: a value is out of range, contradicts others, or asks for what there is not.
        """
        prompts = _prompts(self.prompt)
        num_samples = max(self.n or 1, self.best_of or 1)
        if len(prompts) > config.max_prompts:
            raise ApiError(400, f"prompt has {len(prompts)} texts, at most {config.max_prompts} go", param="prompt")
        if num_samples > config.max_n:
            param = "n" if (self.n or 1) > config.max_n else "best_of"
            raise ApiError(400, f"{param}={num_samples} is more than the {config.max_n} of this server", param=param)
        self._refuse()
        most = DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        own: dict[str, Any] = {"max_tokens": most, "best_of": self.best_of, "logprobs": self.logprobs}
        if self.echo and self.logprobs is not None:
            own["prompt_logprobs"] = self.logprobs
        is_prompt_only = most == 0
        if is_prompt_only:
            own["max_tokens"] = 1
        sampling = self.sampling(**own)
        if is_prompt_only:
            sampling = sampling.replace(n=1, best_of=None)
        return CompletionAsk(prompts, sampling, self.logprobs, bool(self.echo), is_prompt_only, self.n or 1)

    def names(self) -> dict[str, str]:
        return super().names() | {r"^prompt_token_ids\b": "prompt"}

    def _refuse(self) -> None:
        if self.suffix:
            raise ApiError(400, "suffix is not supported: this model only goes on with a text", param="suffix")
        is_ranked = self.best_of is not None and self.best_of > (self.n or 1)
        if self.stream and is_ranked:
            raise ApiError(
                400, f"best_of={self.best_of} cannot be streamed: which is best shows at the end", param="best_of"
            )


def _prompts(given: object) -> list[str | list[int]]:
    """One text or token list or many, as a list."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and given:
        if all(isinstance(each, int) and not isinstance(each, bool) for each in given):
            return [given]
        if all(isinstance(each, str) for each in given):
            return list(given)
        if all(isinstance(each, list) and each for each in given):
            return list(given)
    raise ApiError(
        400,
        f"prompt={given!r:.80} must be a text, a list of texts, a list of token ids, or a list of those; none empty",
        param="prompt",
    )


def completion_requests(
    ask: CompletionAsk,
    body: CompletionRequest,
    llm: LLM,
    tenant: Tenant,
    preparation: Preparation,
) -> list[Request]:
    """Tokenises: for a worker.

    Raises:
        ApiError: a prompt is malformed.
        GivenUpError: as `Preparation.go_on`.
    """
    requests = []
    namespace = tenant.namespace(body.cache_salt)
    for idx, prompt in enumerate(ask.prompts):
        where = "prompt" if len(ask.prompts) == 1 else f"prompt[{idx}]"
        preparation.go_on()
        try:
            text, token_ids = _tokenised(prompt, body, llm.tokenizer)
        except InvalidRequestError as error:
            raise ApiError(400, f"{where}: {error}", param=where) from error
        request = Request(
            request_id=llm.new_request_id(),
            prompt=text,
            prompt_token_ids=token_ids,
            sampling_params=ask.sampling,
            priority=body.priority or 0,
            cache_namespace=namespace,
            is_prompt_only=ask.is_prompt_only,
        )
        requests.append(closing(request))
    return requests


def _tokenised(
    prompt: str | list[int], body: CompletionRequest, tokenizer: Tokenizer
) -> tuple[str | None, tuple[int, ...]]:
    if isinstance(prompt, str) and body.add_special_tokens is False and prompt:
        return prompt, tuple(tokenizer.encode(prompt, parse_special=True))
    whole: str | Mapping[str, Any] = prompt if isinstance(prompt, str) else {"prompt_token_ids": prompt}
    return tokenize_prompt(whole, tokenizer)
