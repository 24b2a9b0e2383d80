"""GenerateJob: one `/generate`, from its fields to its answers. HTTP and gRPC share it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from ...answer_stream import Answer, StreamedAnswers
from ...errors import EngineStoppedError, InvalidRequestError, RequestAbortedError
from ...generate_request import UNSUPPORTED, AskedText, GenerateAsk, one_each, read_generate
from ...outputs import RequestOutput
from ...request import Request
from ...sglang_format import answers
from ..chat.wording import in_words_of
from ..errors import ApiError, reported
from ..live_requests import LiveRequests
from ..preparation import Preparation
from ..service import EngineService
from ..tenant import Tenant
from .generate_outline import Fields, outline_of

MAX_HEALABLE_CHARS = 64
_OURS = frozenset({"rid", "priority", "cache_salt"})
"""What an offline engine has other ways for."""

_NAMES = {r"(?<!no ')\bmax_tokens\b": "max_new_tokens", r"^prompt_token_ids\b": "input_ids"}
"""What others call fields of ours; but who has no 'max_tokens' is told so."""

T = TypeVar("T")


class GenerateJob:
    """What a client has asked for.

    Making one costs little, whatever was asked: only its outline is looked at. `submit` has the rest done by a worker.

    Args:
        fields: of GenerateBody, by name; those that are None are left out or not.
        request_id: the one that the client is given, for failures.

    Raises:
        ApiError, InvalidRequestError: as `outline_of`.
    """

    def __init__(self, service: EngineService, tenant: Tenant, fields: Fields, request_id: str) -> None:
        self._service = service
        self._tenant = tenant
        self._request_id = request_id
        self._fields = {name: value for name, value in fields.items() if value is not None}
        self._outline = outline_of(self._fields, service.config)
        self._ask: GenerateAsk | None = None

    @property
    def is_streamed(self) -> bool:
        """Answers are wanted as they come."""
        return self._outline.is_streamed

    @property
    def num_samples(self) -> int:
        """Over all prompts."""
        return self._outline.num_samples

    async def submit(self) -> LiveRequests:
        """Queue it.

        Raises:
            ApiError: it is refused, or there is no place for it.
        """
        with in_words_of({**_NAMES, "^prompt$": "text" if "text" in self._fields else "input_ids"}, None):
            return await self._service.submit(
                self._make,
                self._outline.num_samples,
                tenant=self._tenant.name,
                is_streamed=self._outline.is_streamed,
                is_constrained=self._outline.is_constrained,
                is_joint=False,
                name=self._outline.rids,
            )

    async def answer(self, live: LiveRequests, render: Callable[[Answer | list[Answer]], T]) -> T:
        """All of it, when it has ended: one answer for one prompt with n = 1, else a list, n for each prompt.

        Args:
            render: makes of it what is sent; a worker calls it.

        Raises:
            ApiError: the only prompt failed, or the server's time limit or its engine has ended them all.
        """
        outputs = await live.outputs()
        for output in outputs:
            self._raise_common(live, output)
        return await self._service.workers.call(self._tenant.name, lambda: render(self._formatted(outputs)))

    async def stream(self, live: LiveRequests) -> AsyncIterator[Answer]:
        """Each answer that a step has changed: its text and token ids so far, and whose it is as "index".

        Raises:
            ApiError: as `answer`.
        """
        assert self._ask is not None
        eos_token_ids = self._service.llm.tokenizer.eos_token_ids
        said = StreamedAnswers(self._ask, live.handles, self._answers_of, eos_token_ids)
        async with aclosing(live.chunks()) as chunks:  # type: ignore[type-var]
            async for idx, chunk in chunks:
                if chunk.output is not None:
                    self._raise_common(live, chunk.output)
                changed = said.take(idx, chunk)
                if chunk.output is not None and self._ask.items[idx].logprobs.is_wanted:
                    changed = iter(await self._service.workers.call(self._tenant.name, partial(list, changed)))
                for answer in changed:
                    yield self._named(answer, idx)

    def _make(self, preparation: Preparation) -> list[Request]:
        fields = self._fields
        given = fields.get("text")
        for idx, text in enumerate(given if isinstance(given, list) else [given]):
            if isinstance(text, str):
                self._service.check_prompt_len(len(text), f"text[{idx}]" if isinstance(given, list) else "text")
        ask = read_generate(
            self._service.llm.tokenizer,
            self._service.llm.new_request_id,
            prompt=fields.get("text"),
            input_ids=fields.get("input_ids"),
            sampling_params=fields.get("sampling_params"),
            return_logprob=fields.get("return_logprob", False),
            logprob_start_len=fields.get("logprob_start_len", [0 if each else -1 for each in self._outline.are_scored]),
            top_logprobs_num=fields.get("top_logprobs_num", 0),
            return_text_in_logprobs=fields.get("return_text_in_logprobs", False),
            others={name: fields[name] for name in UNSUPPORTED if name in fields and name not in _OURS},
            prompt_name="text",
            before_each=preparation.go_on,
        )
        priorities = self._each("priority", int, 0)
        routing_keys = self._each("routing_key", str, None)
        num_chars = self._each("num_healable_chars", int, 0)
        salts, extra_keys = self._each("cache_salt", str, None), self._each("extra_key", str, None)
        items = [
            replace(
                item,
                request=replace(
                    item.request,
                    priority=priorities[idx],
                    routing_key=routing_keys[idx],
                    num_healable_tokens=self._num_healable_tokens(item.request.prompt_token_ids, num_chars[idx]),
                    cache_namespace=self._tenant.namespace(*_one_salt(salts[idx], extra_keys[idx])),
                ),
            )
            for idx, item in enumerate(ask.items)
        ]
        self._ask = replace(ask, items=tuple(items))
        return [item.request for item in items]

    def _each(self, name: str, kind: type, default: object) -> list[Any]:
        kinds = kind if default == 0 else kind | None
        return one_each(name, self._fields.get(name, default), self._outline.num_prompts, kinds)

    def _num_healable_tokens(self, token_ids: tuple[int, ...], num_chars: int) -> int:
        """How many tokens at the end of a prompt lie wholly in its last characters."""
        if not 0 <= num_chars <= MAX_HEALABLE_CHARS:
            raise InvalidRequestError(f"num_healable_chars={num_chars} must lie in [0, {MAX_HEALABLE_CHARS}]")
        tokenizer = self._service.llm.tokenizer
        spelled = b""
        for count, token_id in enumerate(reversed(token_ids[-num_chars - 1 :])):
            if not isinstance(token_id, int) or not 0 <= token_id < tokenizer.vocab_size:
                return 0  # it is refused where it is submitted
            spelled = tokenizer.token_bytes(token_id) + spelled
            if len(spelled.decode(errors="replace")) > num_chars:
                return count
        return min(num_chars, len(token_ids))

    def _raise_common(self, live: LiveRequests, output: RequestOutput) -> None:
        """A failure that is everybody's. Of several prompts one that fails has its own answer, as has one that its
        client has aborted."""
        is_own = self._outline.num_prompts > 1 or isinstance(output.error, RequestAbortedError)
        if live.failure is not None or isinstance(output.error, EngineStoppedError) or not is_own:
            live.raise_failure(output)

    def _formatted(self, outputs: list[RequestOutput]) -> Answer | list[Answer]:
        assert self._ask is not None
        found = [
            self._named(answer, idx)
            for idx, (item, output) in enumerate(zip(self._ask.items, outputs, strict=True))
            for answer in self._answers_of(item, output)
        ]
        return found[0] if self._ask.is_single and len(found) == 1 else found

    def _answers_of(self, item: AskedText, output: RequestOutput) -> list[Answer]:
        found = answers(
            output,
            item.logprobs,
            self._token_text,
            self._service.llm.tokenizer.eos_token_ids,
            is_prefill_only=item.native.is_prefill_only,
        )
        num_healed = output.num_healed_tokens
        for answer in found if num_healed else ():
            healed = item.request.prompt_token_ids[-num_healed:]
            answer["meta_info"]["healed_text"] = self._text_of(healed)
        if output.error is not None:
            failure = reported(output.error, self._request_id)
            reason = {"type": "abort", "message": failure.message, "status_code": failure.status}
            for answer in found:
                if answer["meta_info"]["finish_reason"]["type"] == "abort":
                    answer["meta_info"]["finish_reason"] = reason
        return found

    def _named(self, answer: Answer, idx: int) -> Answer:
        """With the id that its client has chosen."""
        rids = self._outline.rids
        if rids is not None:
            suffix = f"_{idx}" if self._outline.num_prompts > 1 else ""
            answer["meta_info"]["id"] = rids + suffix if isinstance(rids, str) else rids[idx]
        return answer

    def _token_text(self, token_id: int) -> str:
        return self._text_of([token_id])

    def _text_of(self, token_ids: Sequence[int]) -> str:
        return self._service.llm.tokenizer.decode(token_ids, skip_special_tokens=False, is_text_start=False)


def _one_salt(salt: str | None, extra_key: str | None) -> tuple[str | None, str]:
    """SGLang has two names for what keeps caches apart. Returns it, and the one that was used."""
    if salt is not None and extra_key is not None:
        raise ApiError(400, "give cache_salt or extra_key: they are the same here", param="extra_key")
    return (salt, "cache_salt") if extra_key is None else (extra_key, "extra_key")
