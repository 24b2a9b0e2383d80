"""Programs in the engine: what they have had, what the cache keeps for them, and that nothing is left of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ramet.radix import NEVER, UNKNOWN
from ramet.runtime import programs as programs_module
from ramet.runtime.errors import InvalidRequestError
from ramet.runtime.request_program import RequestProgram

STEPS = {"eviction_policy": "steps-to-execution"}


def tokens(first: int, length: int) -> list[int]:
    return [(first + 7 * idx) % 99 for idx in range(length)]


class Caller:
    """Makes the calls of programs, one after the other or together."""

    def __init__(self, engine, request_of, run) -> None:
        self.engine, self.request_of, self._run = engine, request_of, run
        self.programs = engine.scheduler.programs
        self.count = 0

    def add(self, run_id, prompt, branch=(), **fields):
        self.count += 1
        fields = {"max_tokens": 2, "ignore_eos": True} | fields
        program = None if run_id is None else RequestProgram(run_id, f"program {run_id}", branch)
        self.engine.add_request(replace(self.request_of(f"r{self.count}", prompt, **fields), program=program))
        return f"r{self.count}"

    def call(self, run_id, prompt, branch=(), **fields):
        request_id = self.add(run_id, prompt, branch, **fields)
        return self._run(self.engine)[request_id]

    def num_cached(self, prompt) -> int:
        return self.engine.cache.match(prompt).num_tokens

    def press(self, num_blocks: int) -> None:
        """Take so many blocks from the tree for a request that stands alone."""
        self.call(None, tokens(50 + self.count, 16 * (self.engine.cache.num_free_blocks + num_blocks) - 8))

    def branch(self, run_id, path=()):
        return self.programs._records[run_id].branches[path]


@pytest.fixture
def caller(make_engine, request_of, run):
    return lambda **options: Caller(make_engine(**options), request_of, run)


A, B = tokens(1, 40), tokens(2, 40)


@pytest.mark.parametrize("options", [STEPS, {"keep_open_programs": True}], ids=["steps", "keep open"])
def test_an_open_program_is_kept_and_an_ended_one_is_not(caller, options):
    caller = caller(num_blocks=8, **options)
    caller.call("open", A)
    caller.call("ended", B)
    caller.programs.end("ended")
    assert caller.num_cached(A) >= 40
    caller.press(3)
    assert (caller.num_cached(A) >= 40, caller.num_cached(B)) == (True, 0)
    caller.programs.end("open")
    assert len(caller.programs) == len(caller.engine.cache.expectations) == 0


def test_by_default_nothing_is_known_of_programs(caller):
    caller = caller(num_blocks=8)
    caller.call("open", A)
    caller.programs.fork("open", (), 0, 2)
    caller.call("ended", B)
    caller.programs.end("ended")
    assert len(caller.programs) == len(caller.engine.cache.expectations) == 0
    caller.press(3)
    assert (caller.num_cached(A), caller.num_cached(B) >= 40) == (0, True)


def test_under_pressure_open_programs_go_too(caller):
    """More of them than the pool holds: all are served, none is locked."""
    caller = caller(num_blocks=8, **STEPS)
    for turn in range(3):
        for idx in range(9):
            assert caller.call(idx, tokens(idx, 40 + 5 * turn)).error is None
    assert len(caller.programs) == 9


def test_what_is_expected_sooner_is_kept_longer(caller):
    caller = caller(num_blocks=8, **STEPS)
    caller.call("late", A)
    caller.call("soon", B)
    caller.programs.expect("late", (), 5)
    caller.programs.expect("soon", (), 1)
    caller.call("late", A)  # used last, and expected as before it was expected
    caller.programs.expect("late", (), 5)
    caller.press(3)
    assert (caller.num_cached(A), caller.num_cached(B) >= 40) == (0, True)


def test_an_expectation_holds_until_the_next_call(caller):
    caller = caller(**STEPS)
    caller.call("a", A)
    assert caller.branch("a").expectation.steps == UNKNOWN
    caller.programs.expect("a", (), 3)
    assert caller.branch("a").expectation.steps == 3
    caller.call("a", [*A, *B])
    assert caller.branch("a").expectation.steps == UNKNOWN
    caller.programs.expect("a", (), None)
    assert caller.branch("a").expectation.steps == NEVER
    caller.call("a", [*A, *B, 5])
    assert caller.branch("a").expectation.steps == UNKNOWN


def test_every_call_of_a_program_brings_the_expected_ones_nearer(caller):
    """Three agents in turn: each says once after its call how many others come before it."""
    caller = caller(**STEPS)
    states = {(idx,): tokens(10 * idx, 30) for idx in range(3)}
    for turn in range(6):
        path = (turn % 3,)
        states[path] += [turn]
        caller.call("a", states[path], path)
        caller.programs.expect("a", path, 2)
        if turn >= 2:
            steps = [caller.branch("a", other).expectation.steps for other in states]
            assert steps == [max(1, 2 - (turn - idx) % 3) for idx in range(3)]
    caller.call("b", [5])
    assert [caller.branch("a", path).expectation.steps for path in states] == [1, 1, 2]


def test_a_short_question_beside_a_state_does_not_move_what_is_expected(caller):
    """A select with unconditional scores asks a second, short question on the same branch."""
    caller = caller(**STEPS)
    caller.call("a", A)
    expectation = caller.branch("a").expectation
    piece = expectation.piece
    caller.call("a", [7])
    assert caller.branch("a").expectation is expectation
    assert expectation.piece is piece


def test_a_waiting_call_is_expected_at_once(caller):
    caller = caller(max_num_seqs=1, **STEPS)
    caller.call("a", A)
    caller.add("other", B, max_tokens=30)
    caller.engine.step()
    waiting = caller.add("a", [*A, *B])
    caller.engine.step()
    assert caller.branch("a").expectation.steps == 0
    caller.engine.abort_request(waiting)
    caller.engine.step()
    assert caller.branch("a").expectation.steps == UNKNOWN


def test_a_fork_is_expected_until_every_branch_has_called_and_a_join_after_that(caller):
    caller = caller(**STEPS)
    caller.call("a", A)
    caller.programs.fork("a", (), 0, 2)
    caller.programs.join("a", (), [(0,), (1,)], 2)
    parent = caller.branch("a")
    assert parent.expectation.steps == 0
    caller.call("a", [*A, 1], (0,))
    assert parent.expectation.steps == 0
    caller.call("a", [*A, 2], (1,))
    assert parent.expectation.steps == 1, "a call came after the first"
    assert caller.branch("a", (0,)).expectation.steps == NEVER
    caller.call("a", [*A, 1, 2, 3], (0,))
    assert parent.expectation.steps == 1
    caller.call("a", [*A, *B])
    assert parent.expectation.steps == UNKNOWN


def test_the_longest_chain_of_calls_counts_for_a_program_with_branches(caller):
    caller = caller(schedule_policy="program")
    caller.call("a", tokens(1, 30), max_tokens=10)
    assert caller.branch("a").num_served_tokens == 40
    caller.programs.fork("a", (), 0, 3)
    caller.call("a", tokens(1, 30) + tokens(3, 20), (0,), max_tokens=5)
    caller.call("a", tokens(1, 30) + tokens(4, 50), (1,), max_tokens=5)
    served = {path: branch.num_served_tokens for path, branch in caller.programs._records["a"].branches.items()}
    assert served == {(): 95, (0,): 65, (1,): 95, (2,): 40}
    caller.call("a", [9], (2, 0), max_tokens=1)
    assert caller.branch("a", (2, 0)).num_served_tokens == 42


def test_samples_of_a_call_count_their_prompt_once(caller):
    caller = caller(schedule_policy="program")
    caller.call("a", tokens(1, 30), max_tokens=10, n=3, temperature=1.0, seed=1)
    assert caller.branch("a").num_served_tokens == 60


def test_the_program_that_has_had_least_comes_first(caller):
    caller = caller(num_blocks=400, schedule_policy="program", max_num_seqs=1)
    for name, length in (("long", 1200), ("longer", 2400)):
        caller.call(name, tokens(len(name), length))
    caller.call("short", A)
    caller.add("x", [5], max_tokens=20)
    caller.engine.step()
    names = {caller.add(name, [len(name)]): name for name in ("longer", "long", "short")}
    names[caller.add(None, [9])] = "alone"
    served = [chunk.request_id for _ in range(100) for chunk in caller.engine.step() if chunk.output is not None]
    assert [names[request_id] for request_id in served[1:]] == ["short", "alone", "long", "longer"]


def test_an_end_while_calls_run_leaves_nothing(caller):
    caller = caller(**STEPS)
    caller.add("a", A, max_tokens=20)
    caller.engine.step()
    caller.programs.end("a")
    caller.programs.end("a")
    caller._run(caller.engine)
    assert len(caller.programs) == len(caller.engine.cache.expectations) == 0


def test_a_preempted_sequence_is_expected_back(caller):
    caller = caller(num_blocks=12, reserve="none", **STEPS)
    for name in ("a", None):
        caller.add(name, tokens(len(name or ""), 60), max_tokens=60)
    while caller.engine.metrics.num_preemptions == 0:
        caller.engine.step()
    (victim,) = caller.engine.scheduler.waiting
    assert victim.expectation is not None
    caller._run(caller.engine)
    caller.programs.end("a")
    assert len(caller.engine.cache.expectations) == 0


def test_programs_whose_end_nobody_tells_are_forgotten_one_day(caller, monkeypatch):
    monkeypatch.setattr(programs_module, "MAX_PROGRAMS", 3)
    caller = caller(**STEPS)
    for idx in range(6):
        caller.call(idx, tokens(idx, 20))
        caller.call(0, tokens(0, 20))
    assert list(caller.programs._records) == [4, 5, 0]
    assert len(caller.engine.cache.expectations) == 3


@pytest.mark.parametrize(
    "program",
    [
        "run 1",
        RequestProgram([]),
        RequestProgram("a", name=3),
        RequestProgram("a", branch=[0]),
        RequestProgram(1, "", (-1,)),
    ],
)
def test_a_malformed_program_is_refused(make_engine, request_of, program):
    with pytest.raises(InvalidRequestError, match="program"):
        make_engine().add_request(replace(request_of("r", [1]), program=program))


@pytest.mark.parametrize("options", [{}, STEPS, {"keep_open_programs": True}, {"schedule_policy": "program"}])
def test_outputs_do_not_depend_on_what_is_known_of_programs(caller, options):
    caller = caller(num_blocks=10, reserve="none", **options)
    for idx in range(12):
        caller.programs.fork(idx % 3, (), 0, 2)
        caller.add(idx % 3, tokens(idx % 4, 20 + idx), (idx % 2,), max_tokens=12)
        caller.programs.expect(idx % 3, (idx % 2,), idx % 5)
    texts = [output.outputs[0].text for _, output in sorted(caller._run(caller.engine).items())]
    plain = Caller(caller.engine, caller.request_of, caller._run)
    plain.count = 100
    plain.engine.reset_prefix_cache()
    again = [
        plain.call(None, tokens(idx % 4, 20 + idx), max_tokens=12).outputs[0].text
        for idx in sorted(range(12), key=lambda idx: f"r{idx + 1}")
    ]
    assert texts == again
