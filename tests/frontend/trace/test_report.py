"""What runs share, exactly, and what the cache made of it."""

from __future__ import annotations

from ramet import MockBackend, ProgramState, function, gen, report
from ramet.frontend.trace.report import ReportBuilder, report_of_traces


@function
def triage(s: ProgramState, ticket: str) -> None:
    s += "Sort this: " + ticket + gen("queue", max_tokens=4)
    s += " Why? " + gen("why", max_tokens=4)


def test_the_shared_prefix_is_exact() -> None:
    items = [{"ticket": text} for text in ("roses", "roots", "rocks")]
    states = triage.run_batch(items, backend=MockBackend("ok"), max_concurrency=1)
    (told,) = report(states)
    assert (told.name, told.num_runs, told.num_calls) == ("triage", 3, 6)
    assert told.shared_prefix_len == len("Sort this: ro")
    assert told.num_shared_cached_tokens == 2 * told.shared_prefix_len
    assert told.saved_s is None
    assert str(told) == (
        f"triage: shared prefix 13 tokens x 3 runs, 67 % hit; the cache saved {told.num_cached_tokens} of 120 "
        "prompt tokens"
    )
    assert report_of_traces(state.trace() for state in states) == [told]


def test_branches_of_a_run_count_once_and_programs_apart() -> None:
    @function
    def forked(s: ProgramState) -> None:
        s += "abc"
        for fork in s.fork(3):
            fork += gen("x", max_tokens=2)

    backend = MockBackend("ok")
    state = forked.run(backend=backend)
    told = report([state, state, triage.run(ticket="t", backend=backend)])
    assert [(each.name, each.num_runs) for each in told] == [("forked", 1), ("triage", 1)]
    assert told[0].shared_prefix_len == 3
    assert str(told[0]).startswith("forked: 1 run; the cache saved 4 of 9 prompt tokens")


def test_a_prefix_that_is_too_short_to_wait_for_says_so() -> None:
    def told(prefix_len: int, num_cached: int) -> str:
        builder = ReportBuilder("f")
        for idx in range(3):
            builder.add_first_prompt([*range(prefix_len), 100 + idx])
            builder.add_call(prefix_len + 1, num_cached, 4)
            builder.add_first_cached(num_cached)
        return str(builder.report())

    assert told(15, 0).startswith("f: shared prefix 15 tokens x 3 runs, 0 % hit (too short to wait for: ")
    for prefix_len, num_cached in ((16, 0), (15, 10)):
        assert "too short" not in told(prefix_len, num_cached)
    assert told(0, 0) == "f: 3 runs without a shared prefix; the cache saved 0 of 3 prompt tokens"


def test_no_runs_no_report() -> None:
    assert report([]) == []


def test_what_was_saved_goes_by_the_fastest_long_prompt() -> None:
    builder = ReportBuilder("f")
    builder.add_first_prompt([1, 2, 3])
    builder.add_call(100, 50, 0)
    builder.add_prefill(31, 0.0031)  # too short to tell
    builder.add_prefill(50, 0.5)
    builder.add_prefill(50, 0.1)
    assert builder.report().saved_s == 50 * 0.002
    assert str(builder.report()).endswith("the cache saved 50 of 100 prompt tokens, about 100 ms")
