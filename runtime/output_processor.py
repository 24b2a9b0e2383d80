"""OutputProcessor: what a step sampled, as text for the caller. Nothing here decides what the next step computes but
the stop strings: they are found in text, so a sequence they end may be in the next step already (overlap).
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace

from ..radix.errors import CacheUsageError
from .errors import RequestFailedError, RequestUnmetError
from .logprobs import Logprob
from .metrics import EngineMetrics
from .outputs import CompletionOutput, FinishReason, OutputChunk, RequestOutput, TokenLogprobs
from .request_state import RequestState
from .sampler import NOT_FINITE
from .scheduler import Scheduler
from .sequence import Sequence
from .sequence_factory import SequenceFactory
from .tokenizer import Tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AcceptedTokens:
    """Tokens that were appended to a sequence and are not published yet, or why it must fail.

    Attributes:
        token_ids: the sampled one first, then those its grammar forced; empty at the end of a search or scoring,
            and of a text that must be empty.
        logprobs: of the sampled token, if they were asked for.
        cause: what was raised for this sequence, if that is why.
    """

    sequence: Sequence
    state: RequestState
    token_ids: tuple[int, ...] = ()
    logprobs: TokenLogprobs | None = None
    error: str | None = None
    cause: Exception | None = None


class OutputProcessor:
    """Turns accepted tokens into chunks, and ended requests into outputs.

    Args:
        requests: the live requests by id; ended ones are taken out.
    """

    def __init__(
        self,
        requests: dict[str, RequestState],
        scheduler: Scheduler,
        metrics: EngineMetrics,
        tokenizer: Tokenizer,
        sequences: SequenceFactory,
    ) -> None:
        self._requests = requests
        self._scheduler = scheduler
        self._metrics = metrics
        self._tokenizer = tokenizer
        self._sequences = sequences

    def process(self, accepted: list[AcceptedTokens]) -> list[OutputChunk]:
        """Detokenise, look for stop strings, finish what has ended. Mutates sequences, requests and the queues."""
        now = time.monotonic()
        chunks: list[OutputChunk] = []
        for tokens in accepted:
            if tokens.state.request.request_id not in self._requests:  # a sibling failed in this very step
                continue
            try:
                chunks += self._process(tokens, now)
            except (AssertionError, CacheUsageError):  # not the request's fault: the engine is broken
                raise
            except Exception as cause:
                tokens.sequence.finish_reason = None
                chunks += self._fail(tokens.sequence, f"making its text raised {cause!r}", cause)
        return chunks

    def _process(self, tokens: AcceptedTokens, now: float) -> list[OutputChunk]:
        if tokens.error is not None:
            return self._fail(tokens.sequence, tokens.error, tokens.cause)
        if tokens.state.scoring is not None:
            return self._finish_scoring(tokens.state, now)
        if tokens.sequence.is_beam:
            return self._finish_ranked(tokens.state, now)
        return self._publish(tokens, now)

    def give_up(self, state: RequestState, reason: FinishReason, error: Exception) -> list[OutputChunk]:
        """End every live sequence of a request; its blocks are free when this returns."""
        for sequence in state.sequences:
            self._scheduler.remove(sequence)
            if sequence.finish_reason is None:
                sequence.finish_reason, sequence.error = reason, error
        state.num_open = 0
        completions = self._completions_so_far(state)
        if state.is_ranked:  # as many as were asked for, in no order: they were never compared
            completions = [
                replace(each, index=idx) for idx, each in enumerate(completions[: state.request.sampling_params.n])
            ]
        output = self._finish(state, completions, time.monotonic())
        last = completions[-1].index if completions else 0
        return [OutputChunk(state.request.request_id, last, "", (), finish_reason=reason, output=output)]

    def _completions_so_far(self, state: RequestState) -> list[CompletionOutput]:
        """What there is of the samples of a request that is given up; none if even that cannot be told."""
        if state.scoring is not None:
            return []
        try:
            for sequence in state.sequences:
                if sequence.is_beam:
                    sequence.detokenizer.append(sequence.output_token_ids)
            return [self._completion(sequence) for sequence in state.sequences]
        except Exception:
            logger.exception("What there was of request %s cannot be told", state.request.request_id)
            return []

    def _fail(self, sequence: Sequence, reason: str, cause: Exception | None = None) -> list[OutputChunk]:
        request_id = sequence.request.request_id
        self._metrics.num_failed += 1
        message = f"request {request_id} failed at token {sequence.num_output_tokens}: {reason}"
        is_ours = cause is not None or reason.startswith(NOT_FINITE)
        error = RequestFailedError(message) if is_ours else RequestUnmetError(message, reason)
        if cause is not None:
            error.__cause__ = cause
        if is_ours:
            logger.error("Request %s failed, and no other: %s", request_id, reason, exc_info=cause)
        return self.give_up(self._requests[request_id], FinishReason.ERROR, error)

    def _fail_incomplete(self, sequence: Sequence, cut: CompletionOutput) -> list[OutputChunk]:
        """A text that must be complete is not."""
        params = sequence.request.sampling_params
        if isinstance(cut.stop_reason, str):
            reason = (
                f"the stop string {cut.stop_reason!r} cut its text off; leave it out, or take on_incomplete='return'"
            )
        else:
            limit = "the context limit" if params.max_tokens is None else f"max_tokens={params.max_tokens}"
            reason = f"{limit} cut its text off: raise it, or take on_incomplete='close' or 'return'"
        sequence.finish_reason = None
        return self._fail(sequence, f"{reason}. The text is {cut.text!r:.200}")

    def _publish(self, tokens: AcceptedTokens, now: float) -> list[OutputChunk]:
        sequence, state = tokens.sequence, tokens.state
        if state.metrics.first_token_time is None:
            state.metrics.first_token_time = now
        logprobs = self._take_logprobs(tokens)
        text, token_ids = self._advance_text(sequence, tokens.token_ids)
        output = None
        if sequence.finish_reason is not None:
            text += self._finish_text(sequence)
            if not state.is_ranked and _must_be_complete(state) and not self._is_complete(sequence):
                return self._fail_incomplete(sequence, self._completion(sequence))
            state.num_open -= 1
            if state.num_open == 0 and state.is_ranked:
                return self._finish_ranked(state, now)
            if state.num_open == 0:
                output = self._finish(state, [self._completion(sample) for sample in state.sequences], now)
        if state.is_ranked:
            return []
        chunk = OutputChunk(
            request_id=sequence.request.request_id,
            index=sequence.sample_idx,
            text=text,
            token_ids=token_ids,
            logprobs=None if logprobs is None else (logprobs,),
            finish_reason=sequence.finish_reason,
            stop_reason=sequence.stop_reason,
            complete=None if sequence.finish_reason is None else self._is_complete(sequence),
            output=output,
        )
        return [chunk]

    def _advance_text(self, sequence: Sequence, token_ids: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        """Detokenise what is no stop token, and test the stop strings after each token.

        Returns:
            The new text, and the tokens: those behind a stop string never were. Mutates the sequence.
        """
        if sequence.has_stop_token:
            return "", token_ids
        text = ""
        for idx, token_id in enumerate(token_ids):
            text += sequence.detokenizer.append((token_id,))
            if sequence.detokenizer.stop_string is not None:
                sequence.finish_reason = FinishReason.STOP
                sequence.stop_reason = sequence.detokenizer.stop_string
                self._scheduler.remove(sequence)
                num_cut = len(token_ids) - idx - 1
                del sequence.token_ids[sequence.num_tokens - num_cut :]
                return text, token_ids[: idx + 1]
        return text, token_ids

    @staticmethod
    def _finish_text(sequence: Sequence) -> str:
        """What was held back of its text. Mutates the sequence where that ends with a stop string."""
        rest = sequence.detokenizer.finish(drops_unfinished=sequence.constraint is not None)
        is_stopped = sequence.detokenizer.stop_string is not None and sequence.stop_reason is None
        if is_stopped and not sequence.has_stop_token:
            sequence.finish_reason, sequence.stop_reason = FinishReason.STOP, sequence.detokenizer.stop_string
        return rest

    def _is_complete(self, sequence: Sequence) -> bool | None:
        """Whether the text satisfies its constraint; None without one."""
        if sequence.constraint is None:
            return None
        if sequence.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
            return False
        if sequence.detokenizer.stop_string is None:
            return sequence.constraint.is_complete
        text = sequence.request.healed_text + sequence.detokenizer.text
        return sequence.constraint.is_member(self._tokenizer.encode(text, is_text_start=False))

    def _take_logprobs(self, tokens: AcceptedTokens) -> TokenLogprobs | None:
        sequence = tokens.sequence
        if tokens.logprobs is None:
            return None
        sequence.cumulative_logprob += tokens.logprobs[tokens.token_ids[0]].logprob
        if sequence.logprobs is None:
            return None
        logprobs = self._with_text(tokens.logprobs)
        sequence.logprobs.append(logprobs)
        return logprobs

    def _with_text(self, logprobs: TokenLogprobs) -> TokenLogprobs:
        return {
            token_id: Logprob(entry.logprob, entry.rank, self._tokenizer.decode([token_id], skip_special_tokens=False))
            for token_id, entry in logprobs.items()
        }

    # -- endings ---------------------------------------------------------------------------------------------------

    def _finish(self, state: RequestState, completions: list[CompletionOutput], now: float) -> RequestOutput:
        state.metrics.finished_time = now
        output = state.output(completions)
        if output.prompt_logprobs is not None and output.error is None:
            output.prompt_logprobs = [entry and self._with_text(entry) for entry in output.prompt_logprobs]
        del self._requests[state.request.request_id]
        self._metrics.num_finished += output.error is None
        return output

    def _finish_scoring(self, state: RequestState, now: float) -> list[OutputChunk]:
        state.num_open = 0
        output = self._finish(state, [], now)
        reason = FinishReason.SCORED
        return [OutputChunk(state.request.request_id, 0, "", (), finish_reason=reason, output=output)]

    def _finish_ranked(self, state: RequestState, now: float) -> list[OutputChunk]:
        """All is known: the n best, each in one chunk."""
        state.num_open = 0
        if state.beam_search is not None:
            completions = self._hypotheses(state)
        else:
            completions = [self._completion(sample) for sample in state.sequences]
            completions.sort(key=lambda completion: -(completion.cumulative_logprob or 0.0))  # stable: ties by sample
        best = [replace(each, index=idx) for idx, each in enumerate(completions[: state.request.sampling_params.n])]
        assert best, "a search always finds something, and who samples has samples"
        cut = next((each for each in best if each.complete is False), None)
        if cut is not None and _must_be_complete(state):
            return self._fail_incomplete(state.sequences[0], cut)
        output = self._finish(state, best, now)
        return [
            OutputChunk(
                request_id=state.request.request_id,
                index=completion.index,
                text=completion.text,
                token_ids=tuple(completion.token_ids),
                logprobs=None if completion.logprobs is None else tuple(completion.logprobs),
                finish_reason=completion.finish_reason,
                stop_reason=completion.stop_reason,
                complete=completion.complete,
                output=output if completion is best[-1] else None,
            )
            for completion in best
        ]

    def _hypotheses(self, state: RequestState) -> list[CompletionOutput]:
        assert state.beam_search is not None
        params, constraint = state.request.sampling_params, state.sequences[0].constraint
        completions = []
        for hypothesis in state.beam_search.hypotheses:
            is_stopped = hypothesis.finish_reason is FinishReason.STOP
            detokenizer = self._sequences.detokenizer(state.request)
            text_ids = hypothesis.token_ids[:-1] if is_stopped else hypothesis.token_ids
            detokenizer.append(text_ids)
            detokenizer.finish(drops_unfinished=constraint is not None)
            last = hypothesis.token_ids[-1]
            completions.append(
                CompletionOutput(
                    index=0,
                    text=detokenizer.text,
                    token_ids=list(hypothesis.token_ids),
                    cumulative_logprob=hypothesis.cumulative_logprob,
                    finish_reason=hypothesis.finish_reason,
                    stop_reason=last if is_stopped and last in params.stop_ids else None,
                    num_text_tokens=detokenizer.num_tokens_within_text,
                    has_stop_token=is_stopped,
                    complete=None if constraint is None else constraint.is_member(text_ids),
                )
            )
        return completions

    def _completion(self, sequence: Sequence) -> CompletionOutput:
        detokenizer = sequence.detokenizer
        return CompletionOutput(
            index=sequence.sample_idx,
            text=detokenizer.text,
            token_ids=sequence.output_token_ids,
            cumulative_logprob=sequence.cumulative_logprob if sequence.is_scored else None,
            logprobs=sequence.logprobs,
            finish_reason=sequence.finish_reason,
            stop_reason=sequence.stop_reason,
            num_text_tokens=detokenizer.num_tokens_within_text,
            leftover_text=detokenizer.leftover_text,
            has_stop_token=sequence.has_stop_token,
            complete=self._is_complete(sequence),
        )


def _must_be_complete(state: RequestState) -> bool:
    return state.request.sampling_params.on_incomplete == "raise"
