"""The log-likelihood of whole texts, in windows where a text is longer than the context."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ..frontend.backend import Backend, TextSegment
from ..sampling_params import SamplingParams
from .errors import InvalidTaskError
from .results import Outcome

if TYPE_CHECKING:
    from ..runtime.llm import LLM


@runtime_checkable
class HasModel(Protocol):
    """What a backend on a model of this process is beside a Backend."""

    @property
    def llm(self) -> LLM: ...


def measure_perplexity(text: str, backend: Backend) -> Outcome:
    """Score every token of a text but the first, before which there is nothing (the begin token, where the model has
    one). Blocks.

    What the cache keeps of an earlier text with the same beginning is not computed again.

    Raises:
        InvalidTaskError: the backend is no model in this process, or the text is one token.
        RequestFailedError: it failed while it ran.
    """
    llm = model_of(backend)
    token_ids = backend.encode([TextSegment(text)], at_start=True)
    if len(token_ids) < 2:
        raise InvalidTaskError(f"the text {text!r} is a single token, and the first token of a text has no likelihood")
    window_len = llm.max_context_len - 1  # one token is generated after each
    if window_len < 2:
        raise InvalidTaskError(f"a context of {llm.max_context_len} tokens has no room for two and one to generate")
    start = time.monotonic()
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    handles = [llm.submit({"prompt_token_ids": window}, params) for window in windows(token_ids, window_len)]
    outputs = [handle.wait() for handle in handles]
    total = 0.0
    for output in outputs:
        if output.error is not None:
            raise output.error
        assert output.prompt_logprobs is not None
        for token_id, entry in zip(output.prompt_token_ids, output.prompt_logprobs, strict=True):
            total += 0.0 if entry is None else entry[token_id].logprob
    return Outcome(
        prompt=text,
        logprobs=(total,),
        num_scored_tokens=(len(token_ids) - 1,),
        num_prompt_tokens=sum(len(output.prompt_token_ids) for output in outputs),
        num_cached_tokens=sum(output.num_cached_tokens for output in outputs),
        duration_s=time.monotonic() - start,
    )


def windows(token_ids: Sequence[int], max_len: int) -> Iterator[list[int]]:
    """Pieces of at most `max_len` tokens. Each begins with the last token of the one before, which is its context, so
    that every token but the first is scored once."""
    for start in range(0, len(token_ids) - 1, max_len - 1):
        yield list(token_ids[start : start + max_len])


def model_of(backend: Backend) -> LLM:
    """The model behind a backend.

    Raises:
        InvalidTaskError: there is none in this process.
    """
    if not isinstance(backend, HasModel):
        raise InvalidTaskError("a task of kind 'perplexity' needs a model in this process, whose prompts can be scored")
    return backend.llm
