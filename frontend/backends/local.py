"""LocalBackend: runs programs on the engine in this process. The only module of the language that knows the runtime."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Any

from ...runtime.chat_template import TextSegment as RuntimeSegment
from ...runtime.config import default_model
from ...runtime.engine_loop import RequestHandle
from ...runtime.llm import LLM
from ...runtime.outputs import CompletionOutput, OutputChunk, RequestOutput, TokenLogprobs
from ...runtime.programs import Programs
from ...runtime.request import Request
from ...runtime.request_program import RequestProgram
from ...sampling_params import SamplingParams
from ..backend import (
    CallExpected,
    GenerateCall,
    Message,
    ProgramEnded,
    ProgramForked,
    ProgramHint,
    ProgramJoined,
    ProgramRef,
    ScoreCall,
    ScoreResult,
    Scoring,
    TextSegment,
)
from ..generation import GenerateResult, Generation, Sample, TokenLogprob
from ..handle import Handle
from ..trace.cache_tree import CacheNode, CacheTree
from .errors import BackendClosedError

__all__ = ["LLM", "BackendClosedError", "LocalBackend", "default_model"]


class LocalBackend:
    """Programs on an LLM of this process.

    What follows from a finished call (tokenising, the next call) runs on a thread of the backend, so that it never
    holds up the engine.

    Attributes:
        llm: the model and its engine.
    """

    def __init__(self, model: LLM | str | None = None, **llm_options: Any) -> None:
        """Use an LLM there is, or load one: `model` and `llm_options` are then those of LLM.

        Raises:
            ModelLoadError: the model cannot be found or read.
            InvalidConfigError: an option is unknown or out of range.
        """
        self._owns_llm = not isinstance(model, LLM)
        self.llm = model if isinstance(model, LLM) else LLM(model, **llm_options)
        self._lock = threading.Lock()
        self._running: set[RequestHandle] = set()
        self._is_closed = False
        self._continuations: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run_continuations, name="ramet-continuations", daemon=True)
        self._thread.start()

    # The Backend protocol

    def encode(self, segments: Sequence[TextSegment], *, at_start: bool) -> list[int]:
        pieces = [RuntimeSegment(segment.text, segment.is_template) for segment in segments]
        return self.llm.tokenizer.encode_segments(pieces, is_text_start=at_start)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.llm.tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def role_prefix(self, messages: Sequence[Message], role: str) -> Sequence[TextSegment]:
        return _segments(self.llm.tokenizer.chat_template.role_prefix(messages, role))

    def role_suffix(self, messages: Sequence[Message], role: str) -> Sequence[TextSegment]:
        return _segments(self.llm.tokenizer.chat_template.role_suffix(messages, role))

    def chat_segments(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> Sequence[TextSegment]:
        return _segments(self.llm.tokenizer.chat_template.segments(messages, add_generation_prompt, tools))

    def generate(self, call: GenerateCall) -> Generation:
        """Raises InvalidRequestError if the call can never run: a prompt beyond the context limit, or a constraint that
        cannot be enforced."""
        request = self._request(
            call.prompt_token_ids,
            call.sampling_params,
            shared_prefix_len=call.shared_prefix_len,
            num_healable_tokens=call.num_healable_tokens,
            label=call.name,
            prompt_logprobs_start=call.prompt_logprobs_start,
            program=_request_program(call.program),
        )
        (handle,) = self._submit([request])
        generation = LocalGeneration(handle)
        self._when_done(handle, generation.settle)
        return generation

    def score(self, call: ScoreCall) -> Scoring:
        """One request for all continuations. Raises InvalidRequestError if one of them can never run."""
        request = self._request(
            call.prompt_token_ids,
            SamplingParams(),
            shared_prefix_len=call.shared_prefix_len,
            continuations=call.continuations,
            label=call.name,
            program=_request_program(call.program),
        )
        (handle,) = self._submit([request])
        scoring: Scoring = Handle(on_cancel=handle.abort)
        self._when_done(handle, lambda: _settle_scoring(scoring, handle.wait()))
        return scoring

    def hint(self, hint: ProgramHint) -> None:
        """Passes it on to the engine, if that keeps track of programs (see EngineConfig.is_program_aware)."""
        self.llm.tell_programs(partial(_tell, hint))

    def flush_cache(self) -> None:
        self.llm.reset_prefix_cache()

    def info(self) -> Mapping[str, object]:
        return {
            "backend": "local",
            "model": self.llm.model_name,
            "kernels": self.llm.kernels_name,
            "max_model_len": self.llm.max_model_len,
            "max_context_len": self.llm.max_context_len,
        }

    def cache_tree(self) -> CacheTree:
        """What the engine's prefix cache holds now, with texts."""
        snapshot = self.llm.cache_snapshot()
        nodes = (
            CacheNode(
                parent_idx=run.parent_idx,
                start=run.start,
                token_ids=run.token_ids,
                text=self.decode(run.token_ids),
                num_hits=run.num_hits,
                last_used=run.last_access,
                is_locked=run.num_running > 0,
            )
            for run in snapshot.runs
        )
        block_size = snapshot.block_size
        return CacheTree(snapshot.num_blocks * block_size, snapshot.num_free_blocks * block_size, tuple(nodes))

    # Life

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """Stop the threads, and the LLM if it was loaded here. Programs still running fail. Idempotent."""
        with self._lock:
            self._is_closed = True
            running = list(self._running)
        for handle in running:
            handle.abort()
        if self._owns_llm:
            self.llm.shutdown()
        self._continuations.put(lambda: None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> LocalBackend:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _request(self, token_ids: tuple[int, ...], params: SamplingParams, **fields: Any) -> Request:
        return Request(
            request_id=self.llm.new_request_id(), prompt_token_ids=token_ids, sampling_params=params, **fields
        )

    def _submit(self, requests: list[Request]) -> list[RequestHandle]:
        with self._lock:
            if self._is_closed:
                raise BackendClosedError("the backend is closed; make a new LocalBackend")
            handles = self.llm.submit_requests(requests)
            self._running.update(handles)
            return handles

    def _when_done(self, handle: RequestHandle, continuation: Callable[[], None]) -> None:
        def go_on() -> None:
            continuation()
            with self._lock:
                self._running.discard(handle)

        handle.add_done_callback(lambda _: self._continuations.put(go_on))

    def _run_continuations(self) -> None:
        """Until the backend is closed and every call it has submitted is settled."""
        is_over = False
        while not is_over:
            self._continuations.get()()
            with self._lock:
                is_over = self._is_closed and not self._running


class LocalGeneration(Generation):
    """A gen on the engine. Its pieces are fetched from the engine's handle once somebody wants to see them."""

    def __init__(self, handle: RequestHandle) -> None:
        super().__init__(on_cancel=handle.abort)
        self._handle = handle
        self._follow_lock = threading.Lock()
        self._is_followed = False

    def settle(self) -> None:
        """The engine has ended the request."""
        output = self._handle.wait()
        if output.error is not None:
            self.fail(output.error)
        else:
            self.finish(_generate_result(output))

    def chunks(self, timeout: float | None = None) -> Iterator[str]:
        self._follow()
        return super().chunks(timeout)

    def text_so_far(self) -> str:
        self._follow()
        return super().text_so_far()

    def add_listener(self, listener: Callable[[], None]) -> None:
        self._follow()
        super().add_listener(listener)

    def _follow(self) -> None:
        """Start to fetch pieces, once."""
        with self._follow_lock:
            if self._is_followed or self.is_done:
                return
            self._is_followed = True
        self._handle.add_chunk_callback(self._take)

    def _take(self, chunk: OutputChunk) -> None:
        if chunk.index == 0:
            self.push(chunk.text)


def _request_program(program: ProgramRef | None) -> RequestProgram | None:
    return None if program is None else RequestProgram(program.run_id, program.program_name, program.branch)


def _tell(hint: ProgramHint, programs: Programs) -> None:
    match hint:
        case ProgramForked(run_id, branch, first_idx, num_branches):
            programs.fork(run_id, branch, first_idx, num_branches)
        case ProgramJoined(run_id, branch, joined, num_calls_before):
            programs.join(run_id, branch, joined, num_calls_before)
        case CallExpected(run_id, branch, num_calls_before):
            programs.expect(run_id, branch, num_calls_before)
        case ProgramEnded(run_id):
            programs.end(run_id)


def _settle_scoring(scoring: Scoring, output: RequestOutput) -> None:
    """The engine has ended the request."""
    if output.error is not None:
        scoring.fail(output.error)
        return
    assert output.continuations is not None
    result = ScoreResult(
        logprobs=tuple(each.logprobs for each in output.continuations),
        end_logprobs=tuple(each.end_logprob for each in output.continuations),
        num_prompt_tokens=len(output.prompt_token_ids),
        num_cached_tokens=output.num_cached_tokens,
        queued_s=output.metrics.time_to_schedule,
    )
    scoring.finish(result)


def _generate_result(output: RequestOutput) -> GenerateResult:
    return GenerateResult(
        samples=tuple(_sample(completion) for completion in output.outputs),
        num_prompt_tokens=len(output.prompt_token_ids),
        num_cached_tokens=output.num_cached_tokens,
        first_token_s=output.metrics.time_to_first_token,
        num_healed_tokens=output.num_healed_tokens,
        prompt_logprobs=_prompt_logprobs(output),
        queued_s=output.metrics.time_to_schedule,
    )


def _prompt_logprobs(output: RequestOutput) -> tuple[TokenLogprob | None, ...] | None:
    if output.prompt_logprobs is None:
        return None
    return tuple(
        None if entry is None else _token_logprob(token_id, entry)
        for token_id, entry in zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
    )


def _sample(completion: CompletionOutput) -> Sample:
    assert completion.finish_reason is not None
    token_ids = tuple(completion.token_ids)
    return Sample(
        text=completion.text,
        token_ids=token_ids,
        kept_token_ids=token_ids[: completion.num_text_tokens],
        leftover_text=completion.leftover_text,
        finish_reason=str(completion.finish_reason),
        stop_reason=completion.stop_reason,
        logprobs=_token_logprobs(completion),
        complete=completion.complete,
    )


def _token_logprobs(completion: CompletionOutput) -> tuple[TokenLogprob, ...] | None:
    if completion.logprobs is None:
        return None
    return tuple(
        _token_logprob(token_id, entry)
        for token_id, entry in zip(completion.token_ids, completion.logprobs, strict=True)
    )


def _token_logprob(token_id: int, entry: TokenLogprobs) -> TokenLogprob:
    return TokenLogprob(
        token_id, entry[token_id].logprob, tuple((other, item.logprob) for other, item in entry.items())
    )


def _segments(pieces: Sequence[RuntimeSegment]) -> tuple[TextSegment, ...]:
    return tuple(TextSegment(piece.text, piece.is_template, piece.origin) for piece in pieces)
