"""`/v1/completions`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from starlette.responses import Response

from ...outputs import CompletionOutput, FinishReason, OutputChunk, RequestOutput
from ...request import Request
from ...tokenizer import Tokenizer
from ..chat.wording import in_words_of
from ..dependencies import Caller, RequestId, Service
from ..json_route import JsonRoute
from ..live_requests import LiveRequests
from ..service import EngineService
from ..streaming import DONE, EventStream, answer_unless_disconnected, event
from ..tenant import Tenant
from .answers import Heading, counts, end_of_error, extension, json_response, usage_body
from .completion_logprobs import LogprobLists
from .completion_request import CompletionAsk, CompletionRequest, completion_requests
from .models import check_model

router = APIRouter(route_class=JsonRoute, prefix="/v1", tags=["openai"])


@router.post("/completions")
async def create_completion(
    body: CompletionRequest, http: HttpRequest, service: Service, caller: Caller, request_id: RequestId
) -> Response:
    """How texts, or lists of token ids, go on."""
    model = check_model(service, body.model)
    ask = await service.workers.call(caller.name, lambda: body.ask(service.config))
    heading = Heading(f"cmpl-{request_id.removeprefix('req-')}", "text_completion", model)
    writer = ChoiceWriter(service.llm.tokenizer, ask, body)
    if body.stream:
        live = await _submit(service, caller, ask, body)
        stream = CompletionStream(heading, writer, ask, body, live)
        return EventStream(stream.events(), end_of_error, request_id, live.abort)

    async def answer() -> Response:
        async with await _submit(service, caller, ask, body) as live:
            outputs = await live.succeeded()

        def written() -> Response:
            choices = [choice for idx, output in enumerate(outputs) for choice in writer.choices(idx, output)]
            num_tokens = 0 if ask.is_prompt_only else None
            return json_response(heading.body(choices=choices, usage=usage_body(outputs, num_tokens)))

        is_long = ask.num_logprobs is not None
        return await service.workers.call(caller.name, written) if is_long else written()

    return await answer_unless_disconnected(http, answer())


async def _submit(service: EngineService, caller: Tenant, ask: CompletionAsk, body: CompletionRequest) -> LiveRequests:
    def make() -> list[Request]:
        for idx, prompt in enumerate(ask.prompts):
            if isinstance(prompt, str):
                service.check_prompt_len(len(prompt), "prompt" if len(ask.prompts) == 1 else f"prompt[{idx}]")
        return completion_requests(ask, body, service.llm.tokenizer, caller, service.llm.new_request_id)

    with in_words_of(body.names(), None):
        return await service.submit(
            make,
            len(ask.prompts) * ask.sampling.num_sequences,
            tenant=caller.name,
            is_streamed=bool(body.stream),
            is_constrained=ask.sampling.grammar_spec is not None,
            name=body.own_id,
        )


class ChoiceWriter:
    """Writes choices as OpenAI does. Their index counts the samples of all prompts."""

    def __init__(self, tokenizer: Tokenizer, ask: CompletionAsk, body: CompletionRequest) -> None:
        self._tokenizer = tokenizer
        self._ask = ask
        self._body = body
        spec = ask.sampling.grammar_spec
        self._is_json = spec is not None and spec.kind == "json_schema"

    def index(self, prompt_idx: int, sample_idx: int) -> int:
        return prompt_idx * self._ask.num_choices + sample_idx

    def choices(self, prompt_idx: int, output: RequestOutput) -> list[dict[str, Any]]:
        """All of one prompt, whole."""
        samples = output.outputs
        if self._ask.is_prompt_only:
            samples = samples * self._ask.num_choices
        return [self._choice(prompt_idx, k, output, sample) for k, sample in enumerate(samples)]

    def prompt_text(self, output: RequestOutput | Request) -> str:
        """What an echo says."""
        if output.prompt is not None:
            return output.prompt
        return self._tokenizer.decode(output.prompt_token_ids, skip_special_tokens=False)

    def lists(self) -> LogprobLists:
        return LogprobLists(
            self._tokenizer,
            self._ask.num_logprobs or 0,
            shows_ids=bool(self._body.return_tokens_as_token_ids),
            skips_special=self._ask.sampling.skip_special_tokens,
        )

    def ending(self, reason: FinishReason, stop_reason: int | str | None, complete: bool | None) -> dict[str, Any]:
        if self._ask.is_prompt_only:
            reason, stop_reason, complete = FinishReason.LENGTH, None, None
        is_whole = self._is_json and complete is True
        is_cut = reason is FinishReason.LENGTH and not is_whole
        finish = "length" if is_cut else "stop"
        return {"finish_reason": finish, "stop_reason": stop_reason, "ramet": extension(reason.value, complete)}

    def _choice(
        self, prompt_idx: int, sample_idx: int, output: RequestOutput, sample: CompletionOutput
    ) -> dict[str, Any]:
        assert sample.finish_reason is not None
        text = "" if self._ask.is_prompt_only else sample.text
        own_ids = [] if self._ask.is_prompt_only else sample.token_ids
        token_ids = {"prompt_token_ids": output.prompt_token_ids, "token_ids": own_ids}
        return {
            "index": self.index(prompt_idx, sample_idx),
            "text": self.prompt_text(output) + text if self._ask.has_echo else text,
            "logprobs": self._logprobs(output, sample),
            **self.ending(sample.finish_reason, sample.stop_reason, sample.complete),
            **(token_ids if self._body.return_token_ids else {}),
        }

    def _logprobs(self, output: RequestOutput, sample: CompletionOutput) -> dict[str, Any] | None:
        if self._ask.num_logprobs is None:
            return None
        lists = self.lists()
        merged: dict[str, Any] = {name: [] for name in ("text_offset", "token_logprobs", "tokens", "top_logprobs")}
        parts = []
        if self._ask.has_echo:
            assert output.prompt_logprobs is not None
            num_hidden = self._num_hidden(output)
            parts.append(lists.lists(output.prompt_token_ids, output.prompt_logprobs, num_hidden, is_prompt=True))
        if not self._ask.is_prompt_only:
            assert sample.logprobs is not None
            parts.append(lists.lists(sample.token_ids, sample.logprobs, is_prompt=False))
        for part in parts:
            for name, values in part.items():
                merged[name] += values
        return merged

    def _num_hidden(self, output: RequestOutput) -> int:
        """Tokens that were put in front of a text."""
        bos = self._tokenizer.bos_token_id
        if output.prompt is None or not self._tokenizer.adds_bos or output.prompt_token_ids[:1] != [bos]:
            return 0
        assert bos is not None
        return int(not output.prompt.startswith(self._tokenizer.token_bytes(bos).decode()))


class CompletionStream:
    """Writes what requests say as OpenAI's chunks."""

    def __init__(
        self, heading: Heading, writer: ChoiceWriter, ask: CompletionAsk, body: CompletionRequest, live: LiveRequests
    ) -> None:
        self._heading = heading
        self._writer = writer
        self._ask = ask
        self._body = body
        self._live = live
        self._num_tokens = 0
        self._num_prompt_tokens = sum(len(handle.request.prompt_token_ids) for handle in live.handles)
        self._lists = {} if ask.num_logprobs is None else self._new_lists(len(live.handles))

    async def events(self) -> AsyncIterator[bytes]:
        outputs: dict[int, RequestOutput] = {}
        async with self._live as live:
            if self._ask.has_echo:
                for prompt_idx, handle in enumerate(live.handles):
                    text = self._writer.prompt_text(handle.request)
                    for sample_idx in range(self._ask.num_choices):
                        yield self._chunk(self._writer.index(prompt_idx, sample_idx), text)
            async for prompt_idx, chunk in live.chunks():
                if chunk.output is not None:
                    outputs[prompt_idx] = chunk.output
                for piece in self._pieces(prompt_idx, chunk):
                    yield piece
            if self._body.has_usage:
                num_tokens = 0 if self._ask.is_prompt_only else None
                usage = usage_body((outputs[idx] for idx in sorted(outputs)), num_tokens)
                yield event(self._heading.body(choices=[], usage=usage))
            yield DONE

    def _pieces(self, prompt_idx: int, chunk: OutputChunk) -> list[bytes]:
        if self._ask.is_prompt_only:
            ending = self._writer.ending(FinishReason.LENGTH, None, None)
            if self._body.return_token_ids:
                ending["token_ids"] = []
            indices = [self._writer.index(prompt_idx, sample_idx) for sample_idx in range(self._ask.num_choices)]
            return [self._chunk(index, "", **ending) for index in indices]
        index = self._writer.index(prompt_idx, chunk.index)
        self._num_tokens += len(chunk.token_ids)
        more: dict[str, Any] = {}
        if chunk.logprobs:
            more["logprobs"] = self._lists[index].lists(chunk.token_ids, chunk.logprobs, is_prompt=False)
        if self._body.return_token_ids:
            more["token_ids"] = chunk.token_ids
        if chunk.finish_reason is not None:
            more |= self._writer.ending(chunk.finish_reason, chunk.stop_reason, chunk.complete)
        return [self._chunk(index, chunk.text, **more)] if chunk.text or more else []

    def _chunk(self, index: int, text: str, **more: Any) -> bytes:
        choice = {"index": index, "text": text, "logprobs": None, "finish_reason": None, **more}
        usage: dict[str, Any] = {}
        if self._body.has_running_usage:
            usage = {"usage": counts(self._num_prompt_tokens, self._num_tokens)}
        elif self._body.has_usage:
            usage = {"usage": None}
        return event(self._heading.body(choices=[choice], **usage))

    def _new_lists(self, num_prompts: int) -> dict[int, LogprobLists]:
        return {index: self._writer.lists() for index in range(num_prompts * self._ask.num_choices)}
