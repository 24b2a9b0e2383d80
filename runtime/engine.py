"""Engine: the loop of continuous batching, one step at a time.

`Engine.step()` reads as five phases: intake, schedule, forward, sample, commit. The engine is not thread-safe: one
thread owns it and everything below it (`engine_loop.py` is that thread).

With the overlap scheduler a step is launched before the results of the one before are processed:

    host     ... accept n | schedule n+1 | launch n+1 | process n | intake | wait ... sample n+1 | accept n+1 ...
    kernels  ... step n   |                           | step n+1 ------------------> |

*Accepting* is what the next plan depends on: tokens are appended, full blocks become the tree's, and a sequence that
reached a stop token or its length is gone. *Processing* is text: detokenising, stop strings, outputs. A sequence that a
stop string ends is in the next step already, for one token that is thrown away and never cached.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..radix.prefix_cache import PrefixCache
from ..radix.snapshot import CacheSnapshot, take_snapshot
from . import beam_group, choice_scoring, prompt_logprobs
from .batch import Batch, ScheduledSequence
from .config import EngineConfig
from .errors import InvalidRequestError, RequestAbortedError, RequestFailedError
from .grammar.compiler import GrammarCompiler
from .grammar.vocabulary import GrammarVocabulary
from .metrics import EngineMetrics
from .output_processor import AcceptedTokens, OutputProcessor
from .outputs import FinishReason, OutputChunk
from .padding import num_padding_rows
from .request import Request
from .request_check import RequestLimits
from .request_preparation import RequestPreparer
from .request_state import RequestState
from .runner import Runner
from .sampler import SampledToken, Sampler
from .sampler_numpy import NumpySampler
from .scheduler import Scheduler
from .sequence import Sequence, SequenceStatus
from .sequence_factory import SequenceFactory
from .step_launcher import InFlightStep, StepLauncher
from .step_sampling import StepSampling, error_of
from .tokenizer import Tokenizer
from .trace.recorder import TraceRecorder

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepResults:
    """What came of a step.

    Attributes:
        chunks: the last ones of its requests, if it failed.
        wasted: sequences that had ended before their results were there.
    """

    step: InFlightStep | None = None
    chunks: list[OutputChunk] = field(default_factory=list)
    accepted: list[AcceptedTokens] = field(default_factory=list)
    wasted: list[Sequence] = field(default_factory=list)


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
            runner.num_blocks,
            runner.block_size,
            config.eviction_policy,
            enable_sharing=config.enable_prefix_caching,
            keeps_expected=config.keep_open_programs,
        )
        self.scheduler = Scheduler(config, self.cache)
        self.sampler: Sampler = sampler or NumpySampler()
        self.metrics = EngineMetrics()
        self.limits = RequestLimits(
            vocab_size=runner.vocab_size,
            max_model_len=max_model_len,
            num_slots=runner.num_blocks * runner.block_size,
            block_size=runner.block_size,
            is_sharing=config.enable_prefix_caching,
            max_num_seqs=min(config.max_num_seqs, config.max_num_batched_tokens, config.max_num_logit_rows),
            max_num_batched_tokens=None if config.enable_chunked_prefill else config.max_num_batched_tokens,
        )
        self._grammars = GrammarCompiler(GrammarVocabulary(tokenizer, runner.vocab_size))
        self._preparer = RequestPreparer(self.limits, self._grammars)
        self._sequences = SequenceFactory(tokenizer, self._grammars.vocabulary, self.limits, config)
        self._launcher = StepLauncher(runner, is_overlapping=bool(config.overlap_schedule))
        self._in_flight: InFlightStep | None = None
        self._recorders: tuple[TraceRecorder, ...] = ()
        self._requests: dict[str, RequestState] = {}
        self._new_requests: dict[str, Request] = {}
        self._aborted_ids: list[str] = []
        self._sampling = StepSampling(self.sampler, self._requests)
        self._outputs = OutputProcessor(self._requests, self.scheduler, self.metrics, tokenizer, self._sequences)

    @property
    def has_work(self) -> bool:
        return bool(self._in_flight or self._new_requests or self._aborted_ids or self.scheduler.has_work)

    def prepare(self, request: Request) -> Request:
        """Check a request and compile its constraint: all that can be done on any thread before it is added.

        Raises:
            InvalidRequestError: it is malformed or can never be served.
        """
        return self._preparer.prepare(request)

    def add_request(self, request: Request) -> None:
        """Queue a request; it is taken in by the next step.

        Raises:
            InvalidRequestError: it is malformed, can never fit, or its id is in use. Nothing is queued.
        """
        request = self.prepare(request)
        if request.request_id in self._requests or request.request_id in self._new_requests:
            raise InvalidRequestError(f"request_id={request.request_id!r} is already in use by a live request")
        self._new_requests[request.request_id] = request

    def abort_request(self, request_id: str) -> None:
        """Cancel a request; the next step frees what it holds. Unknown or finished ids are ignored."""
        if request_id in self._requests or request_id in self._new_requests:
            self._aborted_ids.append(request_id)

    def step(self) -> list[OutputChunk]:
        """One iteration over all that is running and waiting.

        Returns:
            What it added to each sample. A failing step fails the requests it was computing and no others.
        """
        with self.metrics.phase("intake"):
            chunks = self._intake()
        if self._launcher.is_overlapping:
            results = self._collect()
            self._launch(self._schedule())
        else:
            self._launch(self._schedule())
            results = self._collect()
        with self.metrics.phase("commit"):
            chunks += results.chunks + self._outputs.process(results.accepted)
        self._record(results)
        return chunks

    def start_trace(self, model_name: str, max_num_steps: int | None = None) -> TraceRecorder:
        """Write down every step from the next one on. Other traces go on beside it.

        Args:
            max_num_steps: keep the last steps only; None keeps all.

        Raises:
            InvalidConfigError: max_num_steps is less than one.
        """
        recorder = TraceRecorder(model_name, self.config, self.metrics.phase_seconds, max_num_steps)
        self._recorders += (recorder,)
        return recorder

    def stop_trace(self, recorder: TraceRecorder) -> None:
        """Write down no more steps in this trace, but for the one in flight. Nothing happens if it has ended."""
        recorder.note_ended(self._aborted_ids)
        self._recorders = tuple(other for other in self._recorders if other is not recorder)

    def reset_prefix_cache(self) -> int:
        """Forget every block no running sequence holds. Returns the number of blocks freed."""
        return self.cache.reset()

    def cache_snapshot(self) -> CacheSnapshot:
        """What the cache holds between two steps."""
        return take_snapshot(self.cache)

    def close(self) -> None:
        """Wait for the step in flight, if there is one, and end its thread. The engine must not be used any more."""
        self._launcher.close()
        self._grammars.close()

    def _record(self, results: StepResults) -> None:
        if results.step is not None and results.step.recorders:
            batch, sizes = results.step.batch, self.runner.captured_batch_sizes
            num_padding = num_padding_rows(batch.num_tokens, len(batch.scheduled), sizes)
            for recorder in results.step.recorders:
                recorder.end(batch, self.metrics.phase_seconds, results.wasted, num_padding)
        elif self._in_flight is None:
            for recorder in self._recorders:
                recorder.note_ended()

    # -- intake ----------------------------------------------------------------------------------------------------

    def _intake(self) -> list[OutputChunk]:
        started = [tokens for request in self._new_requests.values() for tokens in self._start(request)]
        self._new_requests.clear()
        chunks = self._outputs.process(started)
        for request_id in self._aborted_ids:
            state = self._requests.get(request_id)
            if state is not None:
                self.metrics.num_aborted += 1
                error = RequestAbortedError(f"request {request_id} was aborted")
                chunks += self._outputs.give_up(state, FinishReason.ABORT, error)
        self._aborted_ids.clear()
        return chunks

    def _start(self, request: Request) -> list[AcceptedTokens]:
        """Queue a request's sequences. Returns the tokens they begin with because a grammar forces them."""
        scoring = choice_scoring.start(request)
        sequences = (
            self._sequences.make(request) if scoring is None else self._sequences.make_branches(request, scoring.plan)
        )
        search = beam_group.start_search(sequences[0]) if request.sampling_params.use_beam_search else None
        state = self._requests[request.request_id] = RequestState(request, sequences, search, scoring)
        self.metrics.num_requests += 1
        accepted = []
        for sequence in sequences:
            if sequence.constraint is not None and not sequence.is_beam:
                forced = sequence.constraint.start(sequence.max_tokens)
                self._append_forced(sequence, forced)
                if forced or sequence.finish_reason is not None:
                    accepted.append(AcceptedTokens(sequence, state, tuple(forced)))
            if sequence.finish_reason is None:
                self.scheduler.add(sequence)
            else:
                sequence.status = SequenceStatus.FINISHED
        return accepted

    # -- schedule and forward --------------------------------------------------------------------------------------

    def _schedule(self) -> Batch:
        with self.metrics.phase("schedule"):
            batch = self.scheduler.schedule()
            now = time.monotonic()
            for sequence in batch.admitted:
                metrics = self._requests[sequence.request.request_id].metrics
                if metrics.first_scheduled_time is None:
                    metrics.first_scheduled_time = now
            for sequence in batch.preempted:
                self._requests[sequence.request.request_id].metrics.num_preemptions += 1
        return batch

    def _launch(self, batch: Batch) -> None:
        """Set a step going; `_collect` finds out if it cannot even begin."""
        if batch.is_empty:
            return
        for recorder in self._recorders:
            recorder.begin(batch, self.scheduler, self.cache)
        with self.metrics.phase("forward"):
            self._in_flight = self._launcher.launch(batch, self._recorders)

    def _collect(self) -> StepResults:
        """Wait for the step in flight, sample, and accept."""
        step, self._in_flight = self._in_flight, None
        if step is None:
            return StepResults()
        try:
            with self.metrics.phase("forward"):
                logits = step.wait()
            with self.metrics.phase("sample"), torch.inference_mode():
                samples = self._sampling.sample(step.batch, logits)
        except Exception as error:
            return StepResults(step, self._fail_batch(step.batch, error))
        wasted = [part.sequence for part in step.batch.scheduled if part.sequence.is_finished]
        with self.metrics.phase("commit"), torch.inference_mode():
            return StepResults(step, [], self._accept(step.batch, logits, samples), wasted)

    def _fail_batch(self, batch: Batch, cause: Exception) -> list[OutputChunk]:
        logger.error("A step failed; its %d sequences are given up", len(batch.scheduled), exc_info=cause)
        chunks: list[OutputChunk] = []
        # A fork that does not run in this step still needs the copy that was to be made before it.
        sequences = [*(part.sequence for part in batch.scheduled), *batch.forked]
        for request_id, request in {sequence.request.request_id: sequence.request for sequence in sequences}.items():
            state = self._requests.get(request_id)
            if state is None or state.request is not request:  # it ended while the step was in flight
                continue
            self.metrics.num_failed += 1
            error = RequestFailedError(f"request {request_id} failed: the step that computed it raised {cause!r}")
            error.__cause__ = cause
            chunks += self._outputs.give_up(state, FinishReason.ERROR, error)
        return chunks

    # -- commit ----------------------------------------------------------------------------------------------------

    def _accept(self, batch: Batch, logits: Tensor, samples: list[SampledToken | None]) -> list[AcceptedTokens]:
        """Enter a step's results: cached blocks, new tokens, and the ends that need no text to be seen."""
        self.metrics.num_steps += 1
        self.metrics.num_preemptions = self.scheduler.num_preemptions
        accepted: list[AcceptedTokens] = []
        searches: dict[str, RequestState] = {}
        row = 0
        for part, sampled in zip(batch.scheduled, samples, strict=True):
            sequence, first_row = part.sequence, row
            row += part.num_logit_rows
            self.metrics.num_computed_tokens += part.num_new_tokens
            if sequence.is_finished:
                self.metrics.num_wasted_tokens += part.num_new_tokens
                continue
            state = self._requests[sequence.request.request_id]
            rows = logits[first_row:row]
            if sampled is None and (sequence.prompt_logprobs is not None or sequence.branch is not None):
                sampled = error_of(rows)
            if sampled is not None and sampled.error is not None:  # nothing of it is cached or noted for others
                self.scheduler.remove(sequence)
                accepted.append(AcceptedTokens(sequence, state, error=sampled.error))
                continue
            self._accept_computed(part, state)
            if sequence.prompt_logprobs is not None:
                prompt_logprobs.record(part, rows, self.cache, self.sampler)
            if sequence.branch is not None:
                if choice_scoring.advance(part, rows, state, self.scheduler, self._sequences, self.sampler):
                    accepted.append(AcceptedTokens(sequence, state))
            elif sampled is not None:
                accepted.append(self._accept_token(sequence, state, sampled))
            elif sequence.is_beam and part.is_sampled:
                searches[state.request.request_id] = state
        for state in searches.values():
            accepted += self._advance_beams(state)
        if self.config.check_invariants:
            self.cache.check_invariants()
        return accepted

    def _accept_computed(self, part: ScheduledSequence, state: RequestState) -> None:
        """The step computed the keys and values of this part: make full blocks shareable, and count."""
        sequence, end = part.sequence, part.end
        assert sequence.block_table is not None
        self.cache.commit(sequence.block_table, end)
        num_prompt_tokens = sequence.num_prompt_tokens
        if part.start < num_prompt_tokens:
            state.metrics.num_computed_prompt_tokens += min(end, num_prompt_tokens) - part.start
        if end >= num_prompt_tokens and sequence.is_prompt_new:
            sequence.is_prompt_counted = True
            self.metrics.num_prompt_tokens += num_prompt_tokens
            self.metrics.num_cached_tokens += sequence.num_cached_tokens or 0

    def _accept_token(self, sequence: Sequence, state: RequestState, sampled: SampledToken) -> AcceptedTokens:
        """Append a sampled token, and those that the sequence's grammar forces behind it."""
        token_id, constraint = sampled.token_id, sequence.constraint
        is_stop_token = token_id in sequence.stop_token_ids if constraint is None else constraint.ends_with(token_id)
        sequence.token_ids.append(token_id)
        forced: list[int] = []
        if is_stop_token:
            sequence.has_stop_token = True
            sequence.finish_reason = FinishReason.STOP
            if token_id in sequence.request.sampling_params.stop_ids:
                sequence.stop_reason = token_id
        elif constraint is not None:
            accepted = constraint.advance(token_id, sequence.num_remaining_tokens)
            if accepted is None:
                self.scheduler.remove(sequence)
                return AcceptedTokens(sequence, state, error=constraint.dead_end)
            forced = accepted
        self._append_forced(sequence, forced)
        self.metrics.num_generated_tokens += 1
        if sequence.finish_reason is not None:
            self.scheduler.remove(sequence)
        return AcceptedTokens(sequence, state, (token_id, *forced), sampled.logprobs)

    def _append_forced(self, sequence: Sequence, forced: list[int]) -> None:
        """Append tokens that need not be sampled, and see whether the sequence has ended."""
        sequence.token_ids += forced
        self.metrics.num_generated_tokens += len(forced)
        self.metrics.num_forced_tokens += len(forced)
        if sequence.finish_reason is None:
            if sequence.constraint is not None and sequence.constraint.is_finished:
                sequence.finish_reason = FinishReason.STOP
            elif sequence.num_remaining_tokens <= 0:
                sequence.finish_reason = FinishReason.LENGTH

    def _advance_beams(self, state: RequestState) -> list[AcceptedTokens]:
        is_over = beam_group.advance(state, self.scheduler, self._sequences)
        if state.metrics.first_token_time is None:
            state.metrics.first_token_time = time.monotonic()
        self.metrics.num_generated_tokens += len(state.sequences)
        if not is_over:
            return []
        assert state.beam_search is not None
        constraint = state.sequences[0].constraint
        error = None if constraint is None or state.beam_search.hypotheses else constraint.dead_end
        return [AcceptedTokens(state.sequences[0], state, error=error)]
