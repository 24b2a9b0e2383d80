"""One gen or select on its way through the backend: what is sent, and what its outcome does to the token log."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from .backend import Backend, GenerateCall, ScoreCall, ScoreResult, Scoring, TextSegment
from .calls import Call, CallMeta, ChoiceScore, ParseFailure
from .choices import ChoiceLogprobs, choice_probabilities
from .errors import InvalidProgramError, words_of
from .generation import GenerateResult, Generation, Sample
from .handle import Handle
from .run_context import RunContext
from .token_log import TokenLog, common_prefix_len

MAX_HEALABLE_TOKENS = 4
"""How much of the literal text before it a constrained gen may begin again; a token rarely spans more."""

_MAX_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call gives: the value bound to its name, the text it adds to the state, and what it took."""

    value: object
    text: str
    meta: CallMeta


class Execution(Protocol):
    """A submitted call. `finish` may be called once all handles are settled."""

    @property
    def handles(self) -> Sequence[Handle[Any]]: ...

    @property
    def generation(self) -> Generation | None:
        """What a reader can follow while it runs."""
        ...

    def finish(self) -> Outcome:
        """Add what came of it to the token log.

        Raises:
            BaseException: what the backend failed with.
        """
        ...


def submit(call: Call, tokens: TokenLog, run: RunContext) -> Execution:
    """Send a call to the backend of the run. Tokenises the pending text of `tokens`.

    Raises:
        InvalidProgramError: there is no text before the call.
        Exception: what the backend refuses it with.
    """
    return SelectExecution(call, tokens, run) if call.method is not None else GenExecution(call, tokens, run)


class GenExecution:
    """A gen under way.

    Where the literal text before a constrained gen ends inside what the model would write as one token, the model must
    be free to write it so ("Answer: " before " yes"). So the last tokens of that text are held back from the log: the
    backend may take them off the prompt and let the generated tokens begin with their spelling. What it did not take
    becomes final when the gen has ended.
    """

    def __init__(self, call: Call, tokens: TokenLog, run: RunContext) -> None:
        params = call.record.sampling_params
        assert params is not None
        self._call = call
        self._params = params
        self._tokens = tokens
        self._decode = run.backend.decode
        can_heal = params.grammar_spec is not None and call.is_healed
        self._held_back = tokens.commit_but_end(MAX_HEALABLE_TOKENS if can_heal else 0)
        if not tokens.token_ids:
            raise InvalidProgramError("there is no text before it; a model continues text, so append some first")
        call.record.set_prompt(tokens.token_ids, len(tokens.token_ids), self._held_back)
        self._generation = run.backend.generate(
            GenerateCall(
                (*tokens.token_ids, *self._held_back),
                params,
                tokens.shared_prefix_len,
                call.record.name,
                num_healable_tokens=len(self._held_back),
                prompt_logprobs_start=min(call.prompt_logprobs_start, len(tokens.token_ids)),
                program=run.program_ref(call.record.branch),
            )
        )

    @property
    def handles(self) -> Sequence[Handle[Any]]:
        return (self._generation,)

    @property
    def generation(self) -> Generation | None:
        return self._generation

    def finish(self) -> Outcome:
        result = self._generation.result(timeout=0)
        first = result.samples[0]
        self._add_to_log(result)
        num_generated_tokens = result.num_generated_tokens
        if num_generated_tokens is None:
            num_generated_tokens = sum(len(sample.token_ids) for sample in result.samples)
        meta = CallMeta(
            num_prompt_tokens=result.num_prompt_tokens,
            num_cached_tokens=result.num_cached_tokens,
            num_generated_tokens=num_generated_tokens,
            finish_reason=first.finish_reason,
            stop_reason=first.stop_reason,
            samples=result.samples,
            choices=(),
            first_token_s=result.first_token_s,
            duration_s=_seconds_since_submission(self._call),
            complete=first.complete,
            prompt_logprobs=result.prompt_logprobs,
            queued_s=result.queued_s,
        )
        return Outcome(self._value(result.samples), self._answer(first), meta)

    def _answer(self, sample: Sample) -> str:
        """Its text without what was thought before it."""
        reasoning = self._call.reasoning
        return sample.text if reasoning is None else reasoning.split(sample.text)[1]

    def _add_to_log(self, result: GenerateResult) -> None:
        num_final = len(self._held_back) - result.num_healed_tokens
        assert num_final >= 0, "a backend must not heal more than it was allowed to"
        self._tokens.commit_as(self._held_back[:num_final])
        self._call.record.settle_prompt(len(self._tokens.token_ids))
        healed, first = self._held_back[num_final:], result.samples[0]
        if self._call.reasoning is not None:
            assert not healed, "a gen that reasons has no constraint, so nothing is healed"
            self._add_answer_to_log(first)
            return
        kept, leftover = first.kept_token_ids, first.leftover_text
        decode = self._decode
        if healed and decode(kept) + leftover != decode(healed) + first.text:
            # The text ends inside the token that spans the boundary, so the literal text needs its own tokens again.
            kept, leftover = healed, first.text
        self._tokens.add_generated(kept, leftover)

    def _add_answer_to_log(self, sample: Sample) -> None:
        """The tokens that lie wholly inside the answer are kept; the piece of a token before them is written anew."""
        answer, kept = self._answer(sample), sample.kept_token_ids

        def end_from(idx: int) -> str:
            return self._decode(kept[idx:]) + sample.leftover_text

        first = bisect_left(range(len(kept)), True, key=lambda idx: len(end_from(idx)) <= len(answer))
        idx = next(idx for idx in range(first, len(kept) + 1) if answer.endswith(end_from(idx)))
        self._tokens.add_text(answer.removesuffix(end_from(idx)))
        self._tokens.commit()
        self._tokens.add_generated(kept[idx:], sample.leftover_text)

    def _value(self, samples: Sequence[Sample]) -> object:
        """The text, or what it was to become; a list with n > 1. A ParseFailure if one of them did not become it."""
        values: list[object] = []
        for idx, sample in enumerate(samples):
            value = self._value_of(sample, "its text" if len(samples) == 1 else f"text {idx + 1} of {len(samples)}")
            if isinstance(value, ParseFailure):
                return value
            values.append(value)
        return values[0] if self._params.n == 1 else values

    def _value_of(self, sample: Sample, which: str) -> object:
        value_type = self._call.value_type
        if value_type is None:
            return self._answer(sample)
        cause: Exception | None = None
        if sample.complete is False and sample.stop_reason is not None:
            reason = f"the stop {sample.stop_reason!r} cut {which} off before it was complete"
        elif sample.complete is False:
            reason = (
                f"max_tokens={self._params.max_tokens} cut {which} off before it was complete: raise it, or let "
                "on_incomplete='close' end the text in time"
            )
        else:
            try:
                return value_type.parse(sample.text)
            except Exception as error:
                cause, reason = error, f"{which} is no {value_type.name}: {words_of(error)}"
        shown = sample.text if len(sample.text) <= _MAX_SHOWN_CHARS else f"{sample.text[:_MAX_SHOWN_CHARS]}..."
        message = f"{self._call.record.describe()} has no value: {reason}; the text is {shown!r}"
        return ParseFailure(message, cause, text=sample.text)


class SelectExecution:
    """A select under way.

    Each choice is tokenised together with the text before it, and all are scored from the first token at which any of
    these tokenisations leaves that of the text alone. So a choice that merges with the end of the text, such as " no"
    after "Answer:", is scored as the model would have written it, over the same characters as its rivals. Spaces at the
    end of the text count with the choices, whether a choice merges with them or not: it makes no difference on which
    side of the boundary they are written. Special tokens and what was sent before are never taken apart.

    All choices are one request. The state goes on with the tokens of the winner's joint tokenisation.
    """

    def __init__(self, call: Call, tokens: TokenLog, run: RunContext) -> None:
        self._call = call
        self._tokens = tokens
        self._continuations = _split_choices(call.record.choices, tokens, run.backend)
        if not tokens.token_ids:
            raise InvalidProgramError(
                "there is no text before it; choices are scored after some text, so append some first"
            )
        call.record.set_prompt(tokens.token_ids, len(tokens.token_ids))
        score_call = ScoreCall(
            tuple(tokens.token_ids),
            self._continuations,
            tokens.shared_prefix_len,
            call.record.name,
            run.program_ref(call.record.branch),
        )
        self._scoring: Scoring = run.backend.score(score_call)
        self._unconditional: Scoring | None = None
        if call.method is not None and call.method.needs_unconditional:
            start = tuple(run.backend.encode([], at_start=True))
            self._unconditional = run.backend.score(replace(score_call, prompt_token_ids=start, shared_prefix_len=0))

    @property
    def handles(self) -> Sequence[Handle[Any]]:
        return (self._scoring,) if self._unconditional is None else (self._scoring, self._unconditional)

    @property
    def generation(self) -> Generation | None:
        return None

    def finish(self) -> Outcome:
        result = self._scoring.result(timeout=0)
        unconditional = None if self._unconditional is None else self._unconditional.result(timeout=0)
        choices = self._choice_logprobs(result, unconditional)
        assert self._call.method is not None
        scores = self._call.method.scores(choices)
        probabilities = choice_probabilities(choices)
        winner = max(range(len(choices)), key=lambda idx: scores[idx])
        self._tokens.add_generated(self._continuations[winner])
        meta = CallMeta(
            num_prompt_tokens=result.num_prompt_tokens,
            num_cached_tokens=result.num_cached_tokens,
            num_generated_tokens=0,
            finish_reason="select",
            stop_reason=None,
            samples=(),
            choices=tuple(map(ChoiceScore, choices, scores, probabilities)),
            first_token_s=None,
            duration_s=_seconds_since_submission(self._call),
            queued_s=result.queued_s,
        )
        text = choices[winner].text
        return Outcome(text, text, meta)

    def _choice_logprobs(self, result: ScoreResult, unconditional: ScoreResult | None) -> list[ChoiceLogprobs]:
        choices = []
        scored_ids = self._continuations if result.token_ids is None else result.token_ids
        for idx, text in enumerate(self._call.record.choices):
            logprobs = tuple(value for value in result.logprobs[idx] if value is not None)
            assert len(logprobs) == len(scored_ids[idx]), "a backend must score every token after a prompt"
            free = None
            if unconditional is not None:
                free = tuple(0.0 if value is None else value for value in unconditional.logprobs[idx])
                if len(free) != len(logprobs):
                    raise InvalidProgramError(
                        f"the model cuts {text!r} into {len(logprobs)} tokens after the text and into {len(free)} "
                        "without it, so the two cannot be compared token by token: use another choices_method"
                    )
            end_logprob = result.end_logprobs[idx]
            choices.append(ChoiceLogprobs(text, scored_ids[idx], logprobs, end_logprob, free))
        return choices


def _split_choices(choices: Sequence[str], tokens: TokenLog, backend: Backend) -> tuple[tuple[int, ...], ...]:
    """Commit the tokens that all choices have in common with the text before them; return the rest of each choice."""
    ids = tokens.encode_jointly(choices)
    joint = ids.joint
    common_len = min(common_prefix_len(ids.before, each) for each in joint)
    if common_len == 0 and not ids.head and not tokens.token_ids and tokens.has_pending:
        # Every token of the prompt would be scored, but the first has nothing before it: keep the prompt as it is.
        alone = tokens.encode_pending()
        common_len = len(alone)
        joint = [[*alone, *backend.encode([TextSegment(choice)], at_start=False)] for choice in choices]
    tokens.commit_as([*ids.head, *joint[0][:common_len]])
    return tuple(tuple(each[common_len:]) for each in joint)


def _seconds_since_submission(call: Call) -> float:
    assert call.record.submitted_at is not None
    return time.monotonic() - call.record.submitted_at
