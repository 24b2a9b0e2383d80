"""Anthropic: programs on Anthropic's Messages API, through the official SDK."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx2

from ...sampling_params import SamplingParams
from ..backend import GenerateCall, Message, ScoreCall, Scoring, TextSegment
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
from .chat_log import ChatLog, chat_segments, read_chat, role_begin, role_end
from .errors import BackendCallError, UnsupportedByBackendError
from .text_backend import TextBackend

if TYPE_CHECKING:
    from anthropic.types import RawMessageStreamEvent

__all__ = ["Anthropic"]

_SAMPLING = ("temperature", "top_p", "top_k")
_OLD_VERSION = "2023-06-01"
_ADVICE = f"leave it out, or give api_version={_OLD_VERSION!r} for a model that still takes it"

PARAMS = ApiParams(
    "Anthropic",
    frozenset({"max_tokens", "stop", "json_schema", "choices", "on_incomplete"}),
    advice=dict.fromkeys(_SAMPLING, _ADVICE),
)
PARAMS_OF_OLD_VERSION = ApiParams("Anthropic", PARAMS.supported | set(_SAMPLING), limits={"temperature": 1.0})

_STOPS = ("end_turn", "stop_sequence")
_LENGTHS = ("max_tokens", "model_context_window_exceeded")


class Anthropic(TextBackend):
    """Programs on a Claude model. What its API cannot do is refused where the value is read.

    One gen per message, or several: text that stands in the assistant's message before a gen is sent as what the answer
    begins with. (The newest models refuse that; the API then says so.) It must not end in white space. There are no
    probabilities, so no select: gen(name, choices=[...], temperature=1.0) makes the model write one of the choices.

    Anthropic's API no longer lets its users say how to sample: temperature, top_p and top_k are refused, but with
    api_version="2023-06-01".

    Args:
        model_name: as the API knows it.
        api_key: None takes ANTHROPIC_API_KEY.
        base_url: of another server. None takes ANTHROPIC_BASE_URL, else Anthropic's own.
        timeout: seconds without a byte after which a call fails.
        max_retries: of a call that was refused for load or broke before its answer began; the SDK waits in between, as
            long as the server's Retry-After says.
        max_concurrency: calls at a time; others wait.
        api_version: what is sent as anthropic-version; None takes the SDK's.
        caches_prompts: have the API keep each prompt as a prefix for the next one (`cache_control`), which costs and
            saves as Anthropic's price list says.
        extra_body: more fields for every request, sent as they are.
        default_headers: more headers for every request.

    Raises:
        InvalidProgramError: an argument is out of range, or there is no API key.
    """

    name = "Anthropic"

    def __init__(
        self,
        model_name: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout: float = 600.0,
        max_retries: int = 2,
        max_concurrency: int = 64,
        api_version: str | None = None,
        caches_prompts: bool = False,
        extra_body: Mapping[str, object] | None = None,
        default_headers: Mapping[str, str] | None = None,
    ) -> None:
        try:
            import anthropic
        except ModuleNotFoundError as error:
            raise missing_package(self.name, "anthropic", error) from error
        self._timeout = checked_timeout(timeout)
        version = {} if api_version is None else {"anthropic-version": api_version}
        self._client = anthropic.AsyncAnthropic(
            api_key=api_key,
            base_url=base_url,
            timeout=httpx2.Timeout(self._timeout, connect=min(self._timeout, 10.0)),
            max_retries=checked_retries(max_retries),
            default_headers={**version, **(default_headers or {})},
        )
        if self._client.api_key is None and self._client.auth_token is None:
            raise InvalidProgramError(
                f"Anthropic({model_name!r}) has no API key: give api_key, or set ANTHROPIC_API_KEY"
            )
        self.model_name = model_name
        self._params = PARAMS_OF_OLD_VERSION if api_version == _OLD_VERSION else PARAMS
        self._caches_prompts = caches_prompts
        self._extra_body = dict(extra_body or {})
        self._where = f"Anthropic({model_name!r}) at {self._client.base_url.host}"
        super().__init__(max_concurrency, self._client.close)

    # The Backend protocol

    def role_prefix(self, messages: Sequence[Message], role: str) -> Sequence[TextSegment]:
        return role_begin(role, self.name)

    def role_suffix(self, messages: Sequence[Message], role: str) -> Sequence[TextSegment]:
        return role_end()

    def chat_segments(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> Sequence[TextSegment]:
        return chat_segments(messages, tools, add_generation_prompt=add_generation_prompt, backend=self.name)

    def generate(self, call: GenerateCall) -> Generation:
        """Raises UnsupportedByBackendError for what this API cannot do."""
        self._params.check(call.sampling_params)
        chat = read_chat(self._ids.segments(call.prompt_token_ids), self.name)
        extra = {**_old_sampling(call.sampling_params), **self._extra_body}
        body = {**_prompt_body(chat), **_sampling_body(call.sampling_params), "model": self.model_name}
        body |= {"extra_body": extra} if extra else {}
        if self._caches_prompts:
            body["cache_control"] = {"type": "ephemeral"}
        return self._calls.start_generation(lambda generation: self._generate(call, body, generation))

    def score(self, call: ScoreCall) -> Scoring:
        """Raises UnsupportedByBackendError."""
        raise UnsupportedByBackendError(
            "the Anthropic backend cannot select: its API gives no probabilities; use "
            "gen(name, choices=[...], temperature=1.0), which makes the model write one of the choices"
        )

    def info(self) -> Mapping[str, object]:
        return {"backend": "anthropic", "model": self.model_name, "base_url": str(self._client.base_url)}

    # Requests

    async def _generate(self, call: GenerateCall, body: Mapping[str, Any], generation: Generation) -> GenerateResult:
        stream = _MessageStream()
        shows_text = call.sampling_params.choices is None
        try:
            async with await self._client.messages.create(**body, stream=True) as events:
                async for event in events:
                    text = stream.add(event)
                    if shows_text:
                        generation.push(text)
        except Exception as error:
            raise self._described(error) from error
        draft = stream.draft
        if draft.finish_reason is None or not stream.is_complete:
            raise broken_stream_error(self._where, draft.text)
        if draft.finish_reason not in (*_STOPS, *_LENGTHS):
            raise withheld_error(self._where, f"stop_reason {draft.finish_reason!r}", draft.text)
        sample = draft.to_sample(
            self.name, self._ids, call.sampling_params, is_cut_by_length=draft.finish_reason in _LENGTHS
        )
        return GenerateResult(
            (sample,),
            stream.num_prompt_tokens,
            stream.num_cached_tokens,
            stream.first_token_s,
            num_generated_tokens=stream.num_generated_tokens,
        )

    def _described(self, error: Exception) -> Exception:
        """What the SDK raised, as an error of the language."""
        import anthropic

        if isinstance(error, anthropic.APIStatusError) and error.status_code >= 400:
            return status_error(self._where, error.status_code, error.message, error.response.headers)
        if isinstance(error, anthropic.APITimeoutError | httpx2.TimeoutException | asyncio.TimeoutError):
            return timeout_error(self._where, self._timeout)
        if isinstance(error, anthropic.APIConnectionError | httpx2.RequestError):
            return connection_error(self._where, error)
        if isinstance(error, anthropic.APIError):
            return BackendCallError(f"{self._where} failed while it answered: {error.message}")
        return BackendCallError(f"{self._where} sent an answer that cannot be read: {type(error).__name__}: {error}")


@dataclass(slots=True)
class _MessageStream:
    """The events of one message so far."""

    draft: SampleDraft = field(default_factory=SampleDraft)
    started_at: float = field(default_factory=time.monotonic)
    first_token_s: float | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    is_complete: bool = False

    def add(self, event: RawMessageStreamEvent) -> str:
        """Take one event; returns the text that it adds."""
        if event.type == "message_start":
            usage = event.message.usage
            self.num_cached_tokens = usage.cache_read_input_tokens or 0
            self.num_prompt_tokens = (
                usage.input_tokens + self.num_cached_tokens + (usage.cache_creation_input_tokens or 0)
            )
        elif event.type == "content_block_delta" and event.delta.type == "text_delta":
            if self.first_token_s is None:
                self.first_token_s = time.monotonic() - self.started_at
            return self.draft.add_text(event.delta.text)
        elif event.type == "message_delta":
            self.draft.finish_reason = event.delta.stop_reason or self.draft.finish_reason
            self.draft.stop_reason = event.delta.stop_sequence
            self.num_generated_tokens = event.usage.output_tokens
        elif event.type == "message_stop":
            self.is_complete = True
            return self.draft.end_text()
        return ""


def _prompt_body(chat: ChatLog) -> dict[str, Any]:
    """
    Raises:
        UnsupportedByBackendError: these messages are none that the API takes.
    """
    num_system = next((idx for idx, (role, _) in enumerate(chat.messages) if role != "system"), len(chat.messages))
    rest = chat.messages[num_system:]
    for role, text in rest:
        if role == "developer":
            raise UnsupportedByBackendError(
                f"the Anthropic backend cannot do the developer message {text[:60]!r}: make it a system message"
            )
    if not rest:
        raise UnsupportedByBackendError("the Anthropic backend needs a user message before the assistant's")
    messages = [{"role": role, "content": text} for role, text in rest]
    if chat.open_text:
        if chat.open_text != chat.open_text.rstrip():
            raise UnsupportedByBackendError(
                f"the Anthropic backend cannot go on with a message that ends in white space, {chat.open_text[-60:]!r}"
                ": leave that to the model"
            )
        messages.append({"role": "assistant", "content": chat.open_text})
    system = "\n\n".join(text for _, text in chat.messages[:num_system])
    return {"messages": messages, **({"system": system} if system else {})}


def _sampling_body(params: SamplingParams) -> dict[str, Any]:
    """
    Raises:
        UnsupportedByBackendError: these values are none that the API takes.
    """
    if params.max_tokens is None:
        raise UnsupportedByBackendError("the Anthropic backend needs max_tokens: say how many at most")
    body: dict[str, Any] = {"max_tokens": params.max_tokens}
    blank = [stop for stop in params.stop_strings if not stop.strip()]
    if blank:
        raise UnsupportedByBackendError(
            f"the Anthropic backend cannot stop at {blank[0]!r}: a stop string needs a character that is no white space"
        )
    if params.stop_strings:
        body["stop_sequences"] = list(params.stop_strings)
    schema = None if params.json_schema is None else json.loads(str(params.json_schema))
    if params.choices is not None:
        assert isinstance(params.choices, tuple)
        schema = choices_schema(params.choices)
    if schema is not None:
        body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    return body


def _old_sampling(params: SamplingParams) -> dict[str, Any]:
    """The fields that the SDK has no arguments for any more. Values that ask for nothing are left to the API."""
    given = {"temperature": params.temperature, "top_p": params.top_p, "top_k": params.top_k}
    neutral: Mapping[str, tuple[float, ...]] = {"temperature": (1.0,), "top_p": (1.0,), "top_k": (0, -1)}
    return {name: value for name, value in given.items() if value not in neutral[name]}
