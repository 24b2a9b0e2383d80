"""Program.trace: the graph of a program ahead of a run, and where it has to stop."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.frontend.backend import Backend
from ramet.frontend.backends.mock import MockBackend
from ramet.frontend.capture.program_graph import ProgramGraph
from ramet.frontend.capture.tracer import MAX_NODES, cache_prefix
from ramet.frontend.errors import InvalidProgramError, UnknownVariableError
from ramet.frontend.primitives import assistant, gen, select, system, user
from ramet.frontend.program import function
from ramet.frontend.state import ProgramState


@function
def triage(s: ProgramState, ticket: str, num_drafts: int = 2) -> None:
    s += system("You route support tickets.") + user(ticket)
    with s.assistant():
        s += "Category: " + select("category", choices=["billing", "bug"])
        branches = s.fork(num_drafts)
        for idx, branch in enumerate(branches):
            branch += f"\nDraft {idx + 1}: " + gen("draft", max_tokens=60, seed=idx)
        drafts = branches.join()["draft"]
    s += user(f"Which of {drafts[0]} and {drafts[1]} is better for a {s['category']} ticket?")
    s += assistant(gen("verdict", max_tokens=5))


def kinds(graph: ProgramGraph) -> list[str]:
    return [node.kind for node in graph.nodes]


def test_the_graph_of_a_program_with_everything_in_it() -> None:
    graph = triage.trace()
    assert graph.is_complete
    assert kinds(graph) == [
        "text",
        "text",
        "text",
        "select",
        "fork",
        "text",
        "gen",
        "text",
        "gen",
        "join",
        "text",
        "gen",
    ]
    nodes = graph.nodes
    assert [node.name for node in graph.calls] == ["category", "draft", "draft", "verdict"]
    assert nodes[1].text == "{ticket}"
    assert nodes[1].arguments == ("ticket",)
    assert [node.role for node in nodes[:4]] == ["system", "user", "assistant", "assistant"]
    assert nodes[4].parent_ids == (3,)
    assert [node.branch for node in graph.calls] == [(), (0,), (1,), ()]
    assert nodes[9].parent_ids == (6, 8)
    assert nodes[10].uses == (6, 8, 3)
    assert nodes[10].text == "Which of {draft[0]} and {draft[1]} is better for a {category} ticket?"
    assert nodes[8].params == {"max_tokens": 60, "seed": 1}
    assert nodes[3].choices == ("billing", "bug")
    assert all(node.source.startswith("test_program_trace.py:") for node in nodes)


def test_it_is_shown_as_text_and_as_json() -> None:
    graph = triage.trace(ticket="I was charged twice.")
    text = str(graph)
    assert text.startswith("program triage\nconstant prefix (")
    assert "gen[1] in assistant 'draft' seed=1 max_tokens=60 after 7" in text
    assert "\ufdd0" not in text
    document = json.loads(graph.to_json())
    assert document["program"] == "triage"
    assert document["stop"] is None
    assert document["nodes"][10]["uses"] == [6, 8, 3]
    assert len(document["nodes"]) == len(graph.nodes)


def test_the_constant_prefix_is_what_all_prompts_begin_with() -> None:
    backend = MockBackend()
    graph = triage.trace(backend=backend)
    assert graph.prefix_text == "<|start|>system\nYou route support tickets.<|end|>\n<|start|>user\n"
    assert graph.num_prefix_tokens == len(backend.encode(graph.prefix, at_start=True)) > 0
    full = triage.trace("I was charged twice.", backend=backend).prefix_text
    assert full.endswith("I was charged twice.<|end|>\n<|start|>assistant\nCategory: ")
    assert backend.requests == []
    assert backend.hints == []
    assert triage.trace().num_prefix_tokens is None


def test_branches_that_begin_alike_share_their_beginning() -> None:
    @function
    def sums(s: ProgramState) -> None:
        s += "Numbers: "
        for idx, branch in enumerate(s.fork(3)):
            branch += f"add 1{idx}: " + gen("x")

    assert sums.trace().prefix_text == "Numbers: add 1"

    @function
    def silent(s: ProgramState) -> None:
        s += "no calls at all"

    assert silent.trace(backend=MockBackend()).num_prefix_tokens == 0


def test_what_may_follow_an_incomplete_graph_counts_for_the_prefix() -> None:
    @function
    def judges(s: ProgramState) -> None:
        s += "Case: "
        (branch,) = s.fork(1)
        branch += "think " + gen("thought")
        if branch["thought"] == "clear":
            s += "done " + gen("verdict")

    graph = judges.trace()
    assert not graph.is_complete
    assert graph.prefix_text == "Case: "


def test_the_prefix_reaches_the_cache() -> None:
    backend = MockBackend()
    graph = triage.trace(backend=backend)
    assert cache_prefix(graph, backend) == graph.num_prefix_tokens
    state = triage.run("I was charged twice.", backend=backend)
    assert graph.num_prefix_tokens is not None
    assert state.meta("category").num_cached_tokens == graph.num_prefix_tokens
    silent = function(_silent).trace(backend=backend)
    assert cache_prefix(silent, backend) == 0


def _silent(s: ProgramState, word: str) -> None:
    s += word + gen("x")


READS: dict[str, Callable[[ProgramState, Any], object]] = {
    "the program reads {x}": lambda s, x: x == "yes",
    "the program reads {x} ": lambda s, x: "yes" in x,
    "the program reads {x}  ": lambda s, x: bool(x),
    "the program reads {x}   ": lambda s, x: {x: 1},
    "the program reads {x}    ": lambda s, x: x < "m",
    "the program reads {x}     ": lambda s, x: int(x),
    "the program reads {x}      ": lambda s, x: float(x),
    "the program reads {x}       ": lambda s, x: list(x),
    "the program reads {x}        ": lambda s, x: x[0],
    "the program reads {x}         ": lambda s, x: "abc"[x],
    "the program reads {x}          ": lambda s, x: x in ["yes", "no"],
    "the program reads {x.strip()}": lambda s, x: x.strip() == "yes",
    "the program reads so {x}": lambda s, x: "so " + x == "so yes",
    "the program reads .split of {x}": lambda s, x: x.split(),
    "the program reads the length of {x}": lambda s, x: len(x),
    "the program raised TypeError: expected string": lambda s, x: re.search("yes", x),
    "the program reads .startswith of {x}": lambda s, x: json.loads(x),
    "the program raised TypeError: sequence item 0": lambda s, x: ", ".join([x]),
    "the program reads how 'x' came about": lambda s, x: s.meta("x"),
    "the program reads whether something failed": lambda s, x: s.error(),
    "the program reads token ids": lambda s, x: s.token_ids(),
    "the program reads text as it comes": lambda s, x: list(s.text_iter()),
    "the program reads a: {x}": lambda s, x: s.text() == "a: yes",
    "the program cancels itself": lambda s, x: s.cancel(),
    "the program runs another one, 'triage'": lambda s, x: triage.run(x),
    "the program raised ZeroDivisionError": lambda s, x: 1 // 0,
    "the program raised UnknownVariableError": lambda s, x: s["y"],
}


@pytest.mark.parametrize("reason", READS)
def test_it_stops_where_only_a_run_can_tell_how_it_goes_on(reason: str) -> None:
    @function
    def reads(s: ProgramState) -> None:
        s += "a: " + gen("x")
        READS[reason](s, s["x"])
        s += "b" + gen("y")

    graph = reads.trace()
    assert kinds(graph) == ["text", "gen"]
    assert graph.stop is not None
    assert graph.stop.reason.startswith(reason.rstrip())
    assert graph.stop.source.startswith("test_program_trace.py:")
    assert f"stops here: {graph.stop.reason}" in str(graph)


def test_a_body_that_takes_the_stop_for_its_own_adds_nothing() -> None:
    @function
    def stubborn(s: ProgramState) -> None:
        s += "a" + gen("x")
        for _ in range(3):
            try:
                if s["x"] == "yes":
                    s += "never"
            except BaseException:
                pass
        s += "guessed" + gen("y")

    graph = stubborn.trace()
    assert kinds(graph) == ["text", "gen"]
    assert graph.stop is not None
    assert "{x}" in graph.stop.reason


def test_an_endless_program_is_cut_off() -> None:
    @function
    def endless(s: ProgramState) -> None:
        while True:
            s += "again"

    graph = endless.trace()
    assert len(graph.nodes) == MAX_NODES
    assert graph.stop is not None


def test_texts_of_values_go_on_as_text() -> None:
    @function
    def writes(s: ProgramState, topic: Any) -> None:
        s += "About " + topic + ": " + gen("x")
        s += s["x"] + "; " + str(s["x"]) + f"; {s['x']:>9}; {s['x'].strip()}!"
        s += [s["x"], topic]
        s += s["x"] + gen("y", stop=".")
        s += s.text()

    graph = writes.trace()
    assert graph.is_complete
    texts = [node.text for node in graph.nodes if node.kind == "text"]
    assert texts == [
        "About {topic}: ", "{x}; {x}; {x:>9}; {x.strip()}!", "{x}", "{topic}", "{x}",
        "About {topic}: {x}{x}; {x}; {x:>9}; {x.strip()}!{x}{topic}{x}{y}",
    ]  # fmt: skip
    assert [node.uses for node in graph.nodes if node.kind == "text"] == [(), (1,), (1,), (), (1,), (1, 6)]


def test_the_type_of_an_argument_nobody_gave_is_not_known_unless_it_is_annotated() -> None:
    def body(s: ProgramState, one, two: str) -> None:  # type: ignore[no-untyped-def]
        assert isinstance(two, str)
        s += two + gen("x")
        s += "list" if isinstance(one, list) else "text"

    graph = function(body).trace()
    assert graph.stop is not None
    assert graph.stop.reason == "the program reads the type of {one}"
    assert function(body).trace(one=[1]).is_complete


def test_typed_values_and_samples() -> None:
    @function
    def typed(s: ProgramState) -> None:
        s += "a" + gen("age", dtype=int) + gen("names", n=2)
        assert isinstance(s["age"], int)
        first, second = s["names"]
        s += f"{s['age']} {first} {second}" + gen("z")
        s += "old" if s["age"] > 60 else "young"

    graph = typed.trace()
    assert graph.nodes[3].text == "{age} {names[0]} {names[1]}"
    assert graph.stop is not None
    assert graph.stop.reason == "the program reads {age}"


def test_nested_programs_bound_arguments_and_errors_of_the_call() -> None:
    @function
    def outer(s: ProgramState, ticket: str) -> None:
        triage(s, ticket)
        s += "done"

    assert len(outer.trace().nodes) == len(triage.trace().nodes) + 1
    assert triage.bind(ticket="t").trace().nodes[1].text == "t"
    assert triage.trace(num_drafts=2).is_complete
    assert kinds(triage.trace(num_drafts=0)).count("fork") == 0
    with pytest.raises(InvalidProgramError, match="tikcet"):
        triage.trace(tikcet=1)
    with pytest.raises(InvalidProgramError, match="wrong arguments"):
        triage.trace("a", 2, 3)


def test_the_graph_of_a_run_has_the_same_shape() -> None:
    state = triage.run("I was charged twice.", backend=MockBackend())
    state.sync()
    run = ProgramGraph.of_calls("triage", state.calls())
    ahead = triage.trace("I was charged twice.")
    assert [(node.kind, node.parent_ids, node.branch) for node in run.nodes] == [
        (node.kind, node.parent_ids, node.branch) for node in ahead.nodes
    ]
    assert [node.params for node in run.nodes] == [node.params for node in ahead.nodes]


def test_a_run_after_a_capture_is_a_usual_run() -> None:
    calls: list[object] = []

    @function
    def counts(s: ProgramState, word: str) -> None:
        calls.append(word)
        s += word + gen("x")

    counts.run("a", backend=MockBackend())
    assert calls == ["a"], "a run never captures"
    counts.trace()
    assert counts.run("b", backend=MockBackend())["x"] == "ok"
    assert len(calls) == 3


def test_an_unknown_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidProgramError, match="cannot run on 7"):
        triage.trace(backend=7)
    backend: Backend = MockBackend()
    assert triage.trace(backend=backend).num_prefix_tokens is not None


def test_an_unknown_variable_is_told_as_in_a_run() -> None:
    @function
    def misspells(s: ProgramState) -> None:
        s += "a" + gen("x")
        s += s["y"]

    with pytest.raises(UnknownVariableError):
        misspells.run(backend=MockBackend())
    stop = misspells.trace().stop
    assert stop is not None
    assert "'y'" in stop.reason


@st.composite
def scripts(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Programs that do not read: text, calls, forks, and values written into text."""
    script: list[tuple[Any, ...]] = []
    for idx in range(draw(st.integers(1, 8))):
        script.append(
            draw(
                st.one_of(
                    st.tuples(st.just("text"), st.text("ab ", min_size=1, max_size=5)),
                    st.tuples(st.just("gen"), st.just(f"v{idx}")),
                    st.tuples(st.just("fork"), st.integers(1, 3), st.text("xy", max_size=2)),
                    st.tuples(st.just("write"), st.integers(0, 7)),
                )
            )
        )
    return script


def play(s: ProgramState, script: list[tuple[Any, ...]]) -> None:
    s += "start"
    names: list[str] = []
    for kind, *rest in script:
        if kind == "text":
            s += rest[0]
        elif kind == "gen":
            s += gen(rest[0])
            names.append(rest[0])
        elif kind == "fork":
            branches = s.fork(rest[0])
            branches += "<" + rest[1] + gen("branch")
            branches.join()
        elif names:
            s += f"[{s[names[rest[0] % len(names)]]}]"


@settings(max_examples=60, deadline=None)
@given(script=scripts())
def test_what_is_captured_is_what_runs(script: list[tuple[Any, ...]]) -> None:
    """Same nodes, same dependencies, and every prompt of the run begins with the constant prefix."""
    program = function(play)
    graph = program.trace(script=script)
    assert graph.is_complete
    backend = MockBackend(lambda call, prompt: f"({len(prompt)})")
    state = program.run(script=script, backend=backend)
    state.sync()
    run = ProgramGraph.of_calls("play", state.calls())
    shape = [(node.kind, node.name, node.parent_ids, node.branch, node.num_branches) for node in run.nodes]
    assert [(node.kind, node.name, node.parent_ids, node.branch, node.num_branches) for node in graph.nodes] == shape
    assert all(request.prompt.startswith(graph.prefix_text) for request in backend.requests)
    assert bool(graph.prefix_text) == bool(backend.requests)
