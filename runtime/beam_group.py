"""The beams of one request in the engine: one choice of the search becomes sequences and shared blocks.

Each live beam is a sequence with a block table. After a step every beam has its likeliest next tokens; when all of a
request have theirs (one may lag behind, when it was preempted), the search chooses. A beam that is chosen once goes on
in its own blocks; chosen again, a fork shares its full blocks and copies the partial one; not chosen, it gives them
back.
"""

from __future__ import annotations

from .beam_search import BeamSearch
from .request_state import RequestState
from .scheduler import Scheduler
from .sequence import Sequence
from .sequence_factory import SequenceFactory


def start_search(sequence: Sequence) -> BeamSearch:
    """The search that a request with one sequence, its prompt, begins with."""
    params = sequence.request.sampling_params
    return BeamSearch(
        beam_width=params.beam_width,
        max_tokens=sequence.max_tokens,
        stop_token_ids=sequence.stop_token_ids,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
    )


def is_ready(state: RequestState) -> bool:
    """Whether every live beam has its candidates."""
    return all(beam.beam_candidates is not None for beam in state.sequences)


def advance(state: RequestState, scheduler: Scheduler, sequences: SequenceFactory) -> bool:
    """Let the search choose; it must be ready. Mutates the beams, the queues and the cache.

    Returns:
        Whether the search is over; the beams have given up their blocks then.
    """
    search = state.beam_search
    assert search is not None
    candidates = [beam.beam_candidates for beam in state.sequences if beam.beam_candidates is not None]
    assert len(candidates) == len(state.sequences)
    step = search.advance(candidates)
    chosen: list[Sequence] = []
    survivors: set[int] = set()
    forks: list[tuple[Sequence, Sequence]] = []
    for choice in step.beams:
        parent = state.sequences[choice.parent_idx]
        if choice.parent_idx in survivors:
            beam = sequences.fork(parent)
            forks.append((parent, beam))
        else:
            survivors.add(choice.parent_idx)
            beam = parent
        chosen.append(beam)
    for idx, beam in enumerate(state.sequences):  # first, so that the forks find their blocks free
        if idx not in survivors:
            scheduler.remove(beam)
    for parent, beam in forks:
        scheduler.fork(parent, beam)
    for beam, choice in zip(chosen, step.beams, strict=True):
        if beam.constraint is not None:
            beam.constraint.advance(choice.token_id, 0)
        beam.token_ids.append(choice.token_id)
        beam.beam_candidates = None
    state.sequences = chosen or state.sequences[:1]
    if search.is_finished and search.hypotheses:
        state.sequences[0].finish_reason = search.hypotheses[0].finish_reason
    return search.is_finished
