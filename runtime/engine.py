"""Engine: the loop of continuous batching, one step at a time.

`Engine.step()` reads as five phases: intake, schedule, forward, sample, commit. The engine is not thread-safe: one
thread owns it and everything below it (`engine_loop.py` is that thread).
"""

from __future__ import annotations

import logging
import random
import time
from dataclasses import replace

import torch
from torch import Tensor

from ..radix.prefix_cache import PrefixCache
from . import prompt_logprobs
from .batch import Batch, ScheduledSequence
from .config import EngineConfig
from .detokenizer import IncrementalDetokenizer
from .errors import InvalidRequestError, RequestAbortedError, RequestFailedError
from .logprobs import Logprob
from .metrics import EngineMetrics
from .outputs import FinishReason, OutputChunk, RequestOutput, TokenLogprobs
from .request import Request
from .request_check import RequestLimits, check_request
from .request_state import RequestState
from .runner import Runner
from .sampler import SampledToken, Sampler, SamplingRow
from .sampler_numpy import NumpySampler
from .scheduler import Scheduler
from .sequence import Sequence
from .tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class Engine:
    """Runs requests through continuous batching over the prefix cache.

    Args:
        runner: computes the steps.
        max_model_len: most tokens of one sequence.
        sampler: chooses the tokens; None takes NumpySampler.

    Attributes:
        limits: what a request may ask for here; immutable, so any thread may check against it.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        tokenizer: Tokenizer,
        max_model_len: int,
        sampler: Sampler | None = None,
    ) -> None:
        self.config = config
        self.runner = runner
        self.tokenizer = tokenizer
        self.cache = PrefixCache(
            runner.num_blocks, runner.block_size, config.eviction_policy, enable_sharing=config.enable_prefix_caching
        )
        self.scheduler = Scheduler(config, self.cache)
        self.sampler: Sampler = sampler or NumpySampler()
        self.metrics = EngineMetrics()
        self.limits = RequestLimits(
            vocab_size=runner.vocab_size,
            max_model_len=max_model_len,
            num_slots=runner.num_blocks * runner.block_size,
            max_num_batched_tokens=None if config.enable_chunked_prefill else config.max_num_batched_tokens,
        )
        self._requests: dict[str, RequestState] = {}
        self._new_requests: list[Request] = []
        self._aborted_ids: list[str] = []
        self._num_arrivals = 0
        self._seeds = random.Random(config.seed)

    @property
    def has_work(self) -> bool:
        return bool(self._new_requests or self._aborted_ids or self.scheduler.has_work)

    def add_request(self, request: Request) -> None:
        """Queue a request; it is taken in by the next step.

        Raises:
            InvalidRequestError: it is malformed, can never fit, or its id is in use. Nothing is queued.
        """
        check_request(request, self.limits)
        if request.request_id in self._requests or any(
            request.request_id == other.request_id for other in self._new_requests
        ):
            raise InvalidRequestError(f"request_id={request.request_id!r} is already in use by a live request")
        self._new_requests.append(request)

    def abort_request(self, request_id: str) -> None:
        """Cancel a request; the next step frees what it holds. Unknown or finished ids are ignored."""
        self._aborted_ids.append(request_id)

    def step(self) -> list[OutputChunk]:
        """One iteration over all that is running and waiting.

        Returns:
            What it added to each sample. A failing step fails the requests it was computing and no others.
        """
        with self.metrics.phase("intake"):
            chunks = self._intake()
        with self.metrics.phase("schedule"):
            batch = self.scheduler.schedule()
            self._note_scheduled(batch, time.monotonic())
        if batch.is_empty:
            return chunks
        try:
            with self.metrics.phase("forward"), torch.inference_mode():
                logits = self.runner.forward(batch)
            with self.metrics.phase("sample"), torch.inference_mode():
                samples = self._sample(batch, logits)
        except Exception as error:
            logger.exception("A step failed; its %d sequences are given up", len(batch.scheduled))
            return chunks + self._fail_batch(batch, error)
        with self.metrics.phase("commit"), torch.inference_mode():
            chunks += self._commit(batch, logits, samples)
        return chunks

    def reset_prefix_cache(self) -> int:
        """Forget every block no running sequence holds. Returns the number of blocks freed."""
        return self.cache.reset()

    # -- intake ----------------------------------------------------------------------------------------------------

    def _intake(self) -> list[OutputChunk]:
        for request in self._new_requests:
            self._start(request)
        self._new_requests.clear()
        chunks = []
        for request_id in self._aborted_ids:
            state = self._requests.get(request_id)
            if state is not None:
                self.metrics.num_aborted += 1
                error = RequestAbortedError(f"request {request_id} was aborted")
                chunks += self._give_up(state, FinishReason.ABORT, error)
        self._aborted_ids.clear()
        return chunks

    def _start(self, request: Request) -> None:
        params = request.sampling_params
        seed = params.seed if params.seed is not None else self._seeds.getrandbits(63)
        eos_token_ids = frozenset[int]() if params.ignore_eos else self.tokenizer.eos_token_ids
        stop_token_ids = eos_token_ids.union(params.stop_ids)
        sequences = []
        for sample_idx in range(params.n):
            sequence = Sequence(
                request=request,
                sample_idx=sample_idx,
                arrival_idx=self._num_arrivals,
                max_tokens=self.limits.max_tokens(request),
                seed=seed,
                stop_token_ids=stop_token_ids,
                detokenizer=IncrementalDetokenizer(
                    self.tokenizer,
                    params.stop_strings,
                    skip_special_tokens=params.skip_special_tokens,
                    include_stop_str_in_output=params.include_stop_str_in_output,
                    min_tokens=params.min_tokens,
                ),
            )
            self._num_arrivals += 1
            sequences.append(sequence)
            self.scheduler.add(sequence)
        self._requests[request.request_id] = RequestState(request, sequences)
        self.metrics.num_requests += 1

    def _note_scheduled(self, batch: Batch, now: float) -> None:
        for sequence in batch.admitted:
            metrics = self._requests[sequence.request.request_id].metrics
            if metrics.first_scheduled_time is None:
                metrics.first_scheduled_time = now
        for sequence in batch.preempted:
            self._requests[sequence.request.request_id].metrics.num_preemptions += 1

    # -- sample ----------------------------------------------------------------------------------------------------

    def _sample(self, batch: Batch, logits: Tensor) -> list[SampledToken | None]:
        """One entry per scheduled sequence, None where the step did not reach its last token."""
        last_rows: list[int] = []
        rows: list[SamplingRow] = []
        row = 0
        for part in batch.scheduled:
            row += part.num_logit_rows
            if part.is_sampled:
                last_rows.append(row - 1)
                rows.append(self._sampling_row(part.sequence))
        if not rows:
            return [None] * len(batch.scheduled)
        is_all = len(last_rows) == logits.shape[0]
        sampled = iter(self.sampler.sample(logits if is_all else logits[last_rows], rows))
        return [next(sampled) if part.is_sampled else None for part in batch.scheduled]

    def _sampling_row(self, sequence: Sequence) -> SamplingRow:
        if sequence.num_output_tokens >= sequence.request.sampling_params.min_tokens:
            return sequence.sampling_row
        return replace(sequence.sampling_row, banned_token_ids=sequence.stop_token_ids)

    # -- commit ----------------------------------------------------------------------------------------------------

    def _commit(self, batch: Batch, logits: Tensor, samples: list[SampledToken | None]) -> list[OutputChunk]:
        now = time.monotonic()
        self.metrics.num_steps += 1
        self.metrics.num_preemptions = self.scheduler.num_preemptions
        chunks: list[OutputChunk] = []
        row = 0
        for part, sampled in zip(batch.scheduled, samples, strict=True):
            sequence, first_row = part.sequence, row
            row += part.num_logit_rows
            if sequence.is_finished:  # a sibling sample failed in this very step
                continue
            state = self._requests[sequence.request.request_id]
            self._commit_computed(part, state)
            if sequence.prompt_logprobs is not None:
                prompt_logprobs.record(part, logits[first_row:row], self.cache, self.sampler)
            if sampled is None:
                continue
            if sampled.error is not None:
                chunks += self._fail_request(sequence, sampled.error)
            else:
                chunks.append(self._commit_token(sequence, state, sampled, now))
        if self.config.check_invariants:
            self.cache.check_invariants()
        return chunks

    def _commit_computed(self, part: ScheduledSequence, state: RequestState) -> None:
        """The step computed the keys and values of this part: make full blocks shareable, and count."""
        sequence, end = part.sequence, part.end
        assert sequence.block_table is not None
        self.cache.commit(sequence.block_table, end)
        self.metrics.num_computed_tokens += part.num_new_tokens
        num_prompt_tokens = sequence.num_prompt_tokens
        if part.start < num_prompt_tokens:
            state.metrics.num_computed_prompt_tokens += min(end, num_prompt_tokens) - part.start
            if end == num_prompt_tokens and sequence.num_output_tokens == 0:
                self.metrics.num_prompt_tokens += num_prompt_tokens
                self.metrics.num_cached_tokens += sequence.num_cached_tokens or 0

    def _commit_token(self, sequence: Sequence, state: RequestState, sampled: SampledToken, now: float) -> OutputChunk:
        if state.metrics.first_token_time is None:
            state.metrics.first_token_time = now
        sequence.token_ids.append(sampled.token_id)
        self.metrics.num_generated_tokens += 1
        logprobs = self._take_logprobs(sequence, sampled)
        text = self._advance_text(sequence, sampled.token_id)
        if sequence.finish_reason is None and sequence.num_remaining_tokens == 0:
            sequence.finish_reason = FinishReason.LENGTH
        output = None
        if sequence.finish_reason is not None:
            text += sequence.detokenizer.finish()
            self.scheduler.remove(sequence)
            output = self._finish_if_done(state, now)
        return OutputChunk(
            request_id=sequence.request.request_id,
            index=sequence.sample_idx,
            text=text,
            token_ids=(sampled.token_id,),
            logprobs=None if logprobs is None else (logprobs,),
            finish_reason=sequence.finish_reason,
            stop_reason=sequence.stop_reason,
            output=output,
        )

    def _advance_text(self, sequence: Sequence, token_id: int) -> str:
        """Detokenise one more token and test every way to stop. Sets finish_reason and stop_reason."""
        if token_id in sequence.stop_token_ids:
            sequence.finish_reason = FinishReason.STOP
            sequence.stop_reason = token_id if token_id in sequence.request.sampling_params.stop_ids else None
            return ""
        text = sequence.detokenizer.append((token_id,))
        if sequence.detokenizer.stop_string is not None:
            sequence.finish_reason = FinishReason.STOP
            sequence.stop_reason = sequence.detokenizer.stop_string
        return text

    def _take_logprobs(self, sequence: Sequence, sampled: SampledToken) -> TokenLogprobs | None:
        if sequence.logprobs is None:
            return None
        assert sampled.logprobs is not None
        logprobs = self._with_text(sampled.logprobs)
        sequence.cumulative_logprob += logprobs[sampled.token_id].logprob
        sequence.logprobs.append(logprobs)
        return logprobs

    def _with_text(self, logprobs: TokenLogprobs) -> TokenLogprobs:
        return {
            token_id: Logprob(entry.logprob, entry.rank, self.tokenizer.decode([token_id], skip_special_tokens=False))
            for token_id, entry in logprobs.items()
        }

    # -- endings ---------------------------------------------------------------------------------------------------

    def _finish_if_done(self, state: RequestState, now: float) -> RequestOutput | None:
        if not state.is_finished:
            return None
        state.metrics.finished_time = now
        del self._requests[state.request.request_id]
        output = state.output()
        if output.prompt_logprobs is not None:
            output.prompt_logprobs = [entry and self._with_text(entry) for entry in output.prompt_logprobs]
        self.metrics.num_finished += output.error is None
        return output

    def _give_up(self, state: RequestState, reason: FinishReason, error: Exception) -> list[OutputChunk]:
        """End every live sequence of a request; its blocks are free when this returns."""
        live = [sequence for sequence in state.sequences if not sequence.is_finished]
        for sequence in live:
            sequence.finish_reason = reason
            sequence.error = error
            self.scheduler.remove(sequence)
        output = self._finish_if_done(state, time.monotonic())
        last = state.sequences[-1]
        return [OutputChunk(state.request.request_id, last.sample_idx, "", (), finish_reason=reason, output=output)]

    def _fail_request(self, sequence: Sequence, reason: str) -> list[OutputChunk]:
        request_id = sequence.request.request_id
        self.metrics.num_failed += 1
        error = RequestFailedError(f"request {request_id} failed at token {sequence.num_output_tokens}: {reason}")
        return self._give_up(self._requests[request_id], FinishReason.ERROR, error)

    def _fail_batch(self, batch: Batch, cause: Exception) -> list[OutputChunk]:
        chunks: list[OutputChunk] = []
        for request_id in dict.fromkeys(part.sequence.request.request_id for part in batch.scheduled):
            self.metrics.num_failed += 1
            error = RequestFailedError(f"request {request_id} failed: the step that computed it raised {cause!r}")
            error.__cause__ = cause
            chunks += self._give_up(self._requests[request_id], FinishReason.ERROR, error)
        return chunks
