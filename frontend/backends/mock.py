"""MockBackend: answers from a script instead of a model. Deterministic; shows exactly which token ids reach a backend.

For tests of programs and of the language itself, and to try a program without a model.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from ..backend import GenerateCall, Message, ProgramHint, ScoreCall, ScoreResult, Scoring, TextSegment
from ..errors import InvalidProgramError, raise_interrupt
from ..generation import GenerateResult, Generation
from ..handle import Handle
from .mock_chat import CHAT_TOKENS, chat_text, role_begin, role_end
from .mock_constraint import check_patterns, check_reply, default_reply
from .mock_reply import prompt_logprobs_of, samples_of, tokenise
from .mock_tokenizer import MockTokenizer

Reply = str | BaseException
GenerateScript = Callable[[GenerateCall, str], Reply]
ScoreScript = Callable[[str, str], float | BaseException]
Mode = Literal["immediate", "manual", "background"]


class MockCancelledError(RuntimeError):
    """A call of the mock backend was cancelled before it was answered."""


@dataclass(eq=False)
class MockRequest:
    """A call that reached the backend; in manual mode the test answers it when it wants.

    Attributes:
        call: exactly what was sent.
        prompt: its prompt as text.
        num_cached_tokens: how much of the prompt earlier calls had already brought in.
    """

    call: GenerateCall | ScoreCall
    prompt: str
    num_cached_tokens: int
    answer: Callable[[], None] = field(repr=False)
    push: Callable[[str], None] = field(repr=False)
    is_answered: bool = False


class MockBackend:
    """A scripted backend.

    Replies go through the call's own limits as a model's would: cut at `max_tokens` and at stop strings. Scripts get
    the prompt as text; an exception they return or raise is the call's failure. So is a reply that the call's
    constraint does not allow, as far as the standard library can tell (see mock_constraint.py).

    Args:
        replies: what gen answers: a function of the call and its prompt; a list, used up in order of arrival; or one
            text for all. None answers "ok", or the first of a gen's choices.
        scores: log-probability of each token of a choice, as a function of the prompt and the choice's remaining text.
            The default prefers short text.
        tokenizer: the default knows CHAT_TOKENS and no merges.
        mode: "immediate" answers inside the call; "manual" waits for `answer_next` or `answer_all`; "background"
            answers in order from one thread, character by character, until `close`.

    Attributes:
        requests: every call that reached the backend, in order of arrival.
        hints: every hint, in order of arrival.
    """

    def __init__(
        self,
        replies: GenerateScript | Sequence[Reply] | str | None = None,
        *,
        scores: ScoreScript | None = None,
        tokenizer: MockTokenizer | None = None,
        mode: Mode = "immediate",
    ) -> None:
        if mode not in ("immediate", "manual", "background"):
            raise InvalidProgramError(f"mode={mode!r} is not allowed: use 'immediate', 'manual' or 'background'")
        self.tokenizer = tokenizer if tokenizer is not None else MockTokenizer(special_tokens=CHAT_TOKENS)
        self.requests: list[MockRequest] = []
        self.hints: list[ProgramHint] = []
        self._script = _as_script(replies)
        self._scores = scores if scores is not None else lambda prompt, choice: -float(len(choice))
        self._mode = mode
        self._changed = threading.Condition()
        self._waiting: deque[MockRequest] = deque()
        self._seen: dict[int, dict[int, object]] = {}
        self._is_closed = False
        self._worker = threading.Thread(target=self._work, name="ramet-mock", daemon=True)
        if mode == "background":
            self._worker.start()

    # The Backend protocol

    def encode(self, segments: Sequence[TextSegment], *, at_start: bool) -> list[int]:
        return self.tokenizer.encode(segments, at_start=at_start)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(token_ids)

    def role_prefix(self, messages: Sequence[Message], role: str) -> Sequence[TextSegment]:
        return role_begin(role)

    def role_suffix(self, messages: Sequence[Message], role: str) -> Sequence[TextSegment]:
        return role_end()

    def chat_segments(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> Sequence[TextSegment]:
        """Every message as its role and its content, a tool call as JSON; the tools, if any, as JSON ahead of all."""
        return chat_text(messages, tools, add_generation_prompt=add_generation_prompt)

    def generate(self, call: GenerateCall) -> Generation:
        check_patterns(call.sampling_params)
        generation = Generation(on_cancel=lambda: self._cancel(request, generation))
        request = self._receive(call, lambda it: self._answer_generate(call, it, generation), generation.push)
        self._dispatch(request)
        return generation

    def score(self, call: ScoreCall) -> Scoring:
        scoring: Scoring = Handle(on_cancel=lambda: self._cancel(request, scoring))
        request = self._receive(call, lambda it: self._answer_score(call, it, scoring), lambda text: None)
        self._dispatch(request)
        return scoring

    def hint(self, hint: ProgramHint) -> None:
        with self._changed:
            self.hints.append(hint)

    def flush_cache(self) -> None:
        with self._changed:
            self._seen.clear()

    def info(self) -> Mapping[str, object]:
        return {"backend": "mock", "mode": self._mode, "num_requests": len(self.requests)}

    # What a test does

    @property
    def waiting(self) -> tuple[MockRequest, ...]:
        """Calls that have no answer yet, oldest first."""
        with self._changed:
            return tuple(self._waiting)

    def answer(self, request: MockRequest) -> None:
        """Answer one waiting call now, in this thread."""
        if self._take(request):
            request.answer()

    def answer_next(self) -> None:
        """Answer the oldest waiting call."""
        self.answer(self.waiting[0])

    def answer_all(self) -> None:
        """Answer waiting calls, those that follow from the answers included, until none is left."""
        while self.waiting:
            self.answer_next()

    def close(self) -> None:
        """End the background thread; calls without an answer fail. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._worker.is_alive():
            self._worker.join()

    # Inside

    def _receive(
        self, call: GenerateCall | ScoreCall, answer: Callable[[MockRequest], None], push: Callable[[str], None]
    ) -> MockRequest:
        """Note a call. Another thread may answer it before this one goes on."""
        with self._changed:
            if self._is_closed:
                raise MockCancelledError("the mock backend is closed")
            num_cached_tokens = self._num_seen(call.prompt_token_ids)
            if isinstance(call, ScoreCall) or not call.num_healable_tokens:
                self._remember(call.prompt_token_ids)
            prompt = self.decode(call.prompt_token_ids)
            request = MockRequest(call, prompt, num_cached_tokens, lambda: answer(request), push)
            self.requests.append(request)
            self._waiting.append(request)
            self._changed.notify_all()
        return request

    def _dispatch(self, request: MockRequest) -> None:
        if self._mode == "immediate":
            self.answer(request)

    def _take(self, request: MockRequest) -> bool:
        """Whether this caller is the one to settle the request."""
        with self._changed:
            if request.is_answered:
                return False
            request.is_answered = True
            self._waiting.remove(request)
            return True

    def _cancel(self, request: MockRequest, handle: Handle[GenerateResult] | Scoring) -> None:
        if self._take(request):
            handle.fail(MockCancelledError("the call was cancelled"))

    def _num_seen(self, token_ids: Sequence[int]) -> int:
        """How much of a prefix was seen before, at most all but the last token."""
        node: dict[int, object] = self._seen  # type: ignore[assignment]
        num_seen = 0
        for token_id in token_ids[:-1]:
            if token_id not in node:
                break
            node = node[token_id]  # type: ignore[assignment]
            num_seen += 1
        return num_seen

    def _remember(self, token_ids: Sequence[int]) -> None:
        """Add a prefix to those seen."""
        node: dict[int, object] = self._seen  # type: ignore[assignment]
        for token_id in token_ids:
            node = node.setdefault(token_id, {})  # type: ignore[assignment]

    def _answer_generate(self, call: GenerateCall, request: MockRequest, generation: Generation) -> None:
        params = call.sampling_params
        try:
            reply = tokenise(self.tokenizer, call, [self._reply(call, request.prompt) for _ in range(params.n)])
            samples = samples_of(self.tokenizer, params, reply)
        except BaseException as error:
            generation.fail(error)
            raise_interrupt(error)
            return
        if self._mode == "background":
            for character in samples[0].text:
                generation.push(character)
        prompt = call.prompt_token_ids[: len(call.prompt_token_ids) - reply.num_healed_tokens]
        with self._changed:
            self._remember((*prompt, *samples[0].kept_token_ids))
        num_cached_tokens = min(request.num_cached_tokens, len(prompt) - 1)
        generation.finish(
            GenerateResult(
                samples,
                len(prompt),
                num_cached_tokens,
                num_healed_tokens=reply.num_healed_tokens,
                prompt_logprobs=prompt_logprobs_of(call, prompt),
            )
        )

    def _reply(self, call: GenerateCall, prompt: str) -> str:
        """The next scripted reply, whole."""
        reply = self._script(call, prompt)
        if isinstance(reply, BaseException):
            raise reply
        check_reply(call.sampling_params, reply)
        return reply

    def _answer_score(self, call: ScoreCall, request: MockRequest, scoring: Scoring) -> None:
        values: list[float] = []
        try:
            for token_ids in call.continuations:
                value = self._scores(request.prompt, self.decode(token_ids))
                if isinstance(value, BaseException):
                    raise value
                values.append(value)
        except BaseException as error:
            scoring.fail(error)
            raise_interrupt(error)
            return
        scored = list(zip(call.continuations, values, strict=True))
        result = ScoreResult(
            logprobs=tuple(
                (value if call.prompt_token_ids else None, *[value] * (len(ids) - 1)) for ids, value in scored
            ),
            end_logprobs=tuple(_end_logprob(ids, scored) for ids in call.continuations),
            num_prompt_tokens=len(call.prompt_token_ids),
            num_cached_tokens=request.num_cached_tokens,
        )
        scoring.finish(result)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if self._is_closed:
                    return
                request = self._waiting[0]
            with suppress(KeyboardInterrupt, SystemExit):  # of a script: the call has failed with it
                self.answer(request)


def _end_logprob(token_ids: tuple[int, ...], scored: Sequence[tuple[tuple[int, ...], float]]) -> float:
    """As `ScoreResult.end_logprobs`; of longer ones that go on with the same token the first one counts."""
    length = len(token_ids)
    going_on: dict[int, float] = {}
    for other, value in scored:
        if len(other) > length and other[:length] == token_ids:
            going_on.setdefault(other[length], value)
    rest = 1.0 - sum(map(math.exp, going_on.values()))
    return math.log(rest) if rest > 0.0 else -math.inf


def _as_script(replies: GenerateScript | Sequence[Reply] | str | None) -> GenerateScript:
    if replies is None:
        return lambda call, prompt: default_reply(call.sampling_params)
    if callable(replies):
        return replies
    if isinstance(replies, str):
        return lambda call, prompt: replies
    left = deque(replies)

    def next_reply(call: GenerateCall, prompt: str) -> Reply:
        if not left:
            raise InvalidProgramError(f"the mock backend has no reply left for the prompt {prompt!r}")
        return left.popleft()

    return next_reply
