"""Prompt logprobs that are right for cached positions too.

A cached position has keys and values but no logits any more, so its logprob cannot be had from the cache alone. What a
request learned is therefore kept beside the block (`PrefixCache.annotate`), and a later request reuses the prefix just
as far as these notes reach: the logprob at position p comes from the logits at p - 1, so with logprobs known for all
positions below p, everything below p - 1 may come from the cache.
"""

from __future__ import annotations

from torch import Tensor

from ..radix.prefix_cache import PrefixCache, PrefixMatch
from ..radix.watches import PrefixWatch
from .batch import ScheduledSequence
from .outputs import TokenLogprobs
from .sampler import Sampler
from .sequence import Sequence

PositionNote = tuple[int, TokenLogprobs]
"""How many of the most likely tokens are listed, and the listing (the prompt's own token always among them)."""

BlockNotes = list[PositionNote | None]


def usable_match(
    sequence: Sequence, cache: PrefixCache, watch: PrefixWatch | None = None
) -> tuple[PrefixMatch, PrefixMatch]:
    """The longest cached prefix that ends before the first logits a sequence wants, of its last token at the latest;
    and what it can use of that: less where prompt logprobs are wanted and not known.

    Mutates `sequence.prompt_logprobs`, as `cacheable_prefix_len`.
    """
    namespace = sequence.request.cache_namespace
    cached = cache.match(sequence.token_ids, namespace=namespace, max_tokens=sequence.num_reusable_tokens, watch=watch)
    limit = cacheable_prefix_len(sequence, cached, cache)
    if limit >= cached.num_tokens:
        return cached, cached
    return cached, cache.match(sequence.token_ids, namespace=namespace, max_tokens=limit)


def cacheable_prefix_len(sequence: Sequence, match: PrefixMatch, cache: PrefixCache) -> int:
    """How many tokens of the match the sequence may reuse; takes over the logprobs noted beside those blocks.

    Mutates `sequence.prompt_logprobs`: what it fills in stays true whether or not the match is used.
    """
    position = sequence.next_prompt_logprob()
    if position >= sequence.num_prompt_tokens or sequence.prompt_logprobs is None:
        return match.num_tokens
    top_n = sequence.request.sampling_params.prompt_logprobs or 0
    while position < match.num_tokens:
        note = _note_at(match, position, cache)
        if note is None or note[0] < top_n:
            break
        own_token_id = sequence.token_ids[position]
        sequence.prompt_logprobs[position] = {
            token_id: logprob
            for token_id, logprob in note[1].items()
            if token_id == own_token_id or logprob.rank <= top_n
        }
        position += 1
    return min(match.num_tokens, position - 1)


def record(part: ScheduledSequence, logits: Tensor, cache: PrefixCache, sampler: Sampler) -> None:
    """Read the prompt logprobs out of a step's logits and note them beside the sequence's blocks.

    Args:
        part: the sequence's part of the step, already committed to the cache; it wants prompt logprobs.
        logits: fp32 [rows, vocab], the rows of this part.
        sampler: turns them into logprobs.

    Mutates `sequence.prompt_logprobs` and the annotations of the blocks of this part.
    """
    sequence = part.sequence
    known = sequence.prompt_logprobs
    assert known is not None
    first = part.start + part.logits_from + 1
    last = min(part.end + 1, sequence.num_prompt_tokens)
    if first >= last:
        return
    top_n = sequence.request.sampling_params.prompt_logprobs or 0
    token_ids = sequence.token_ids[first:last]
    known[first:last] = sampler.logprobs(logits[: last - first], token_ids, top_n)
    _annotate(sequence, part.start, part.end, top_n, cache)


def _note_at(match: PrefixMatch, position: int, cache: PrefixCache) -> PositionNote | None:
    block_idx, offset = divmod(position, cache.block_size)
    block_id = match.block_ids[block_idx] if block_idx < len(match.block_ids) else match.tail_block_id
    if block_id is None:
        return None
    notes = cache.annotation(block_id)
    if notes is None:
        return None
    assert isinstance(notes, list)
    note: PositionNote | None = notes[offset] if offset < len(notes) else None
    return note


def _annotate(sequence: Sequence, start: int, end: int, top_n: int, cache: PrefixCache) -> None:
    """Note what is known of the blocks that tokens [start, end) lie in; never replaces more by less."""
    assert sequence.prompt_logprobs is not None
    assert sequence.block_table is not None
    size = cache.block_size
    for block_idx in range(start // size, -(-end // size)):
        block_id = sequence.block_table.block_ids[block_idx]
        known = sequence.prompt_logprobs[block_idx * size : min((block_idx + 1) * size, end)]
        old = cache.annotation(block_id)
        assert old is None or isinstance(old, list)
        merged: BlockNotes = list(old) if old is not None else []
        merged += [None] * (len(known) - len(merged))
        for offset, entry in enumerate(known):
            before = merged[offset]
            if entry is not None and (before is None or before[0] < top_n):
                merged[offset] = (top_n, entry)
        cache.annotate(block_id, merged)
