"""CompletionStream: what requests say, as the chunks of `/v1/completions`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

from ...outputs import OutputChunk, RequestOutput
from ..live_requests import LiveRequests
from ..service import EngineService
from ..streaming import DONE, event
from ..tenant import Tenant
from .answers import Heading, counts
from .completion_choices import ChoiceWriter
from .completion_logprobs import LogprobLists


class CompletionStream:
    """Writes each piece as it comes.

    A choice comes whole, in one chunk, where its prompt is all that is asked for, and where the logprobs of its prompt
    stand before what was generated: they are known when the prompt's samples have ended.
    """

    def __init__(self, service: EngineService, tenant: Tenant, heading: Heading, writer: ChoiceWriter) -> None:
        self._service = service
        self._tenant = tenant
        self._heading = heading
        self._writer = writer
        self._ask = ask = writer.ask
        self._body = writer.body
        self._comes_whole = ask.is_prompt_only or (ask.has_echo and ask.num_logprobs is not None)
        self._num_prompt_tokens = 0
        self._num_tokens = 0
        self._untold: dict[int, Sequence[int]] = {}  # the prompts of choices whose first chunk was not sent yet
        self._lists: defaultdict[int, LogprobLists] = defaultdict(writer.lists)

    async def events(self, submit: Callable[[], Awaitable[LiveRequests]]) -> AsyncIterator[bytes]:
        outputs: dict[int, RequestOutput] = {}
        async with await submit() as live:
            self._num_prompt_tokens = sum(len(handle.request.prompt_token_ids) for handle in live.handles)
            if self._body.return_token_ids and not self._comes_whole:
                self._untold = self._prompts(live)
            if self._ask.has_echo and not self._comes_whole:
                async for piece in self._echoes(live):
                    yield piece
            async for prompt_idx, chunk in live.chunks():
                if chunk.output is not None:
                    outputs[prompt_idx] = chunk.output
                if not self._comes_whole:
                    for piece in self._pieces(prompt_idx, chunk):
                        yield piece
                elif chunk.output is not None:
                    yield await self._service.workers.call(
                        self._tenant.name, partial(self._whole, prompt_idx, chunk.output)
                    )
            if self._body.has_usage:
                usage = self._writer.usage([outputs[idx] for idx in sorted(outputs)])
                yield event(self._heading.body(choices=[], usage=usage))
            yield DONE

    def _prompts(self, live: LiveRequests) -> dict[int, Sequence[int]]:
        return {
            self._writer.index(prompt_idx, sample_idx): handle.request.prompt_token_ids
            for prompt_idx, handle in enumerate(live.handles)
            for sample_idx in range(self._ask.num_choices)
        }

    async def _echoes(self, live: LiveRequests) -> AsyncIterator[bytes]:
        for prompt_idx, handle in enumerate(live.handles):
            request = handle.request
            text = await self._service.workers.call(self._tenant.name, partial(self._writer.prompt_text, request))
            for sample_idx in range(self._ask.num_choices):
                yield self._chunk(self._writer.index(prompt_idx, sample_idx), text)

    def _whole(self, prompt_idx: int, output: RequestOutput) -> bytes:
        """The choices of a prompt. Long lists take their time: for a worker."""
        if not self._ask.is_prompt_only:
            self._num_tokens += sum(len(sample.token_ids) for sample in output.outputs)
        return b"".join(self._event(choice) for choice in self._writer.choices(prompt_idx, output))

    def _pieces(self, prompt_idx: int, chunk: OutputChunk) -> Iterator[bytes]:
        index = self._writer.index(prompt_idx, chunk.index)
        self._num_tokens += len(chunk.token_ids)
        more: dict[str, Any] = {}
        if chunk.logprobs:
            more["logprobs"] = self._lists[index].lists(chunk.token_ids, chunk.logprobs, is_prompt=False)
        if self._body.return_token_ids:
            more["token_ids"] = chunk.token_ids
        if chunk.finish_reason is not None:
            more |= self._writer.ending(chunk.finish_reason, chunk.stop_reason, chunk.complete)
        if chunk.text or more:
            yield self._chunk(index, chunk.text, **more)

    def _chunk(self, index: int, text: str, **more: Any) -> bytes:
        told = {"prompt_token_ids": self._untold.pop(index)} if index in self._untold else {}
        return self._event({"index": index, "text": text, "logprobs": None, "finish_reason": None, **told, **more})

    def _event(self, choice: dict[str, Any]) -> bytes:
        usage: dict[str, Any] = {}
        if self._body.has_running_usage:
            usage = {"usage": counts(self._num_prompt_tokens, self._num_tokens)}
        elif self._body.has_usage:
            usage = {"usage": None}
        return event(self._heading.body(choices=[choice], **usage))
