"""Scoring continuations in the engine: a request whose trie of continuations is computed, and nothing is generated.

Each branch of the trie (`choice_trie.py`) is a sequence. The first one computes the prompt, all but the last token of
which may come from the cache. Where it ends it goes on as the first of its children; the others are forked from it, on
shared blocks, and run beside it. So single tokens cost no step but the prompt's, and a trie usually costs one more.
What finds no block or no place waits like a preempted sequence, and takes over what the cache has of it; without a
prefix cache it then computes the prompt again.

Rows of logits are turned into log-probabilities as they come, and are never needed again. A branch that is preempted
computes again what is left of it, from the first row that is not known.
"""

from __future__ import annotations

from torch import Tensor

from .batch import ScheduledSequence
from .outputs import FinishReason
from .request import Request
from .request_state import RequestState
from .sampler import Sampler
from .scheduler import Scheduler
from .sequence import Sequence
from .sequence_factory import SequenceFactory
from .trie_logprobs import TrieLogprobs


def start(request: Request) -> TrieLogprobs | None:
    """What a scoring request is to find out; None for a usual request. O(tokens of the continuations)."""
    if not request.continuations:
        return None
    return TrieLogprobs(request.continuations, has_prompt=bool(request.prompt_token_ids))


def record(part: ScheduledSequence, logits: Tensor, state: RequestState, sampler: Sampler) -> None:
    """Take in what a step computed of a branch.

    Args:
        part: the branch's part of the step.
        logits: fp32 [rows, vocab], the rows of this part, all finite.
    """
    scoring, sequence = state.scoring, part.sequence
    branch = sequence.branch
    assert scoring is not None
    assert branch is not None
    if logits.shape[0]:
        known = sequence.num_known_rows
        sequence.num_known_rows += logits.shape[0]
        scoring.record(branch.nodes[known : sequence.num_known_rows], logits, sampler)


def advance(part: ScheduledSequence, state: RequestState, scheduler: Scheduler, sequences: SequenceFactory) -> bool:
    """Go on where a branch has ended, if its part of a step, already recorded and committed to the cache, is the last.

    Mutates the sequences of `state`, the queues and the cache.

    Returns:
        Whether all is known.
    """
    scoring, sequence = state.scoring, part.sequence
    branch = sequence.branch
    assert scoring is not None
    assert branch is not None
    if part.end < sequence.num_tokens:
        return False
    assert sequence.num_known_rows == len(branch.nodes)
    scoring.num_open_branches -= 1
    if branch.children:
        forks = [sequences.fork_branch(sequence, child) for child in branch.children[1:]]
        state.sequences += forks
        sequence.go_on(branch.children[0])
        _branch_off(sequence, forks, scheduler)
    else:
        sequence.finish_reason = FinishReason.SCORED
        scheduler.remove(sequence)
    return scoring.num_open_branches == 0


def _branch_off(parent: Sequence, children: list[Sequence], scheduler: Scheduler) -> None:
    """Let these, which begin with the tokens computed for `parent`, run beside it on shared blocks: as many as there is
    room for beside what everybody else is expected to need. The rest wait, ahead of all who never ran.

    The copies this takes are carried out with the next batch.
    """
    table, cache, admission = parent.block_table, scheduler.cache, scheduler.admission
    assert table is not None
    num_shared_blocks = table.num_committed_tokens // cache.block_size
    admission.begin_pass(scheduler.running)
    has_room = True
    for child in children:
        has_room = has_room and admission.has_room(child, num_shared_blocks, 0, cache.num_available_blocks)
        if not has_room:
            child.program_branch = parent.program_branch
            scheduler.waiting.add_returning(child)
        elif scheduler.fork(parent, child):
            admission.on_admission(child)
