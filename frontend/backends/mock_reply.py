"""From a scripted reply to the samples a model would have given: healed at the boundary, cut at limits and stops."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...sampling_params import SamplingParams
from ..backend import GenerateCall, TextSegment
from ..generation import Sample, TokenLogprob
from ..token_log import common_prefix_len
from .mock_constraint import satisfies
from .mock_tokenizer import MockTokenizer


class MockIncompleteError(RuntimeError):
    """A constrained reply was cut off, and on_incomplete does not let that pass."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Replies of one call as tokens.

    Attributes:
        token_ids: one list a sample. Each spells `healed_text`, then the reply.
        num_healed_tokens: how many tokens at the end of the prompt these lists replace.
        healed_text: what those spell.
    """

    token_ids: tuple[tuple[int, ...], ...]
    num_healed_tokens: int
    healed_text: str


def tokenise(tokenizer: MockTokenizer, call: GenerateCall, texts: Sequence[str]) -> Reply:
    """Tokenise replies jointly with what may be healed of the prompt, and heal what some reply changes of it."""
    end = call.prompt_token_ids[len(call.prompt_token_ids) - call.num_healable_tokens :]
    literal = tokenizer.decode(end)
    joint = [tokenizer.encode([TextSegment(literal + text)], at_start=False) for text in texts]
    num_kept = min(common_prefix_len(end, ids) for ids in joint)
    return Reply(
        token_ids=tuple(tuple(ids[num_kept:]) for ids in joint),
        num_healed_tokens=len(end) - num_kept,
        healed_text=tokenizer.decode(end[num_kept:]),
    )


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop string, or what a stop regex matches, in a text; `reason` is the string or the pattern."""

    start: int
    end: int
    reason: str


def _first_stop(params: SamplingParams, text: str) -> Stop | None:
    """The stop that is complete first, the longest of several."""
    stops = [Stop(text.index(stop), text.index(stop) + len(stop), stop) for stop in params.stop_strings if stop in text]
    stops += [stop for pattern in params.stop_regexes if (stop := _first_match(pattern, text)) is not None]
    return min(stops, key=lambda stop: (stop.end, stop.start), default=None)


def _first_match(pattern: str, text: str) -> Stop | None:
    compiled = re.compile(pattern)
    for end in range(1, len(text) + 1):
        for start in range(end):
            if compiled.fullmatch(text, start, end):
                return Stop(start, end, pattern)
    return None


def samples_of(tokenizer: MockTokenizer, params: SamplingParams, reply: Reply) -> tuple[Sample, ...]:
    """The replies, cut where a model's output would have been.

    Raises:
        MockIncompleteError: one was cut off that must be complete.
    """
    return tuple(_cut(tokenizer, params, token_ids, reply) for token_ids in reply.token_ids)


def prompt_logprobs_of(call: GenerateCall, prompt: Sequence[int]) -> tuple[TokenLogprob | None, ...] | None:
    """-1 for every token that was asked for."""
    if call.sampling_params.prompt_logprobs is None:
        return None
    first = max(1, call.prompt_logprobs_start)
    return tuple(None if idx < first else TokenLogprob(token_id, -1.0) for idx, token_id in enumerate(prompt))


def _cut(tokenizer: MockTokenizer, params: SamplingParams, token_ids: Sequence[int], reply: Reply) -> Sample:
    finish_reason = "stop"
    if params.max_tokens is not None and len(token_ids) > params.max_tokens + reply.num_healed_tokens:
        token_ids, finish_reason = token_ids[: params.max_tokens + reply.num_healed_tokens], "length"
    num_healed_chars = len(reply.healed_text)
    text = tokenizer.decode(token_ids)[num_healed_chars:]
    stop = _first_stop(params, text)
    if stop is not None:
        token_ids, finish_reason = _ids_covering(tokenizer, token_ids, num_healed_chars + stop.end), "stop"
        text = text[: stop.start]
    kept = _ids_inside(tokenizer, token_ids, num_healed_chars + len(text))
    spec = params.grammar_spec
    complete = None if spec is None else satisfies(spec, text) and (spec.kind != "ebnf" or finish_reason == "stop")
    if complete is False and params.on_incomplete != "return":
        raise MockIncompleteError(
            f"the reply is cut off at {text!r} before it is complete, which on_incomplete={params.on_incomplete!r} "
            "does not let pass; the mock backend cannot close it, so script a reply that fits"
        )
    return Sample(
        text=text,
        token_ids=tuple(token_ids),
        kept_token_ids=tuple(kept),
        leftover_text=text[max(0, len(tokenizer.decode(kept)) - num_healed_chars) :],
        finish_reason=finish_reason,
        stop_reason=None if stop is None else stop.reason,
        logprobs=None if params.logprobs is None else tuple(TokenLogprob(token_id, -1.0) for token_id in token_ids),
        complete=complete,
    )


def _ids_covering(tokenizer: MockTokenizer, token_ids: Sequence[int], num_chars: int) -> Sequence[int]:
    covering: list[int] = []
    while len(tokenizer.decode(covering)) < num_chars:
        covering.append(token_ids[len(covering)])
    return covering


def _ids_inside(tokenizer: MockTokenizer, token_ids: Sequence[int], num_chars: int) -> Sequence[int]:
    inside: list[int] = []
    for token_id in token_ids:
        num_chars -= len(tokenizer.token_text(token_id))
        if num_chars < 0:
            break
        inside.append(token_id)
    return inside
