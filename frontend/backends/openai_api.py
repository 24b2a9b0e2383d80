"""OpenAI: programs on OpenAI's API, and on servers that speak it, through the official SDK."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import httpx2

from ...sampling_params import SamplingParams
from ..backend import GenerateCall, Message, ScoreCall, ScoreResult, Scoring, TextSegment
from ..errors import InvalidProgramError
from ..generation import GenerateResult, Generation
from .api_errors import (
    broken_stream_error,
    checked_retries,
    checked_timeout,
    connection_error,
    missing_package,
    status_error,
    timeout_error,
    withheld_error,
)
from .api_params import ApiParams
from .api_sample import SampleDraft, choices_schema
from .chat_log import chat_segments, read_chat, role_begin, role_end
from .errors import BackendCallError, UnsupportedByBackendError
from .openai_stream import OpenAIStream, completion_tokens
from .scored_rows import ScoredRow, num_unaffected, score_result
from .text_backend import TextBackend
from .text_ids import check_unicode

__all__ = ["OpenAI"]

_SHARED = frozenset(
    {"n", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "max_tokens", "stop", "logit_bias"}
    | {"logprobs"}
)
CHAT_PARAMS = ApiParams(
    "OpenAI chat",
    _SHARED | {"json_schema", "choices", "on_incomplete"},
    limits={"stop": 4, "logprobs": 20},
)
COMPLETION_PARAMS = ApiParams(
    "OpenAI completion",
    _SHARED,
    limits={"stop": 4, "logprobs": 5},
    advice={
        "json_schema": "use a chat model",
        "choices": "use a chat model, or leave out the temperature: then it is a select",
    },
)

_COMPLETION_MODELS = ("gpt-3.5-turbo-instruct", "davinci-002", "babbage-002")

MaxTokensField = Literal["max_tokens", "max_completion_tokens"]


class OpenAI(TextBackend):
    """Programs on a model behind OpenAI's API. What it cannot do is refused where the value is read.

    A chat model writes one whole assistant message per gen. A completion model goes on with plain text, and selects
    where the server gives the logprobs of a prompt (`echo`), as vLLM and SGLang do and OpenAI itself no longer does.
    A chat model cannot select: it gives no probabilities of texts that it did not write. It can be made to write one of
    several texts: gen(name, choices=[...], temperature=1.0).

    Args:
        model_name: as the server knows it.
        is_chat_model: None looks at the name.
        api_key: None takes OPENAI_API_KEY.
        base_url: of another server, with its /v1. None takes OPENAI_BASE_URL, else OpenAI's own.
        timeout: seconds without a byte after which a call fails.
        max_retries: of a call that was refused for load or broke before its answer began; the SDK waits in between, as
            long as the server's Retry-After says.
        max_concurrency: calls at a time; others wait.
        max_tokens_field: what max_tokens is called there; None takes "max_completion_tokens" for OpenAI itself and
            "max_tokens" for others.
        continues_messages: the server goes on with an assistant message that is begun (`continue_final_message`, as
            vLLM and SGLang do). Without, text before a gen in the same message is refused.
        extra_body: more fields for every request, sent as they are.
        default_headers: more headers for every request.

    Raises:
        InvalidProgramError: an argument is out of range, or there is no API key.
    """

    name = "OpenAI"

    def __init__(
        self,
        model_name: str,
        is_chat_model: bool | None = None,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout: float = 600.0,
        max_retries: int = 2,
        max_concurrency: int = 64,
        max_tokens_field: MaxTokensField | None = None,
        continues_messages: bool = False,
        extra_body: Mapping[str, object] | None = None,
        default_headers: Mapping[str, str] | None = None,
    ) -> None:
        try:
            import openai
        except ModuleNotFoundError as error:
            raise missing_package(self.name, "openai", error) from error
        self._timeout = checked_timeout(timeout)
        try:
            self._client = openai.AsyncOpenAI(
                api_key=api_key,
                base_url=base_url,
                timeout=httpx2.Timeout(self._timeout, connect=min(self._timeout, 10.0)),
                max_retries=checked_retries(max_retries),
                default_headers=default_headers,
            )
        except openai.OpenAIError as error:
            raise InvalidProgramError(f"OpenAI({model_name!r}) cannot be made: {error}") from error
        self.model_name = model_name
        self.is_chat_model = not model_name.startswith(_COMPLETION_MODELS) if is_chat_model is None else is_chat_model
        self._params = CHAT_PARAMS if self.is_chat_model else COMPLETION_PARAMS
        self._continues_messages = continues_messages
        self._extra_body = dict(extra_body or {})
        self._where = f"OpenAI({model_name!r}) at {self._client.base_url.host}"
        is_openai = self._client.base_url.host.endswith("openai.com")
        own_field: MaxTokensField = "max_completion_tokens" if is_openai and self.is_chat_model else "max_tokens"
        self._max_tokens_field = max_tokens_field or own_field
        super().__init__(max_concurrency, self._client.close)

    # The Backend protocol

    def role_prefix(self, messages: Sequence[Message], role: str) -> Sequence[TextSegment]:
        self._check_chats()
        return role_begin(role, self.name)

    def role_suffix(self, messages: Sequence[Message], role: str) -> Sequence[TextSegment]:
        self._check_chats()
        return role_end()

    def chat_segments(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> Sequence[TextSegment]:
        self._check_chats()
        return chat_segments(messages, tools, add_generation_prompt=add_generation_prompt, backend=self.name)

    def generate(self, call: GenerateCall) -> Generation:
        """Raises UnsupportedByBackendError for what this API cannot do."""
        self._params.check(call.sampling_params)
        segments = self._ids.segments(call.prompt_token_ids)
        prompt = self._chat_prompt(segments) if self.is_chat_model else {"prompt": _plain_text(segments)}
        body = {**prompt, **self._sampling_body(call.sampling_params)}
        return self._calls.start_generation(lambda generation: self._generate(call, body, generation))

    def score(self, call: ScoreCall) -> Scoring:
        """Raises UnsupportedByBackendError for a chat model."""
        if self.is_chat_model:
            raise UnsupportedByBackendError(
                "the OpenAI backend cannot select with a chat model, whose API gives no probabilities of given texts: "
                "use gen(name, choices=[...], temperature=1.0), which makes the model write one of them, or a "
                "completion model"
            )
        prompt = self.decode(call.prompt_token_ids)
        texts = [prompt + self.decode(continuation) for continuation in call.continuations]
        check_unicode("".join([prompt, *texts]))
        return self._calls.start(lambda: self._score(call, prompt, texts))

    def info(self) -> Mapping[str, object]:
        return {
            "backend": "openai",
            "model": self.model_name,
            "base_url": str(self._client.base_url),
            "is_chat_model": self.is_chat_model,
        }

    # Requests

    def _check_chats(self) -> None:
        if not self.is_chat_model:
            raise UnsupportedByBackendError(
                f"{self.model_name!r} is used as a completion model, which has no roles: write plain text, or give "
                "is_chat_model=True"
            )

    def _chat_prompt(self, segments: Sequence[TextSegment]) -> dict[str, object]:
        chat = read_chat(segments, self.name)
        messages = [{"role": role, "content": text} for role, text in chat.messages]
        if not chat.open_text:
            return {"messages": messages}
        if not self._continues_messages:
            raise UnsupportedByBackendError(
                f"the OpenAI backend cannot go on with a message that begins with {chat.open_text[:60]!r}: a chat "
                "model there writes whole messages; put that text into the user's message, or give "
                "continues_messages=True if the server can do it"
            )
        messages.append({"role": "assistant", "content": chat.open_text})
        return {
            "messages": messages,
            "extra_body": {"continue_final_message": True, "add_generation_prompt": False},
        }

    def _sampling_body(self, params: SamplingParams) -> dict[str, object]:
        body: dict[str, object] = {"temperature": params.temperature}
        for name, neutral in (("top_p", 1.0), ("presence_penalty", 0.0), ("frequency_penalty", 0.0), ("n", 1)):
            if getattr(params, name) != neutral:
                body[name] = getattr(params, name)
        if params.seed is not None:
            body["seed"] = params.seed
        if params.max_tokens is not None:
            body[self._max_tokens_field] = params.max_tokens
        if params.stop_strings:
            body["stop"] = list(params.stop_strings)
        if params.logit_bias:
            body["logit_bias"] = {str(token_id): bias for token_id, bias in params.logit_bias.items()}
        if params.logprobs is not None and self.is_chat_model:
            body |= {"logprobs": True, "top_logprobs": params.logprobs}
        elif params.logprobs is not None:
            body["logprobs"] = params.logprobs
        schema = None if params.json_schema is None else json.loads(str(params.json_schema))
        if params.choices is not None:
            assert isinstance(params.choices, tuple)
            schema = choices_schema(params.choices)
        if schema is not None:
            named = {"name": "answer", "schema": schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        return body

    def _request(self, body: Mapping[str, Any]) -> dict[str, Any]:
        extra = {**self._extra_body, **body.get("extra_body", {})}
        return {"model": self.model_name, **body, "extra_body": extra}

    async def _generate(self, call: GenerateCall, body: Mapping[str, Any], generation: Generation) -> GenerateResult:
        params = call.sampling_params
        shows_text = params.choices is None
        stream = OpenAIStream(
            [SampleDraft() for _ in range(params.n)], generation.push if shows_text else lambda text: None
        )
        request = self._request({**body, "stream": True, "stream_options": {"include_usage": True}})
        try:
            if self.is_chat_model:
                async with await self._client.chat.completions.create(**request) as chunks:
                    async for chunk in chunks:
                        stream.add_chat_chunk(chunk)
            else:
                async with await self._client.completions.create(**request) as completions:
                    async for completion in completions:
                        stream.add_completion(completion)
        except Exception as error:
            raise self._described(error) from error
        stream.end()
        return self._result(call, stream)

    def _result(self, call: GenerateCall, stream: OpenAIStream) -> GenerateResult:
        for draft in stream.drafts:
            if draft.refusal:
                raise withheld_error(self._where, f"the model refuses: {draft.refusal}", draft.text)
            if draft.finish_reason is None:
                raise broken_stream_error(self._where, draft.text)
            if draft.finish_reason not in ("stop", "length"):
                raise withheld_error(self._where, f"finish_reason {draft.finish_reason!r}", draft.text)
        samples = tuple(
            draft.to_sample(
                self.name, self._ids, call.sampling_params, is_cut_by_length=draft.finish_reason == "length"
            )
            for draft in stream.drafts
        )
        usage = stream.usage
        return GenerateResult(
            samples,
            len(call.prompt_token_ids) if usage is None else usage.prompt_tokens,
            stream.num_cached_tokens,
            stream.first_token_s,
            num_generated_tokens=None if usage is None else usage.completion_tokens,
        )

    async def _score(self, call: ScoreCall, prompt: str, texts: Sequence[str]) -> ScoreResult:
        asked = [*([prompt] if prompt else []), *texts]
        body = {"prompt": asked, "max_tokens": 1, "temperature": 0.0, "echo": True, "logprobs": 1}
        try:
            answer = await self._client.completions.create(**self._request(body))
            choices = {choice.index: choice for choice in answer.choices}
            rows = [self._row(choices[idx].logprobs, text) for idx, text in enumerate(asked)]
        except Exception as error:
            raise self._described(error) from error
        alone = rows.pop(0) if prompt else None
        usage = OpenAIStream([], lambda text: None, usage=answer.usage)
        return score_result(
            rows,
            num_unaffected(alone, rows),
            num_prompt_tokens=0 if alone is None else len(alone.token_ids),
            num_cached_tokens=min(usage.num_cached_tokens, 0 if alone is None else len(alone.token_ids)),
        )

    def _row(self, logprobs: Any, text: str) -> ScoredRow:
        """The echoed tokens of a text, without the one that was generated after it."""
        if logprobs is None or not logprobs.tokens:
            raise BackendCallError(
                f"{self._where} gives no logprobs of a prompt (echo), so it cannot select: use a server that does"
            )
        tokens = completion_tokens(logprobs)
        if logprobs.text_offset:
            num_kept = sum(offset < len(text) for offset in logprobs.text_offset)
        else:
            num_kept = len(tokens) - 1
        kept = tokens[:num_kept]
        values = logprobs.token_logprobs[:num_kept]
        return ScoredRow(tuple(self._ids.intern(token.piece) for token in kept), tuple(values))

    def _described(self, error: Exception) -> Exception:
        """What the SDK raised, as an error of the language."""
        import openai

        if isinstance(error, BackendCallError):
            return error
        if isinstance(error, openai.APIStatusError):
            return status_error(self._where, error.status_code, error.message, error.response.headers)
        if isinstance(error, openai.APITimeoutError | httpx2.TimeoutException | asyncio.TimeoutError):
            return timeout_error(self._where, self._timeout)
        if isinstance(error, openai.APIConnectionError | httpx2.RequestError):
            return connection_error(self._where, error)
        if isinstance(error, openai.APIError):
            return BackendCallError(f"{self._where} failed while it answered: {error.message}")
        return BackendCallError(f"{self._where} sent an answer that cannot be read: {type(error).__name__}: {error}")


def _plain_text(segments: Sequence[TextSegment]) -> str:
    text = "".join(segment.text for segment in segments)
    check_unicode(text)
    return text
