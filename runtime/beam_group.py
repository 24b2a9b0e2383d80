"""The beams of one request in the engine: one choice of the search becomes sequences and shared blocks.

Each live beam is a sequence with a block table. After a step every beam has its likeliest next tokens; when all of a
request have theirs (one may lag behind, when it was preempted), the search chooses. A beam that is chosen once goes on
in its own blocks; chosen again, a fork shares its full blocks and copies the partial one; not chosen, it gives them
back.
"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Choice:
    """What a search has chosen.

    Attributes:
        beams: who goes on, best first, each with its next token, which its grammar has accepted.
        forks: those of them that are new, each with the one whose tokens it begins with.
    """

    beams: list[tuple[Sequence, int]]
    forks: list[tuple[Sequence, Sequence]]


def choose(state: RequestState, sequences: SequenceFactory) -> Choice:
    """Let the search choose; it must be ready. Mutates the search and the grammars of the beams, nothing else; what it
    raises is the request's alone."""
    search = state.beam_search
    assert search is not None
    candidates = [beam.beam_candidates for beam in state.sequences if beam.beam_candidates is not None]
    assert len(candidates) == len(state.sequences)
    survivors: set[int] = set()
    choice = Choice([], [])
    for chosen in search.advance(candidates).beams:
        parent = beam = state.sequences[chosen.parent_idx]
        if chosen.parent_idx in survivors:
            beam = sequences.fork(parent)
            choice.forks.append((parent, beam))
        survivors.add(chosen.parent_idx)
        choice.beams.append((beam, chosen.token_id))
    for beam, token_id in choice.beams:
        if beam.constraint is not None:
            beam.constraint.advance(token_id, 0)
    return choice


def go_on(state: RequestState, choice: Choice, scheduler: Scheduler) -> bool:
    """Let the chosen beams go on. Mutates the beams, the queues and the cache.

    Returns:
        Whether the search is over; the beams have given up their blocks then.
    """
    search = state.beam_search
    assert search is not None
    chosen = [beam for beam, _ in choice.beams]
    for beam in state.sequences:  # first, so that the forks find their blocks free
        if beam not in chosen:
            scheduler.remove(beam)
    for parent, beam in choice.forks:
        scheduler.fork(parent, beam)
    for beam, token_id in choice.beams:
        beam.token_ids.append(token_id)
        beam.beam_candidates = None
    state.sequences = chosen or state.sequences[:1]
    if search.is_finished and search.hypotheses:
        state.sequences[0].finish_reason = search.hypotheses[0].finish_reason
    return search.is_finished
