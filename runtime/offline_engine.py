"""Engine: SGLang's offline engine over an LLM of this process: its arguments, its sampling parameters, its answers."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from .answer_stream import Answer, AnswerStream, AsyncAnswerStream, StreamedAnswers, abort
from .engine_loop import RequestHandle
from .generate_request import AskedText, GenerateAsk, check_flag, read_generate
from .llm import LLM
from .option_names import named_as_given
from .outputs import RequestOutput
from .server_args import OWN_NAMES, llm_options, set_log_level
from .sglang_format import answers


class Engine:
    """A model in this process as SGLang's users know it. Programs run on it too: `set_default_backend(engine.llm)`.

    Args:
        model_path: as LLM's `model`; or an LLM there is, which then stays open.
        log_level: of the logger "ramet", such as "error"; None leaves it.
        options: of an LLM, under its own names or SGLang's (context_length, max_running_requests, chunked_prefill_size,
            page_size, random_seed, disable_radix_cache, ...; docs/sglang.md has the list).

    Raises:
        ModelLoadError: the model cannot be found or read.
        InvalidConfigError: an option is unknown, out of range, or asks for what there is not.

    Attributes:
        llm: the model and its engine.
    """

    def __init__(self, model_path: LLM | str | None = None, *, log_level: str | None = None, **options: Any) -> None:
        if log_level is not None:
            set_log_level(log_level)
        self._owns_llm = not isinstance(model_path, LLM)
        if isinstance(model_path, LLM):
            self.llm = model_path
            return
        with named_as_given(options, OWN_NAMES):
            self.llm = LLM(model_path, **llm_options(options))

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
        check_flag("stream", stream)
        ask = self._read(
            prompt, input_ids, sampling_params, return_logprob, logprob_start_len, top_logprobs_num,
            return_text_in_logprobs, others,
        )  # fmt: skip
        handles = self.llm.submit_requests([item.request for item in ask.items])
        if stream:
            return AnswerStream(StreamedAnswers(ask, handles, self._answers_of, self.llm.tokenizer.eos_token_ids))
        try:
            for handle in handles:
                handle.wait()
        except BaseException:  # Ctrl-C included: nothing goes on behind the caller's back
            abort(handles)
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
        check_flag("stream", stream)
        ask = self._read(
            prompt, input_ids, sampling_params, return_logprob, logprob_start_len, top_logprobs_num,
            return_text_in_logprobs, others,
        )  # fmt: skip
        handles = self.llm.submit_requests([item.request for item in ask.items])
        if stream:
            return AsyncAnswerStream(StreamedAnswers(ask, handles, self._answers_of, self.llm.tokenizer.eos_token_ids))
        try:
            await asyncio.gather(*map(_ended, handles))
        except BaseException:
            abort(handles)
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
            answer
            for item, handle in zip(ask.items, handles, strict=True)
            for answer in self._answers_of(item, handle.wait())
        ]
        return found[0] if ask.is_single and len(found) == 1 else found

    def _answers_of(self, item: AskedText, output: RequestOutput) -> list[Answer]:
        return answers(
            output,
            item.logprobs,
            self._token_text,
            self.llm.tokenizer.eos_token_ids,
            is_prefill_only=item.native.is_prefill_only,
        )

    def _token_text(self, token_id: int) -> str:
        return self.llm.tokenizer.decode([token_id], skip_special_tokens=False)


async def _ended(handle: RequestHandle) -> None:
    """Wait for the end of a request without a thread."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def tell(_: RequestHandle) -> None:
        loop.call_soon_threadsafe(ended.set)

    handle.add_done_callback(tell)
    await ended.wait()
