"""What OpenAI's two kinds of streams add up to."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .api_sample import ApiToken, SampleDraft

if TYPE_CHECKING:
    from openai.types import Completion
    from openai.types.chat import ChatCompletionChunk
    from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob, TopLogprob
    from openai.types.completion_choice import Logprobs
    from openai.types.completion_usage import CompletionUsage


@dataclass(slots=True)
class OpenAIStream:
    """A stream so far.

    Attributes:
        drafts: one per sample.
        on_text: told of new text of the first sample.
        first_token_s: from the start to the first text.
    """

    drafts: list[SampleDraft]
    on_text: Callable[[str], None]
    started_at: float = field(default_factory=time.monotonic)
    first_token_s: float | None = None
    usage: CompletionUsage | None = None

    def add_chat_chunk(self, chunk: ChatCompletionChunk) -> None:
        self.usage = chunk.usage or self.usage
        for choice in chunk.choices:
            draft = self.drafts[choice.index]
            self._add_text(choice.index, choice.delta.content or "")
            draft.refusal += choice.delta.refusal or ""
            if choice.logprobs is not None:
                draft.tokens += [_chat_token(item) for item in choice.logprobs.content or ()]
            self._end(draft, choice.finish_reason, choice.model_extra)

    def add_completion(self, chunk: Completion) -> None:
        self.usage = chunk.usage or self.usage
        for choice in chunk.choices:
            draft = self.drafts[choice.index]
            self._add_text(choice.index, choice.text or "")
            if choice.logprobs is not None:
                draft.tokens += completion_tokens(choice.logprobs)
            self._end(draft, choice.finish_reason, choice.model_extra)

    def _add_text(self, idx: int, text: str) -> None:
        if not text:
            return
        if self.first_token_s is None:
            self.first_token_s = time.monotonic() - self.started_at
        self._show(idx, self.drafts[idx].add_text(text))

    def end(self) -> None:
        """There are no more chunks."""
        for idx, draft in enumerate(self.drafts):
            self._show(idx, draft.end_text())

    def _show(self, idx: int, text: str) -> None:
        if idx == 0 and text:
            self.on_text(text)

    @staticmethod
    def _end(draft: SampleDraft, finish_reason: str | None, extra: dict[str, object] | None) -> None:
        draft.finish_reason = finish_reason or draft.finish_reason
        # OpenAI does not say which stop string it was; vLLM, SGLang and ramet do, each in its own field.
        for name in ("stop_reason", "matched_stop"):
            value = (extra or {}).get(name)
            if isinstance(value, str):
                draft.stop_reason = value

    @property
    def num_cached_tokens(self) -> int:
        details = None if self.usage is None else self.usage.prompt_tokens_details
        return 0 if details is None else details.cached_tokens or 0


def completion_tokens(logprobs: Logprobs) -> list[ApiToken]:
    """The tokens of a completion. The first of an echoed prompt has no logprob: 0 stands for it."""
    tokens = logprobs.tokens or []
    values = logprobs.token_logprobs or []
    tops = logprobs.top_logprobs or [{}] * len(tokens)
    return [
        ApiToken(
            _completion_piece(token),
            value or 0.0,
            tuple((_completion_piece(other), item) for other, item in (top or {}).items()),
        )
        for token, value, top in zip(tokens, values, tops, strict=True)
    ]


def _completion_piece(token: str) -> bytes:
    """Tokens that are no whole character are written as bytes:\\xe2\\x80 there."""
    if token.startswith("bytes:\\x"):
        return bytes.fromhex(token.removeprefix("bytes:").replace("\\x", ""))
    return token.encode("utf-8", "surrogatepass")


def _chat_token(item: ChatCompletionTokenLogprob) -> ApiToken:
    return ApiToken(
        _chat_piece(item), item.logprob, tuple((_chat_piece(top), top.logprob) for top in item.top_logprobs)
    )


def _chat_piece(item: ChatCompletionTokenLogprob | TopLogprob) -> bytes:
    return bytes(item.bytes) if item.bytes is not None else item.token.encode("utf-8", "surrogatepass")
