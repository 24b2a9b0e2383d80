"""The figures' workloads: repeatable, and sharing what they say they share."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ramet.figures.cost_model import UNIT_STEPS
from ramet.figures.program_simulation import ProgramSimulation
from ramet.figures.simulation import Simulation
from ramet.figures.workloads import WORKLOADS, Call, Program, TokenSource, Workload

VOCAB_SIZE = 32_000


def drain(program: Program) -> list[list[Call]]:
    """All calls of a program whose outputs are a token 0 each."""
    rounds = []
    calls = next(program)
    while True:
        rounds.append(calls)
        try:
            calls = program.send([[0] * call.num_output_tokens for call in calls])
        except StopIteration:
            return rounds


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_a_workload_is_the_same_whatever_the_order_its_programs_run_in(workload: Workload) -> None:
    forwards, times = workload.draw(TokenSource(3, VOCAB_SIZE), 8)
    backwards, same_times = workload.draw(TokenSource(3, VOCAB_SIZE), 8)
    drained = [drain(program) for program in reversed(backwards)]

    assert [drain(program) for program in forwards] == drained[::-1]
    assert times == same_times == sorted(times)
    assert len(times) == len(forwards) == 8


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_two_seeds_share_nothing(workload: Workload) -> None:
    prompts = [drain(workload.draw(TokenSource(seed, VOCAB_SIZE), 4)[0][0])[0][0].prompt for seed in (1, 2)]

    assert prompts[0][:4] != prompts[1][:4]


def test_a_turn_of_a_chat_begins_with_all_that_was_said_before() -> None:
    chat = next(workload for workload in WORKLOADS if workload.name == "multi-turn")
    rounds = drain(chat.draw(TokenSource(5, VOCAB_SIZE), 2)[0][0])

    assert len(rounds) == 4
    for (earlier,), (later,) in pairwise(rounds):
        heard = earlier.prompt + [0] * earlier.num_output_tokens
        assert later.prompt[: len(heard)] == heard
        assert len(later.prompt) > len(heard)
        assert later.session == earlier.session


def test_thoughts_double_and_each_is_judged() -> None:
    tree = next(workload for workload in WORKLOADS if workload.name == "tree-of-thought")
    rounds = drain(tree.draw(TokenSource(5, VOCAB_SIZE), 1)[0][0])

    assert [len(calls) for calls in rounds] == [2, 2, 4, 4, 8, 8]


def test_a_program_is_sent_the_outputs_of_its_calls_in_order() -> None:
    seen: list[list[int]] = []

    def program() -> Program:
        outputs = yield [Call([1], 3, "a"), Call([2], 1, "a")]  # the second call ends first
        seen.append([len(output) for output in outputs])
        outputs = yield [Call([1, *outputs[0]], 2, "a")]
        seen.append([len(output) for output in outputs])

    simulation = Simulation(UNIT_STEPS, num_blocks=64)
    records = ProgramSimulation(simulation).run([program(), program()], [0.0, 100.0])

    assert seen == [[3, 1], [2]] * 2
    assert len(records) == 6
    assert records[-1].arrival_s > 100.0, "the last call follows from answers after the second program's start"
