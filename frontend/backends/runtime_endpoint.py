"""RuntimeEndpoint: programs on a server of SGLang, or one like it, through its native `/generate`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from ...native_params import NATIVE_NAMES, RAMET_NAMES, to_native
from ..backend import GenerateCall, Message, ScoreCall, ScoreResult, Scoring, TextSegment
from ..generation import GenerateResult, Generation
from .api_errors import checked_retries, checked_timeout
from .api_params import ApiParams
from .chat_templates import RemoteChat
from .endpoint_answer import healed_text, sample_of, scored_row, server_ids, text_so_far
from .endpoint_client import EndpointClient
from .endpoint_tokens import EndpointTokens
from .errors import BackendCallError
from .scored_rows import num_unaffected, score_result
from .text_backend import TextBackend

__all__ = ["RuntimeEndpoint"]

_PARAMS = ApiParams("RuntimeEndpoint", frozenset(NATIVE_NAMES) | {"logprobs"})
_RAMET_PARAMS = ApiParams("RuntimeEndpoint", _PARAMS.supported | frozenset(RAMET_NAMES))

_NUM_HEALED = 4
"""So many tokens at the end of a prompt a choice is first expected to change at most."""


class RuntimeEndpoint(TextBackend):
    """A server that is running, SGLang's or one with its `/generate`. Constraints, penalties and selects run there.

    A server that says it is ramet's (`ramet serve`) tokenises text for its clients and says which token ids it
    generated, so that a program's tokens are exactly those that the model saw and made; and it heals the boundary
    before a constrained text, as far as four characters back. Others are sent
    text, as SGLang's own client does; with use_token_ids=True they are asked to tokenise (`/tokenize`) and what was
    generated is sent back as ids.

    Args:
        base_url: such as "http://127.0.0.1:30000".
        api_key: sent as a Bearer token.
        verify: whether to check the certificate of an https server, or the file of the authority it is checked against;
            None is True.
        chat_template_name: a format of chat_templates.py, by SGLang's name; None takes the one that the server tells.
        use_token_ids: None decides by the server.
        timeout: seconds without a byte after which a request fails.
        max_retries: of a request that was refused for load, or found no connection.
        max_concurrency: calls at a time; others wait.

    Raises:
        InvalidProgramError: an argument is malformed or out of range.
        BackendCallError: the server cannot be reached, or refuses to say which model it has.
    """

    name = "RuntimeEndpoint"

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: bool | str | None = None,
        chat_template_name: str | None = None,
        *,
        use_token_ids: bool | None = None,
        timeout: float = 600.0,
        max_retries: int = 2,
        max_concurrency: int = 256,
    ) -> None:
        chat = None if chat_template_name is None else RemoteChat.named(chat_template_name)
        self._timeout = checked_timeout(timeout)
        self._client = EndpointClient(
            base_url,
            api_key=api_key,
            verify=True if verify is None else verify,
            timeout=self._timeout,
            max_retries=checked_retries(max_retries),
            max_connections=max_concurrency,
        )
        super().__init__(max_concurrency, self._client.close)
        try:
            self.model_info = self._get("/get_model_info", "/model_info")
        except BaseException:
            self.close()
            raise
        is_ramet = isinstance(self.model_info.get("ramet"), dict)
        self._params = _RAMET_PARAMS if is_ramet else _PARAMS
        self._can_heal = is_ramet
        self._chat = chat or RemoteChat(
            *(_text_or_none(self.model_info.get(name)) for name in ("chat_template", "bos_token", "eos_token"))
        )
        uses_ids = is_ramet if use_token_ids is None else use_token_ids
        self._tokens = EndpointTokens(self._ids, self._client, uses_ids=uses_ids, is_ramet=is_ramet)

    # The Backend protocol

    def role_prefix(self, messages: Sequence[Message], role: str) -> Sequence[TextSegment]:
        return self._chat.role_prefix(messages, role)

    def role_suffix(self, messages: Sequence[Message], role: str) -> Sequence[TextSegment]:
        return self._chat.role_suffix(messages, role)

    def chat_segments(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> Sequence[TextSegment]:
        return self._chat.segments(messages, tools, add_generation_prompt=add_generation_prompt)

    def generate(self, call: GenerateCall) -> Generation:
        """Raises UnsupportedByBackendError for what the server cannot do."""
        self._params.check(call.sampling_params)
        self._tokens.check(call.prompt_token_ids)
        return self._calls.start_generation(lambda generation: self._generate(call, generation))

    def score(self, call: ScoreCall) -> Scoring:
        for continuation in call.continuations:
            self._tokens.check((*call.prompt_token_ids, *continuation))
        return self._calls.start(lambda: self._score(call))

    def flush_cache(self) -> None:
        """Have the server forget its cached prefixes. Blocks; raises BackendCallError."""
        self._calls.start(lambda: self._client.send("POST", "/flush_cache")).result()

    def get_server_info(self) -> dict[str, Any]:
        """What the server says of itself. Blocks; raises BackendCallError."""
        return self._get("/server_info", "/get_server_info")

    def cache_prefix(self, prefix_str: str) -> None:
        """Bring a text into the server's cache. Blocks; raises BackendCallError."""
        token_ids = self.encode([TextSegment(prefix_str)], at_start=True)
        self._calls.start(lambda: self._prefill(token_ids)).result()

    def info(self) -> Mapping[str, object]:
        return {
            "backend": "endpoint",
            "model": self.model_info.get("model_path"),
            "base_url": self._client.base_url,
            "uses_token_ids": self._tokens.uses_ids,
        }

    # Requests

    def _get(self, path: str, other_path: str) -> dict[str, Any]:
        """What either path gives; which one there is depends on the server's age."""

        async def get() -> Any:
            try:
                return await self._client.request("GET", path)
            except BackendCallError as error:
                if error.status not in (404, 405):
                    raise
                return await self._client.request("GET", other_path)

        found = self._calls.start(get).result()
        if not isinstance(found, dict):
            raise BackendCallError(f"{self._client.base_url}{path} gave no JSON object")
        return found

    async def _generate(self, call: GenerateCall, generation: Generation) -> GenerateResult:
        params = call.sampling_params
        prompt = await self._tokens.prompts([call.prompt_token_ids])
        body: dict[str, Any] = {name: values[0] for name, values in prompt.items()}
        body["sampling_params"] = to_native(params)
        if params.logprobs is not None:
            body |= {"return_logprob": True, "top_logprobs_num": params.logprobs, "return_text_in_logprobs": True}
        if self._can_heal and call.num_healable_tokens:
            body["num_healable_chars"] = call.num_healable_tokens  # literal text has an id for each character
        first_token_s: float | None = None
        if params.n > 1:
            answers = _as_answers(await self._client.request("POST", "/generate", body), params.n)
        else:
            started_at, shown = time.monotonic(), ""
            answer: dict[str, Any] = {}
            async with aclosing(self._client.events("/generate", {**body, "stream": True})) as events:
                async for answer in events:
                    text = text_so_far(answer, shown)
                    if text != shown and first_token_s is None:
                        first_token_s = time.monotonic() - started_at
                    generation.push(text[len(shown) :])
                    shown = text
            answers = _as_answers(answer, 1)
        if self._tokens.uses_ids:
            await self._tokens.learn([token_id for answer in answers for token_id in server_ids(answer)])
        meta = answers[0]["meta_info"]
        healed = healed_text(meta, self._ids.decode(call.prompt_token_ids), call.num_healable_tokens)
        samples = tuple(
            sample_of(answer, params, self._ids, uses_ids=self._tokens.uses_ids, healed=healed) for answer in answers
        )
        return GenerateResult(
            samples,
            int(meta.get("prompt_tokens", 0)),
            int(meta.get("cached_tokens") or 0),
            first_token_s,
            num_healed_tokens=len(healed),
            num_generated_tokens=sum(int(answer["meta_info"].get("completion_tokens", 0)) for answer in answers),
        )

    async def _score(self, call: ScoreCall) -> ScoreResult:
        prompt = call.prompt_token_ids
        meta = await self._prefill(prompt) if prompt else {}
        num_prompt_tokens = int(meta.get("prompt_tokens", 0))
        texts = [*([prompt] if prompt else []), *((*prompt, *each) for each in call.continuations)]
        body = {
            **await self._tokens.prompts(texts),
            "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
            "return_logprob": True,
            "return_text_in_logprobs": True,
        }
        num_healed = _NUM_HEALED
        while True:
            start = max(num_prompt_tokens - num_healed, 0)
            answer = await self._client.request("POST", "/generate", {**body, "logprob_start_len": start})
            rows = [scored_row(each, self._ids) for each in _as_answers(answer, len(texts))]
            alone = rows.pop(0) if prompt else None
            num_left_out = num_unaffected(alone, rows)
            # The first token that is reported may be without a logprob, so it must not be one that counts.
            if start == 0 or num_left_out > 0:
                return score_result(
                    rows,
                    num_left_out,
                    num_prompt_tokens=num_prompt_tokens,
                    num_cached_tokens=min(int(meta.get("cached_tokens") or 0), num_prompt_tokens),
                )
            num_healed *= 16

    async def _prefill(self, token_ids: Sequence[int]) -> dict[str, Any]:
        """Bring a prompt into the cache; what the server says of it."""
        prompt = await self._tokens.prompts([token_ids])
        body = {**{name: values[0] for name, values in prompt.items()}, "sampling_params": {"max_new_tokens": 0}}
        (answer,) = _as_answers(await self._client.request("POST", "/generate", body), 1)
        meta: dict[str, Any] = answer["meta_info"]
        return meta


def _as_answers(answer: Any, count: int) -> list[dict[str, Any]]:
    """The answers of a request for `count` texts.

    Raises:
        BackendCallError: they are not there, or the server gave up on one of them.
    """
    answers = answer if isinstance(answer, list) else [answer]
    if len(answers) != count or not all(
        isinstance(each, dict) and isinstance(each.get("meta_info"), dict) and isinstance(each.get("text"), str)
        for each in answers
    ):
        raise BackendCallError(f"the server gave no {count} answers with text and meta_info, but {str(answer)[:200]}")
    for each in answers:
        reason = each["meta_info"].get("finish_reason")
        if isinstance(reason, dict) and reason.get("type") in ("abort", "error"):
            raise BackendCallError(f"the server gave up: {reason.get('message') or reason}")
    return answers


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None
