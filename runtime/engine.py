"""Engine: the loop of continuous batching, one step at a time.

`Engine.step()` reads as five phases: intake, schedule, forward, sample, commit. The engine is not thread-safe: one
thread owns it and everything below it (`engine_loop.py` is that thread).

*Accepting* is what the next plan depends on: tokens are appended, full blocks become the tree's, and a sequence that
reached a stop token or its length is gone. *Processing* is text: detokenising, stop strings, outputs. Without overlap
one comes after the other. With it (ADR 13), a step is launched between the two:

    host     ... accept n | schedule n+1 | launch n+1 | process n | intake | wait ... sample n+1 | accept n+1 ...
    kernels  ... step n   |                           | step n+1 ------------------> |

Where a device computes by itself, it never waits for the host (ADR 29). A step is planned and launched before the
tokens are known that it goes on with; the device finds them where it has drawn them:

    host     ... wait for tokens n | accept n | begin sampling n+1 | schedule n+2 | launch n+2 | process n | intake ...
    device   ... sample n | step n+1 --------------------------------------------> | sample n+1 | step n+2 --------> ...

What ends, or turns out otherwise, while it is in a step in flight has computed there in vain: a token or two that are
thrown away and never cached.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..radix.prefix_cache import PrefixCache
from ..radix.snapshot import CacheSnapshot, take_snapshot
from . import beam_group, choice_scoring
from .batch import Batch
from .config import EngineConfig
from .errors import InvalidRequestError, RequestAbortedError
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
from .step_acceptance import StepAcceptance
from .step_failures import StepFailures
from .step_launcher import InFlightStep, StepLauncher
from .step_sampling import StepSampling
from .tiers.prefix_tiers import CacheReset, PrefixTiers, TieredStorage
from .tokenizer import Tokenizer
from .trace.recorder import TraceRecorder


@dataclass(frozen=True, slots=True)
class StepResults:
    """What came of a step.

    Attributes:
        chunks: the last ones of requests that it failed for.
        wasted: sequences that had ended before their results were there; all, if it failed.
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
        storage: the pool's memory with the tiers behind it, which the engine closes; None: there are none.

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
        storage: TieredStorage | None = None,
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
        self._tiers = PrefixTiers(self.cache, storage)
        self.scheduler = Scheduler(config, self.cache, self._tiers)
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
        self._in_flight: deque[InFlightStep] = deque()
        self._recorders: tuple[TraceRecorder, ...] = ()
        self._requests: dict[str, RequestState] = {}
        self._new_requests: dict[str, Request] = {}
        self._aborted_ids: list[str] = []
        self._sampling = StepSampling(self.sampler, self._requests)
        self._acceptance = StepAcceptance(
            self._requests, self.scheduler, self.cache, self.sampler, self._sequences, self.metrics
        )
        self._outputs = OutputProcessor(self._requests, self.scheduler, self.metrics, tokenizer, self._sequences)
        self._failures = StepFailures(self._requests, self.scheduler, self._outputs, self.metrics)

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
            What it added to each sample. A failing step fails the request that it failed for (see `StepFailures`).
        """
        with self.metrics.phase("intake"):
            chunks = self._intake()
        if self._launcher.is_pipelined:
            return chunks + self._step_pipelined()
        if self._launcher.is_overlapping:
            results = self._collect()
            self._launch(self._schedule())
        else:
            self._launch(self._schedule())
            results = self._collect()
        return chunks + self._process(results)

    def _step_pipelined(self) -> list[OutputChunk]:
        """Between two calls the last step is in flight, its sampling is not, and the one before is being sampled."""
        chunks: list[OutputChunk] = []
        results = self._collect() if len(self._in_flight) > 1 else StepResults()
        self._begin_sampling()
        batch = self._schedule_ahead()
        if batch is None or batch.is_empty:
            # Texts first: a sequence that a stop string ends must not get another token.
            chunks = self._process(results)
            results = self._collect()
            batch = self._schedule()
        self._launch(batch)
        return chunks + self._process(results)

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

    def reset_prefix_cache(self) -> CacheReset:
        """Forget every block no running sequence holds, and all that the tiers have. What this returns says when the
        directory has nothing of it any more: whoever asks the engine had better wait for that."""
        return self._tiers.reset()

    def metrics_snapshot(self) -> EngineMetrics:
        """What was counted so far. It does not change any more."""
        return replace(self.metrics.snapshot(), tiers=self._tiers.stats)

    def cache_snapshot(self) -> CacheSnapshot:
        """What the cache holds between two steps."""
        return take_snapshot(self.cache)

    def close(self) -> None:
        """Wait for the steps in flight, drop what they computed, and end their thread: then the runner may go. The
        engine must not be used any more."""
        while self._in_flight:
            self._launcher.wait(self._in_flight.popleft(), self.sampler)
        self._launcher.close()
        self._tiers.close()
        self._grammars.close()

    def _process(self, results: StepResults) -> list[OutputChunk]:
        with self.metrics.phase("commit"):
            chunks = results.chunks + self._outputs.process(results.accepted)
            if results.step is not None and self.config.check_invariants:
                self.cache.check_invariants()
        step = results.step
        if step is not None and step.recorders:
            batch, sizes = step.batch, self.runner.captured_batch_sizes
            num_padding = num_padding_rows(batch.num_tokens, len(batch.scheduled), sizes)
            unsampled = [] if step.draw is None else step.draw.unsampled
            for recorder in step.recorders:
                recorder.end(batch, self.metrics.phase_seconds, results.wasted, unsampled, num_padding)
        elif not self._in_flight:
            for recorder in self._recorders:
                recorder.note_ended()
        return chunks

    # -- intake ----------------------------------------------------------------------------------------------------

    def _intake(self) -> list[OutputChunk]:
        chunks = [chunk for request in self._new_requests.values() for chunk in self._start(request)]
        self._new_requests.clear()
        for request_id in self._aborted_ids:
            state = self._requests.get(request_id)
            if state is not None:
                self.metrics.num_aborted += 1
                error = RequestAbortedError(f"request {request_id} was aborted")
                chunks += self._outputs.give_up(state, FinishReason.ABORT, error)
        self._aborted_ids.clear()
        return chunks

    def _start(self, request: Request) -> list[OutputChunk]:
        """Queue a request's sequences. Returns what they begin with because a grammar forces it, or the request's end
        if the grammar raises."""
        accepted: list[AcceptedTokens] = []
        scoring, cause = choice_scoring.start(request), None
        try:
            sequences = (
                self._sequences.make(request)
                if scoring is None
                else self._sequences.make_branches(request, scoring.plan)
            )
        except Exception as error:
            sequences, cause = self._sequences.make(replace(request, grammar=None)), error
        search = beam_group.start_search(sequences[0]) if request.sampling_params.use_beam_search else None
        state = self._requests[request.request_id] = RequestState(request, sequences, search, scoring)
        self.metrics.num_requests += 1
        for sequence in sequences:
            if cause is not None:
                started = [AcceptedTokens(sequence, state, error=f"its constraint raised {cause!r}", cause=cause)]
            else:
                started = self._acceptance.start(sequence, state)
            accepted += started
            if sequence.finish_reason is None and not any(tokens.error for tokens in started):
                self.scheduler.add(sequence)
            else:
                sequence.status = SequenceStatus.FINISHED
        return self._outputs.process(accepted)

    # -- schedule and forward --------------------------------------------------------------------------------------

    def _schedule(self) -> Batch:
        with self.metrics.phase("schedule"):
            batch = self.scheduler.schedule()
            self._note_scheduled(batch)
        return batch

    def _schedule_ahead(self) -> Batch | None:
        """The next step, with the one in flight unfinished; None if its results are needed, or nothing else is left."""
        if self._in_flight and not self._in_flight[0].can_be_overtaken:
            return None
        with self.metrics.phase("schedule"):
            batch = self.scheduler.schedule_ahead()
            if batch is not None:
                self._note_scheduled(batch)
        return batch

    def _note_scheduled(self, batch: Batch) -> None:
        now = time.monotonic()
        for sequence in batch.admitted:
            metrics = self._requests[sequence.request.request_id].metrics
            if metrics.first_scheduled_time is None:
                metrics.first_scheduled_time = now
        for sequence in batch.preempted:
            self._requests[sequence.request.request_id].metrics.num_preemptions += 1

    def _launch(self, batch: Batch) -> None:
        """Set a step going; `_collect` finds out if it cannot even begin."""
        if batch.is_empty:
            return
        for recorder in self._recorders:
            recorder.begin(batch, self.scheduler, self.cache)
        if self._in_flight:
            batch.drawn_token_ids = self._in_flight[-1].drawn_token_ids
        with self.metrics.phase("forward"):
            self._in_flight.append(self._launcher.launch(batch, self._recorders))

    def _begin_sampling(self) -> None:
        """Set sampling of the only step in flight going; `_collect` finds out if that fails."""
        if self._in_flight and self._in_flight[0].draw is None:
            with self.metrics.phase("sample"), torch.inference_mode():
                self._in_flight[0].begin_sampling(self._sampling)

    def _collect(self) -> StepResults:
        """Wait for the oldest step in flight, for its tokens, and accept them."""
        if not self._in_flight:
            return StepResults()
        step = self._in_flight.popleft()
        try:
            logits, samples = self._tokens_of(step)
        except Exception as error:
            chunks = self._failures.handle(step, self._in_flight, error)
            return StepResults(step, chunks, wasted=[part.sequence for part in step.batch.scheduled])
        if step.draw is not None and self._in_flight:
            self._in_flight[0].void.update(step.draw.steered)
        wasted = step.wasted()
        with self.metrics.phase("commit"), torch.inference_mode():
            accepted = self._acceptance.accept(step.batch, logits, samples, step.void)
        return StepResults(step, [], accepted, wasted)

    def _tokens_of(self, step: InFlightStep) -> tuple[Tensor, list[SampledToken | None]]:
        """A step's logits, and one entry for each of its sequences."""
        with self.metrics.phase("forward"):
            logits = step.logits()
            drawn = None if step.draw is None else step.draw.wait()
        with self.metrics.phase("sample"), torch.inference_mode():
            if step.draw is None or drawn is None:
                return logits, self._sampling.sample(step.batch, logits)
            return logits, step.draw.finish(drawn)
