"""LLM: a model and its engine in this process: `generate`, `chat`, `stream`, `score`, for prompts and not programs."""

from __future__ import annotations

import dataclasses
import itertools
import secrets
import weakref
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar, Unpack

import torch
from tqdm import tqdm

from ..kernels.dispatch import check_device
from ..prompt_explanation import PromptExplanation
from ..radix.snapshot import CacheSnapshot
from ..sampling_params import SamplingParams
from ..suggestions import did_you_mean
from .choice_prompts import ScoredChoice, tokenize_choices
from .config import checked_num_threads, default_kernels, default_model
from .device_defaults import for_device
from .engine import Engine
from .engine_loop import EngineLoop, EnginePulse, RequestHandle
from .errors import InvalidRequestError
from .metrics import EngineMetrics
from .option_names import engine_config
from .outputs import OutputChunk, RequestOutput
from .programs import Programs
from .progress_bar import ProgressBar, has_terminal
from .prompts import Prompt, as_prompt_list, is_conversation, tokenize_prompt
from .request import Request, RequestFields
from .runner_factory import build_runner, runner_candidates
from .runner_spec import RunnerSpec
from .tiers.prefix_tiers import TieredStorage
from .tiers.registry import check_directory, open_tiers
from .tokenizer import load_tokenizer
from .trace.recorder import TraceRecorder
from .weights.resolve import resolve_model

T = TypeVar("T")


class LLM:
    """A loaded model behind a continuous-batching engine with a prefix cache.

    Args:
        model: "smollm2" (the bundled model, the default), a `.gguf` file, a Hugging Face directory with safetensors,
            or a hub id where there is a network.
        device: "auto" or a torch device.
        kernels: what computes the model, a key of RUNNERS in `runner_factory.py`; None takes the fastest there is.
        num_threads: CPU threads of the kernels, of all processes together; None takes the cores available.
        show_progress: draw progress bars while loading; None does so on a terminal.
        engine_options: any field of EngineConfig, such as num_blocks=..., max_num_batched_tokens=.... With
            tensor_parallel_size=N this process and N - 1 others, which it starts and ends, compute the model together.

    Raises:
        ModelLoadError: the model cannot be found or read.
        InvalidConfigError: an option is unknown or out of range, or the model does not divide by tensor_parallel_size.
        TensorParallelError: another process ended while the model was loaded.

    Attributes:
        tokenizer: the model's tokenizer.
        config: the engine's options.
        model_name: what was asked for.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        device: str = "auto",
        kernels: str | None = None,
        num_threads: int | None = None,
        show_progress: bool | None = None,
        **engine_options: Any,
    ) -> None:
        self.config = engine_config(engine_options)
        self.model_name = default_model() if model is None else model
        self.num_threads = checked_num_threads(num_threads)
        torch.set_num_threads(self.num_threads)
        kernels = default_kernels() if kernels is None else kernels
        candidates = runner_candidates(kernels, device, self.config.tensor_parallel_size)
        self.config = for_device(self.config, check_device(device).type, given=engine_options)
        check_directory(self.config)
        checkpoint = resolve_model(self.model_name)
        self.tokenizer = load_tokenizer(checkpoint.tokenizer_source)
        with ProgressBar("Loading weights", show_progress) as progress:
            spec = RunnerSpec(
                checkpoint=checkpoint,
                config=self.config,
                device=device,
                num_threads=self.num_threads,
                on_progress=progress.update,
            )
            loaded = build_runner(candidates, spec)
        self.model_config = loaded.model_config
        self.kernels_name = loaded.kernels_name
        self._close_runner = loaded.close
        storage: TieredStorage | None = None
        try:
            storage = open_tiers(self.config, loaded, checkpoint)
            self._engine = Engine(
                self.config, loaded.runner, self.tokenizer, loaded.max_model_len, loaded.sampler, storage
            )
            self._loop = EngineLoop(self._engine)
        except BaseException:
            if storage is not None:
                storage.close()
            if loaded.close is not None:
                loaded.close()
            raise
        # Also at exit: a thread that is inside a kernel when the interpreter goes away takes the process down with it.
        weakref.finalize(self, _end, self._loop, loaded.close)
        self._request_ids = itertools.count()
        self._id_prefix = secrets.token_hex(4)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
        **request_fields: Unpack[RequestFields],
    ) -> list[RequestOutput]:
        """Run prompts to their end; one output per prompt, in order.

        Args:
            prompts: one or many of: text, {"prompt_token_ids": [...]}, {"prompt": text}, or a list of chat messages.
            sampling_params: one for all, or one per prompt; None takes the defaults.
            use_tqdm: draw a progress bar; None does so on a terminal when there are several prompts.
            request_fields: `priority`, `cache_namespace`, `routing_key`, `retention`, `label` and `program` of every
                request (see Request).

        Raises:
            InvalidRequestError: a prompt is refused; the message names its index, and none is run.

        A prompt that fails while it runs does not disturb the others: its output has `error` set.
        """
        prompt_list = as_prompt_list(prompts)
        params_list = _one_per_prompt(sampling_params, len(prompt_list))
        requests = [
            _named(idx, lambda prompt=prompt, params=params: self._request(prompt, params, **request_fields))  # type: ignore[misc]
            for idx, (prompt, params) in enumerate(zip(prompt_list, params_list, strict=True))
        ]
        return self._wait_all(self.submit_requests(requests), use_tqdm)

    def chat(
        self,
        messages: Sequence[Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
        **request_fields: Unpack[RequestFields],
    ) -> list[RequestOutput]:
        """Like `generate` for one conversation (a list of messages) or a list of conversations."""
        if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
            raise InvalidRequestError(f"messages must be a list of messages or of conversations, not {messages!r}")
        conversations = [messages] if is_conversation(messages) else list(messages)
        for idx, conversation in enumerate(conversations):
            if not is_conversation(conversation):
                raise InvalidRequestError(
                    f"conversation {idx} must be a non-empty list of messages with 'role' and 'content', "
                    f"not {conversation!r}"
                )
        return self.generate(conversations, sampling_params, use_tqdm=use_tqdm, **request_fields)

    def score(
        self, prompt: Prompt, choices: Sequence[str], **request_fields: Unpack[RequestFields]
    ) -> list[ScoredChoice]:
        """How likely each of some texts is to follow a prompt; one entry per choice, in order.

        Each choice is tokenised together with the prompt (spaces at the prompt's end count with the choices). All are
        one request: choices of one token cost nothing beyond the prompt, others usually one step more.

        Args:
            prompt: as one of `generate`'s.
            choices: distinct texts, none empty.
            request_fields: as `generate`'s.

        Raises:
            InvalidRequestError: it is refused.
            RequestFailedError: it failed while it ran.
        """
        asked = tokenize_choices(prompt, choices, self.tokenizer)
        tokens = {"prompt": asked.text, "prompt_token_ids": asked.token_ids}
        request = self._request(tokens, SamplingParams(max_tokens=1), **request_fields)
        request = dataclasses.replace(request, continuations=asked.continuations)
        (output,) = self._wait_all(self.submit_requests([request]), use_tqdm=False)
        if output.error is not None:
            raise output.error
        assert output.continuations is not None
        return asked.scored(choices, output.continuations)

    def explain_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> PromptExplanation:
        """What `chat` sends to the model for a conversation, and who wrote which tokens of it. `print` shows a table.

        Raises:
            ChatTemplateError: the messages do not fit the model's template.
        """
        return self.tokenizer.explain_prompt(messages, tools=tools, add_generation_prompt=add_generation_prompt)

    def submit(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, **request_fields: Unpack[RequestFields]
    ) -> RequestHandle:
        """Queue one prompt and return at once. Raises InvalidRequestError if it is refused."""
        return self.submit_requests([self._request(prompt, sampling_params or SamplingParams(), **request_fields)])[0]

    def prepare(self, request: Request) -> Request:
        """A request checked and completed, its constraint compiled, as `submit_requests` does with others.

        Raises:
            InvalidRequestError: it is refused.
        """
        return self._engine.prepare(request)

    def submit_requests(self, requests: list[Request]) -> list[RequestHandle]:
        """Queue requests so that one step takes them all in; all are refused if one is. Ids must be unique."""
        handles = self._loop.submit_many(requests)
        for handle in handles:
            handle.owner = self
        return handles

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, **request_fields: Unpack[RequestFields]
    ) -> Generator[OutputChunk, None, None]:
        """Run one prompt and yield what each step adds. Leaving the loop early cancels the request."""
        handle = self.submit(prompt, sampling_params, **request_fields)
        try:
            yield from handle.stream()
        finally:
            handle.abort()

    def tell_programs(self, message: Callable[[Programs], None]) -> None:
        """Let the engine know what programs are going to do, as `message` tells it; after what was submitted before.

        Returns at once. Nothing happens if the engine keeps no track of programs (see EngineConfig.is_program_aware).
        """
        if self.config.is_program_aware:
            self._loop.tell(lambda engine: message(engine.scheduler.programs))

    def end_program(self, run_id: Hashable) -> None:
        """No request of this run of a program will come any more: forget it. Returns at once."""
        self.tell_programs(lambda programs: programs.end(run_id))

    def ask_engine(self, question: Callable[[Engine], T]) -> Future[T]:
        """Have a look at the engine taken on its thread between two steps. EngineStoppedError: it has ended."""
        return self._loop.ask(question)

    def new_request_id(self) -> str:
        """An id that no request has, whatever ids others choose."""
        return f"{self._id_prefix}-{next(self._request_ids)}"

    def reset_prefix_cache(self) -> int:
        """Forget every cached block that no running request holds, and all that lies in memory of the host and in
        `prefix_cache_dir`. Returns how many blocks of the pool were freed.

        Raises:
            PrefixesKeptError: it is forgotten here, but the directory keeps some of it.
        """
        return self._loop.call(lambda engine: engine.reset_prefix_cache()).wait()

    def cache_snapshot(self) -> CacheSnapshot:
        """What the prefix cache holds now, as plain data: the runs of tokens, what continues what, and how often each
        was hit. O(tokens in the cache), between two steps of the engine."""
        return self._loop.call(lambda engine: engine.cache_snapshot())

    def metrics(self) -> EngineMetrics:
        """Counters and phase times so far."""
        return self._loop.call(lambda engine: engine.metrics_snapshot())

    def tell(self, message: Callable[[Engine], None]) -> None:
        """Have the engine's thread call a short function between two steps, after what was submitted before. Returns at
        once; nothing happens if the engine was shut down."""
        self._loop.tell(message)

    def pulse(self) -> EnginePulse:
        """Whether the engine is alive, and how long it has been at its step. Waits for nothing, even if that hangs."""
        return self._loop.pulse()

    @contextmanager
    def trace(self, max_num_steps: int | None = None) -> Iterator[TraceRecorder]:
        """Write down what the scheduler does inside the block, for every request of this LLM. Several traces
        may be written at a time, each of its own block.

            with llm.trace() as recorder:
                llm.generate(prompts)
            recorder.trace.save_timeline("steps.html")

        Args:
            max_num_steps: keep the last steps only; None keeps all.

        Raises:
            InvalidConfigError: max_num_steps is less than one.
        """
        recorder = self._loop.call(lambda engine: engine.start_trace(self.model_name, max_num_steps))
        try:
            yield recorder
        finally:
            self._loop.call(lambda engine: engine.stop_trace(recorder))

    @property
    def max_model_len(self) -> int:
        """Longest context in tokens that the model is run with."""
        return self._engine.limits.max_model_len

    @property
    def max_context_len(self) -> int:
        """Longest context in tokens that a request may have: the model's limit, or the whole KV cache if smaller."""
        return self._engine.limits.max_context_len

    def shutdown(self) -> None:
        """Stop the engine's thread, and the processes of a parallel model. Idempotent."""
        _end(self._loop, self._close_runner)

    def __repr__(self) -> str:
        return f"LLM({self.model_name!r}, {self.kernels_name} kernels, context of {self.max_context_len} tokens)"

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _request(self, prompt: Prompt, params: SamplingParams, **request_fields: Unpack[RequestFields]) -> Request:
        unknown = sorted(set(request_fields) - set(RequestFields.__annotations__))
        if unknown:
            known = sorted(RequestFields.__annotations__)
            raise InvalidRequestError(
                f"unknown argument {unknown[0]!r}{did_you_mean(unknown[0], known)} a request may have {known}"
            )
        text, token_ids = tokenize_prompt(prompt, self.tokenizer)
        request = Request(
            request_id=self.new_request_id(),
            prompt=text,
            prompt_token_ids=token_ids,
            sampling_params=params,
            **request_fields,
        )
        return self.prepare(request)

    def _wait_all(self, handles: list[RequestHandle], use_tqdm: bool | None) -> list[RequestOutput]:
        is_shown = use_tqdm if use_tqdm is not None else len(handles) > 1 and has_terminal()
        try:
            return [
                handle.wait()
                for handle in tqdm(handles, desc="Generating", unit="prompt", disable=not is_shown, leave=False)
            ]
        except BaseException:  # Ctrl-C included: nothing goes on behind the caller's back
            for handle in handles:
                handle.abort()
            raise


def _end(loop: EngineLoop, close_runner: Callable[[], None] | None) -> None:
    loop.shutdown(cut_short=close_runner)
    if close_runner is not None:
        close_runner()


def _one_per_prompt(
    sampling_params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> list[SamplingParams]:
    if sampling_params is None:
        return [SamplingParams()] * num_prompts
    if isinstance(sampling_params, SamplingParams):
        return [sampling_params] * num_prompts
    if not isinstance(sampling_params, Sequence):
        raise InvalidRequestError(
            f"sampling_params must be a SamplingParams or a list of them, not {sampling_params!r}"
        )
    params_list = list(sampling_params)
    if len(params_list) != num_prompts:
        raise InvalidRequestError(
            f"{len(params_list)} sampling_params for {num_prompts} prompts: give one for all or one per prompt"
        )
    for idx, params in enumerate(params_list):
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError(f"sampling_params[{idx}] must be a SamplingParams, not {params!r}")
    return params_list


def _named(idx: int, make: Callable[[], Request]) -> Request:
    try:
        return make()
    except ValueError as error:
        raise InvalidRequestError(f"prompt {idx}: {error}") from error
