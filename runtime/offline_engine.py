"""Engine: SGLang's offline engine over an LLM of this process: its arguments, its sampling parameters, its answers."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

from .engine_loop import RequestHandle
from .generate_request import AskedText, GenerateAsk, read_generate
from .llm import LLM
from .outputs import OutputChunk
from .server_args import llm_options
from .sglang_format import answers, finish_reason

Answer = dict[str, Any]
"""{"text", "output_ids", "meta_info": {"id", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens",
"e2e_latency", and, if asked for, "input_token_logprobs", "output_token_logprobs", "input_top_logprobs",
"output_top_logprobs"}}"""


class Engine:
    """A model in this process as SGLang's users know it. Programs run on it too: `set_default_backend(engine.llm)`.

    Args:
        model_path: as LLM's `model`; or an LLM there is, which then stays open.
        options: of an LLM, under its own names or SGLang's (context_length, max_running_requests, chunked_prefill_size,
            page_size, random_seed, disable_radix_cache, ...).

    Raises:
        ModelLoadError: the model cannot be found or read.
        InvalidConfigError: an option is unknown, out of range, or asks for what there is not.

    Attributes:
        llm: the model and its engine.
    """

    def __init__(self, model_path: LLM | str | None = None, **options: Any) -> None:
        self._owns_llm = not isinstance(model_path, LLM)
        self.llm = model_path if isinstance(model_path, LLM) else LLM(model_path, **llm_options(options))

    def generate(
        self,
        prompt: str | Sequence[str] | None = None,
        sampling_params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        *,
        return_logprob: bool | Sequence[bool] = False,
        logprob_start_len: int | Sequence[int] = -1,
        top_logprobs_num: int | Sequence[int] = 0,
        return_text_in_logprobs: bool = False,
        stream: bool = False,
        **others: Any,
    ) -> Answer | list[Answer] | Iterator[Answer]:
        """Run one prompt or a list of them to the end.

        Args:
            prompt: one text, or a list of texts; or give `input_ids`, one list of token ids, or a list of such lists.
            sampling_params: SGLang's, such as {"max_new_tokens": 32, "temperature": 0}; one for all, or one per prompt.
            return_logprob: also give logprobs, of the prompt from `logprob_start_len` on (-1: of the output only), with
                the `top_logprobs_num` likeliest tokens. They are right for cached positions too.
            stream: give an iterator instead. Each item has the text so far, and "index" says whose, counted over all
                samples of all prompts. Leaving it early cancels what still runs.

        Returns:
            An answer for one prompt with n = 1, else a list: n answers per prompt, in order. A prompt that fails while
            it runs has one answer, whose finish_reason has type "abort" and the message.

        Raises:
            InvalidRequestError, InvalidSamplingParamsError: something is refused, and nothing was run.
        """
        ask = self._read(
            prompt, input_ids, sampling_params, return_logprob, logprob_start_len, top_logprobs_num,
            return_text_in_logprobs, others,
        )  # fmt: skip
        handles = self.llm.submit_requests([item.request for item in ask.items])
        if stream:
            return self._stream(ask, handles)
        try:
            for handle in handles:
                handle.wait()
        except BaseException:  # Ctrl-C included: nothing goes on behind the caller's back
            _abort(handles)
            raise
        return self._answers(ask, handles)

    async def async_generate(
        self,
        prompt: str | Sequence[str] | None = None,
        sampling_params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        *,
        return_logprob: bool | Sequence[bool] = False,
        logprob_start_len: int | Sequence[int] = -1,
        top_logprobs_num: int | Sequence[int] = 0,
        return_text_in_logprobs: bool = False,
        stream: bool = False,
        **others: Any,
    ) -> Answer | list[Answer] | AsyncIterator[Answer]:
        """`generate` for asyncio: to be awaited, with stream=True for an asynchronous iterator. Being cancelled cancels
        the requests."""
        ask = self._read(
            prompt, input_ids, sampling_params, return_logprob, logprob_start_len, top_logprobs_num,
            return_text_in_logprobs, others,
        )  # fmt: skip
        handles = self.llm.submit_requests([item.request for item in ask.items])
        if stream:
            return self._astream(ask, handles)
        try:
            await asyncio.gather(*map(_ended, handles))
        except BaseException:
            _abort(handles)
            raise
        return self._answers(ask, handles)

    def flush_cache(self) -> int:
        """Forget cached prefixes that no running request holds. Returns how many blocks were freed."""
        return self.llm.reset_prefix_cache()

    def get_server_info(self) -> dict[str, Any]:
        """The model, every option of the engine, its limits and its counters so far."""
        return {
            "model_path": self.llm.model_name,
            "kernels": self.llm.kernels_name,
            "num_threads": self.llm.num_threads,
            "max_context_len": self.llm.max_context_len,
            **dataclasses.asdict(self.llm.config),
            "metrics": dataclasses.asdict(self.llm.metrics()),
        }

    def shutdown(self) -> None:
        """Stop the engine's thread, if the model was loaded here. Idempotent."""
        if self._owns_llm:
            self.llm.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _read(
        self,
        prompt: str | Sequence[str] | None,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None,
        sampling_params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
        return_logprob: bool | Sequence[bool],
        logprob_start_len: int | Sequence[int],
        top_logprobs_num: int | Sequence[int],
        return_text_in_logprobs: bool,
        others: Mapping[str, Any],
    ) -> GenerateAsk:
        return read_generate(
            self.llm.tokenizer,
            self.llm.new_request_id,
            prompt=prompt,
            input_ids=input_ids,
            sampling_params=sampling_params,
            return_logprob=return_logprob,
            logprob_start_len=logprob_start_len,
            top_logprobs_num=top_logprobs_num,
            return_text_in_logprobs=return_text_in_logprobs,
            others=others,
        )

    def _answers(self, ask: GenerateAsk, handles: Sequence[RequestHandle]) -> Answer | list[Answer]:
        found = [
            answer for item, handle in zip(ask.items, handles, strict=True) for answer in self._answers_of(item, handle)
        ]
        return found[0] if ask.is_single and len(found) == 1 else found

    def _answers_of(self, item: AskedText, handle: RequestHandle) -> list[Answer]:
        return answers(handle.wait(), item.logprobs, self._token_text, is_prefill_only=item.native.is_prefill_only)

    def _token_text(self, token_id: int) -> str:
        return self.llm.tokenizer.decode([token_id], skip_special_tokens=False)

    def _stream(self, ask: GenerateAsk, handles: Sequence[RequestHandle]) -> Iterator[Answer]:
        chunks: SimpleQueue[tuple[int, OutputChunk]] = SimpleQueue()
        _follow(handles, lambda idx, chunk: chunks.put((idx, chunk)))
        merged = _StreamedAnswers(ask, handles, self._answers_of)
        try:
            while not merged.is_over:
                yield from merged.take(*chunks.get())
        finally:
            _abort(handles)

    async def _astream(self, ask: GenerateAsk, handles: Sequence[RequestHandle]) -> AsyncIterator[Answer]:
        loop = asyncio.get_running_loop()
        chunks: asyncio.Queue[tuple[int, OutputChunk]] = asyncio.Queue()
        _follow(handles, lambda idx, chunk: loop.call_soon_threadsafe(chunks.put_nowait, (idx, chunk)))
        merged = _StreamedAnswers(ask, handles, self._answers_of)
        try:
            while not merged.is_over:
                for answer in merged.take(*await chunks.get()):
                    yield answer
        finally:
            _abort(handles)


@dataclass(slots=True)
class _StreamedAnswers:
    """What a stream has said so far, of every sample of every prompt."""

    ask: GenerateAsk
    handles: Sequence[RequestHandle]
    finish: Callable[[AskedText, RequestHandle], list[Answer]]
    num_running: int = field(init=False)
    texts: dict[int, str] = field(default_factory=dict)
    token_ids: dict[int, list[int]] = field(default_factory=dict)
    first_idx: list[int] = field(default_factory=lambda: [0])

    def __post_init__(self) -> None:
        self.num_running = len(self.handles)
        for item in self.ask.items:
            self.first_idx.append(self.first_idx[-1] + item.native.sampling.n)

    @property
    def is_over(self) -> bool:
        return self.num_running == 0

    def take(self, request_idx: int, chunk: OutputChunk) -> Iterator[Answer]:
        """The answers that a chunk changes."""
        item = self.ask.items[request_idx]
        idx = self.first_idx[request_idx] + chunk.index
        if chunk.output is not None:
            self.num_running -= 1
            for offset, answer in enumerate(self.finish(item, self.handles[request_idx])):
                yield {**answer, "index": self.first_idx[request_idx] + offset}
            return
        if item.native.is_prefill_only:
            return
        text = self.texts[idx] = self.texts.get(idx, "") + chunk.text
        token_ids = self.token_ids.setdefault(idx, [])
        token_ids += chunk.token_ids
        reason = finish_reason(
            chunk.finish_reason, chunk.stop_reason, len(token_ids), token_ids[-1] if token_ids else None
        )
        meta = {
            "id": chunk.request_id,
            "finish_reason": reason,
            "prompt_tokens": len(item.request.prompt_token_ids),
            "completion_tokens": len(token_ids),
        }
        yield {"text": text, "output_ids": list(token_ids), "meta_info": meta, "index": idx}


def _follow(handles: Sequence[RequestHandle], take: Callable[[int, OutputChunk], object]) -> None:
    """Pass on every chunk, with the index of its request."""
    for idx, handle in enumerate(handles):
        handle.add_chunk_callback(partial(_passed_on, take, idx))


def _passed_on(take: Callable[[int, OutputChunk], object], idx: int, chunk: OutputChunk) -> None:
    take(idx, chunk)


async def _ended(handle: RequestHandle) -> None:
    """Wait for the end of a request without a thread."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def tell(_: RequestHandle) -> None:
        loop.call_soon_threadsafe(ended.set)

    handle.add_done_callback(tell)
    await ended.wait()


def _abort(handles: Sequence[RequestHandle]) -> None:
    for handle in handles:
        handle.abort()
