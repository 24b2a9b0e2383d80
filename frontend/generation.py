"""Generation: one gen under way. The backend writes text and the result into it; any number of readers follow along.

The text is kept, so a reader that starts late or again sees all of it from the beginning.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from .errors import ReadTimeoutError
from .handle import Handle


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of a generated token; `top` maps the most likely token ids to theirs, if asked for."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One generated text.

    Attributes:
        text: what was generated, without a stop string, stop token or end-of-sequence token.
        token_ids: every token the model produced, those included.
        kept_token_ids: the leading tokens that lie wholly inside `text`.
        leftover_text: the end of `text` that is not covered by them, from a token that a stop string cut.
        finish_reason: "stop" or "length".
        stop_reason: the stop string or stop token id; None for end of sequence or length.
        logprobs: one per token of `token_ids` if asked for.
        complete: whether `text` satisfies the constraint it was generated under; False for one that was cut off. None
            without a constraint.
    """

    text: str
    token_ids: tuple[int, ...] = field(repr=False)
    kept_token_ids: tuple[int, ...] = field(repr=False)
    leftover_text: str = field(default="", repr=False)
    finish_reason: str = "stop"
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] | None = field(default=None, repr=False)
    complete: bool | None = None


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """Outcome of a gen.

    Attributes:
        samples: n of them.
        num_prompt_tokens: length of the prompt, without healed tokens.
        num_cached_tokens: how many of these were in the cache.
        first_token_s: seconds from submission to the first token; None if the backend does not know.
        queued_s: seconds from submission until it began to be computed; None if the backend does not know.
        num_healed_tokens: tokens that were taken off the end of the prompt, at most as many as the call allowed. The
            generated tokens begin with their spelling, the texts do not.
        num_generated_tokens: over all samples, where the model counts otherwise than the token ids of the samples do;
            None if those are its tokens.
        prompt_logprobs: one per token of the prompt, without healed ones, if asked for; None for the first token and
            for those not asked for.
    """

    samples: tuple[Sample, ...]
    num_prompt_tokens: int
    num_cached_tokens: int
    first_token_s: float | None = None
    num_healed_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    queued_s: float | None = None
    num_generated_tokens: int | None = None


class Generation(Handle[GenerateResult]):
    """A gen under way.

    The writer calls `push` any number of times, or never, before it settles the handle.
    """

    def __init__(self, on_cancel: Callable[[], None] | None = None) -> None:
        super().__init__(on_cancel)
        self._changed = threading.Condition()
        self._chunks: list[str] = []
        self._is_ending = False
        self._listeners: list[Callable[[], None]] = []

    def push(self, text: str) -> None:
        """Add text of the first sample that follows what was pushed before. Ignored once the generation is settled."""
        if not text:
            return
        with self._changed:
            if self._is_ending:
                return
            self._chunks.append(text)
        self._announce()

    def finish(self, result: GenerateResult) -> None:
        """Settle with a result. What was not pushed of the first sample's text is shown to readers now."""
        with self._changed:
            self._is_ending = True
            rest = result.samples[0].text.removeprefix("".join(self._chunks))
            if rest:
                self._chunks.append(rest)
        super().finish(result)
        self._announce()

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self._is_ending = True
        super().fail(error)
        self._announce()

    def _announce(self) -> None:
        with self._changed:
            self._changed.notify_all()
            listeners = list(self._listeners)
            if self.is_done:
                self._listeners.clear()
        for listener in listeners:
            listener()

    def text_so_far(self) -> str:
        with self._changed:
            return "".join(self._chunks)

    def chunks_from(self, position: int) -> list[str]:
        """The pieces there are now after the first `position`; never blocks."""
        with self._changed:
            return self._chunks[position:]

    def chunks(self, timeout: float | None = None) -> Iterator[str]:
        """The text from its beginning, piece by piece; blocks for what is not there yet.

        Ends with the generation, also when it failed: `result` tells.

        Raises:
            ReadTimeoutError: nothing new came for `timeout` seconds.
        """
        position = 0
        while True:
            with self._changed:
                is_ready = self._changed.wait_for(partial(self._has_chunk_or_end, position), timeout)
                new = self._chunks[position:]
            if not is_ready:
                raise ReadTimeoutError(f"no new text for {timeout} s; the generation is still running")
            if not new:
                return
            position += len(new)
            yield from new

    def _has_chunk_or_end(self, position: int) -> bool:
        return position < len(self._chunks) or self.is_done

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every change from now on, in the writer's thread; now if there is nothing to come.

        It must not block or raise.
        """
        with self._changed:
            is_over = self.is_done
            if not is_over:
                self._listeners.append(listener)
        if is_over:
            listener()

    def remove_listener(self, listener: Callable[[], None]) -> None:
        """It is not called any more, if it still was."""
        with self._changed:
            if listener in self._listeners:
                self._listeners.remove(listener)
