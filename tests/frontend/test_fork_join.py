"""Forks: branches run side by side, share what is before them, and join in order."""

from __future__ import annotations

import threading

import pytest

from ramet.frontend.backend import GenerateCall
from ramet.frontend.backends.mock import MockBackend
from ramet.frontend.backends.mock_tokenizer import MockTokenizer
from ramet.frontend.errors import ForkError, GenerationError, InvalidProgramError
from ramet.frontend.primitives import assistant_begin, assistant_end, gen, user
from ramet.frontend.program import function
from ramet.frontend.run_context import RunContext
from ramet.frontend.scope import Scope
from ramet.frontend.state import ProgramState


def echo_last(call: GenerateCall, prompt: str) -> str:
    return f"<{prompt[-1]}>"


def prompts(backend: MockBackend) -> list[str]:
    return [request.prompt for request in backend.requests]


@function
def three_ways(s: ProgramState) -> None:
    s += "root:"
    branches = s.fork(3)
    for idx, branch in enumerate(branches):
        branch += str(idx) + gen("x")
    joined = branches.join()
    assert list(joined) == ["x"]


def test_branches_run_at_the_same_time_and_join_in_order() -> None:
    backend = MockBackend(echo_last, mode="manual")
    state = three_ways.run(backend=backend)
    assert prompts(backend) == ["root:0", "root:1", "root:2"]
    for request in reversed(backend.waiting):
        backend.answer(request)
    assert state["x"] == ["<0>", "<1>", "<2>"]
    assert [meta.num_prompt_tokens for meta in state.metas("x")] == [6, 6, 6]
    with pytest.raises(InvalidProgramError, match=r"joined from 3 branches: use metas\('x'\)"):
        state.meta("x")
    assert state.text() == "root:"


def test_fork_and_branches_wait_for_a_pending_call_without_blocking() -> None:
    backend = MockBackend(echo_last, mode="manual")

    @function
    def forks_early(s: ProgramState) -> None:
        s += "a" + gen("first")
        branches = s.fork(2)
        branches += gen("second")
        assert "first" in branches[0]
        branches.join()
        s += "b" + gen("last")

    state = forks_early.run(backend=backend)
    assert prompts(backend) == ["a"]
    backend.answer_next()
    assert sorted(prompts(backend)) == ["a", "a<a>", "a<a>", "a<a>b"]
    backend.answer_all()
    assert state["second"] == ["<>>", "<>>"]
    assert state["last"] == "<b>"


def test_shared_prefix_is_announced_up_to_where_branches_may_differ() -> None:
    """The branch's first literal merges with the end of the shared text, so that the merged token is not shared."""
    tokenizer = MockTokenizer(merges=[":1"])
    backend = MockBackend(tokenizer=tokenizer)

    @function
    def merging(s: ProgramState) -> None:
        s += "ab" + gen("y") + "cd:"
        branches = s.fork(2)
        branches += [str(idx) + gen("x") for idx in range(2)]
        branches[1].fork(2).__iadd__(gen("z"))

    merging.run(backend=backend).sync()
    lens = [request.call.shared_prefix_len for request in backend.requests]
    assert [len(request.call.prompt_token_ids) for request in backend.requests] == [2, 8, 7, 9, 9]
    assert backend.requests[2].call.prompt_token_ids[-1] == tokenizer.merge_ids[":1"]
    assert lens == [0, 7, 6, 9, 9]


def test_branches_inherit_variables_messages_and_the_open_role() -> None:
    backend = MockBackend(["plan", "draft 0", "draft 1", "end"])

    @function
    def inherits(s: ProgramState) -> None:
        s += user("hi") + assistant_begin() + gen("plan")
        branches = s.fork(2)
        for branch in branches:
            assert branch["plan"] == "plan"
            assert branch.meta("plan").num_generated_tokens == 4
            branch += "," + gen("draft") + assistant_end()
        branches.join()
        assert [message["content"] for message in branches[1].messages()] == ["hi", "plan,draft 1"]
        s += assistant_end()
        assert [message["content"] for message in s.messages()] == ["hi", "plan"]

    assert inherits.run(backend=backend)["draft"] == ["draft 0", "draft 1"]


def test_a_second_round_with_the_same_name_binds_it_anew() -> None:
    backend = MockBackend([f"r{idx}" for idx in range(5)])

    @function
    def rounds(s: ProgramState) -> None:
        s += "q"
        first = s.fork(2)
        first += gen("x")
        first.join()
        assert s["x"] == ["r0", "r1"]
        second = s.fork(3)
        assert second[0]["x"] == ["r0", "r1"]
        second += gen("x")
        second.join()
        assert [branch["x"] for branch in first] == ["r0", "r1"]

    assert rounds.run(backend=backend)["x"] == ["r2", "r3", "r4"]


def test_a_name_the_parent_had_is_joined_when_branches_bind_it_again() -> None:
    @function
    def rebinds(s: ProgramState) -> None:
        s += "q" + gen("x")
        branches = s.fork(2)
        branches += gen("x")
        assert s["x"] == "one"
        branches.join()

    assert rebinds.run(backend=MockBackend(["one", "two", "three"]))["x"] == ["two", "three"]


def test_names_bound_by_some_branches_list_only_those() -> None:
    @function
    def uneven(s: ProgramState) -> None:
        s += "q"
        branches = s.fork(3)
        branches[0] += gen("a")
        branches[2] += gen("a") + gen("b")
        branches.join()

    state = uneven.run(backend=MockBackend(["one", "two", "three"]))
    assert state["a"] == ["one", "two"]
    assert state["b"] == ["three"]


def test_fork_under_fork_gives_nested_lists() -> None:
    @function
    def nested(s: ProgramState) -> None:
        s += "r"
        outer = s.fork(2)
        for idx, branch in enumerate(outer):
            branch += str(idx)
            inner = branch.fork(2)
            inner += lambda idx: "ab"[idx] + gen("x")
            inner.join()
            branch += "!" + gen("y")
        outer.join()

    backend = MockBackend(echo_last)
    state = nested.run(backend=backend)
    assert state["x"] == [["<a>", "<b>"], ["<a>", "<b>"]]
    assert state["y"] == ["<!>", "<!>"]
    assert prompts(backend) == ["r0a", "r0b", "r0!", "r1a", "r1b", "r1!"]
    branches = {call.branch for call in state.calls()}
    assert branches == {(), (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)}
    assert [meta.num_generated_tokens for meta in state.metas("x")] == [3, 3, 3, 3]


def test_the_graph_shows_forks_and_joins() -> None:
    state = three_ways.run(backend=MockBackend())
    state.sync()
    by_kind = {kind: [call for call in state.calls() if call.kind == kind] for kind in ("fork", "gen", "join", "text")}
    (fork,), (join,) = by_kind["fork"], by_kind["join"]
    assert (fork.num_branches, join.num_branches) == (3, 3)
    assert [call.parent_ids for call in by_kind["text"]] == [(), *[(fork.call_id,)] * 3]
    assert join.parent_ids == tuple(call.call_id for call in by_kind["gen"])


def test_a_failed_branch_keeps_its_place_and_reads_raise() -> None:
    def second_fails(call: GenerateCall, prompt: str) -> str:
        if prompt.endswith("1"):
            raise RuntimeError("bad luck")
        return echo_last(call, prompt)

    state = three_ways.run(backend=MockBackend(second_fails))
    with pytest.raises(ForkError, match=r"1 of 3 branches did not give 'x'; entry 1: gen 'x' .* bad luck") as failure:
        state["x"]
    assert isinstance(failure.value.__cause__, GenerationError)
    assert [str(item)[:7] for item in failure.value.results] == ["<0>", "gen 'x'", "<2>"]
    assert state.text() == "root:"
    assert isinstance(state.error(), GenerationError)


def test_join_can_return_errors_as_entries() -> None:
    @function
    def tolerant(s: ProgramState) -> list[object]:
        s += "q"
        branches = s.fork(2)
        branches += [gen("x"), gen("x")]
        return branches.join(on_error="return")["x"]

    values = tolerant.run(backend=MockBackend([RuntimeError("bad luck"), "fine"])).return_value
    assert isinstance(values, list)
    assert isinstance(values[0], GenerationError)
    assert values[1] == "fine"


def test_a_fork_of_a_failed_state_fails_in_every_branch() -> None:
    @function
    def doomed(s: ProgramState) -> None:
        s += "q" + gen("x")
        branches = s.fork(2)
        branches += gen("y")
        branches.join()

    state = doomed.run(backend=MockBackend([RuntimeError("bad luck")]))
    with pytest.raises(ForkError, match=r"2 of 2 branches .*gen 'y' .* was not run: gen 'x' .* failed: bad luck"):
        state["y"]


def test_streaming_a_joined_name_says_what_to_do() -> None:
    state = three_ways.run(backend=MockBackend())
    with pytest.raises(InvalidProgramError, match="iterate over the branches"):
        next(state.text_iter("x"))


def test_group_behaves_like_a_sequence() -> None:
    @function
    def group(s: ProgramState) -> None:
        s += "q"
        branches = s.fork(3)
        assert len(branches) == 3
        assert list(branches) == [branches[0], branches[1], branches[2]]
        branches[1] += "one"
        with pytest.raises(InvalidProgramError, match="cannot be replaced"):
            branches[1] = branches[2]
        with pytest.raises(InvalidProgramError, match="list of 2 expressions to 3 branches"):
            branches += ["a", "b"]
        with pytest.raises(IndexError):
            branches[3]
        with pytest.raises(InvalidProgramError, match="on_error='x'"):
            branches.join(on_error="x")  # type: ignore[arg-type]
        with pytest.raises(InvalidProgramError, match=r"forks\[i\]\['x'\], or of all with forks\.join\(\)\['x'\]"):
            branches["x"]  # type: ignore[index]
        assert branches[1].text() == "qone"
        assert "3 branches" in repr(branches)

    group.run(backend=MockBackend())


@pytest.mark.parametrize("size", [0, -1, 1.5, True, 5000])
def test_fork_size_is_checked(size: int) -> None:
    @function
    def forks(s: ProgramState) -> None:
        s.fork(size)

    with pytest.raises(InvalidProgramError, match="number of branches from 1 to 4096"):
        forks.run(backend=MockBackend())


def test_join_result_shows_what_is_pending() -> None:
    backend = MockBackend(mode="manual")

    @function
    def pending(s: ProgramState) -> object:
        s += "q"
        branches = s.fork(2)
        branches += gen("x")
        return branches.join()

    joined = pending.run(backend=backend).return_value
    assert repr(joined) == "<JoinedValues {'x': pending}>"
    backend.answer_all()
    assert repr(joined) == "<JoinedValues {'x': done}>"


def test_forks_nested_too_deep_are_refused_and_none_hangs() -> None:
    @function
    def nest(s: ProgramState, depth: int) -> ProgramState:
        s += "a" + gen("first", max_tokens=2)
        for _ in range(depth):
            (s,) = s.fork(1)
            s += "b"
        s += gen("x", max_tokens=2)
        return s

    backend = MockBackend(mode="background")
    deepest = nest.run(64, backend=backend).return_value
    assert isinstance(deepest, ProgramState)
    assert deepest.get("x", timeout=30) == "ok"
    with pytest.raises(InvalidProgramError, match="nested more than 64 deep"):
        nest.run(65, backend=backend)
    backend.close()


def test_joining_while_another_thread_binds_names_in_a_branch() -> None:
    state = ProgramState(Scope(RunContext("test", MockBackend(), {})))
    state += "q"
    forks = state.fork(2)
    has_begun = threading.Event()

    def bind() -> None:
        for idx in range(3000):
            forks[0].set_var(f"x{idx}", 1)
            has_begun.set()

    thread = threading.Thread(target=bind)
    thread.start()
    assert has_begun.wait(60)
    while thread.is_alive():
        forks.join()
    thread.join()
    assert len(forks.join()) == 3000
