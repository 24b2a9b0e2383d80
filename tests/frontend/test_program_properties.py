"""Any program, answered in any order, gives what a plain sequential reading of it gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.frontend.backend import Backend, GenerateCall, TextSegment
from ramet.frontend.backends.mock import MockBackend
from ramet.frontend.backends.mock_tokenizer import MockTokenizer
from ramet.frontend.calls import CallRecord
from ramet.frontend.primitives import gen, select
from ramet.frontend.program import function
from ramet.frontend.state import ProgramState

Step = tuple[str, str | int]
"""("text", literal), ("gen", max_tokens), ("select", any), or ("fork", number of branches)."""

CHOICES = ("ab", "b", "ca")
MERGES = ("ab", "bc", "abc", "ca", "cab")


@dataclass
class Plan:
    """Steps of one state; a fork step is followed by one plan for each branch."""

    steps: list[Step]
    branches: dict[int, list[Plan]] = field(default_factory=dict)


TEXT = st.text(alphabet="abc", max_size=4)


@st.composite
def plans(draw: st.DrawFn, depth: int = 2) -> Plan:
    kinds = ["text", "gen", "select", *(["fork"] if depth else [])]
    plan = Plan([])
    for idx in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(kinds))
        plan.steps.append((kind, draw(TEXT) if kind == "text" else draw(st.integers(1, 3))))
        if kind == "fork":
            count = int(plan.steps[-1][1])
            plan.branches[idx] = [draw(plans(depth=depth - 1)) for _ in range(count)]
    return plan


def reply_to(prompt: str) -> str:
    return ("bca" * 3)[len(prompt) % 5 :][:5]


def score_of(prompt: str, choice: str) -> float:
    """Depends on the whole text only, not on where the choice's tokens begin."""
    return -float(sum(map(ord, prompt + choice)) % 5)


def scripted(mode: str) -> MockBackend:
    def script(call: GenerateCall, prompt: str) -> str:
        return reply_to(prompt)

    assert mode in ("manual", "immediate")
    tokenizer = MockTokenizer(merges=MERGES)
    return MockBackend(script, scores=score_of, tokenizer=tokenizer, mode="manual" if mode == "manual" else "immediate")


def carry_out(state: ProgramState, plan: Plan, states: list[ProgramState]) -> None:
    states.append(state)
    for idx, (kind, value) in enumerate(plan.steps):
        if kind == "text":
            state += str(value)
        elif kind == "gen":
            state += gen(f"v{idx}", max_tokens=int(value))
        elif kind == "select":
            state += select(f"v{idx}", CHOICES)
        else:
            for branch, branch_plan in zip(state.fork(int(value)), plan.branches[idx], strict=True):
                carry_out(branch, branch_plan, states)


def read_plainly(text: str, plan: Plan, texts: list[str]) -> None:
    """What the states' texts must be, worked out with strings alone."""
    position = len(texts)
    texts.append("")
    tokenizer = MockTokenizer(merges=MERGES)
    for idx, (kind, value) in enumerate(plan.steps):
        if kind == "text":
            text += str(value)
        elif kind == "gen":
            ids = tokenizer.encode([TextSegment(reply_to(text))], at_start=False)
            text += tokenizer.decode(ids[: int(value)])
        elif kind == "select":
            text += max(CHOICES, key=lambda choice: score_of(text, choice))
        else:
            for branch_plan in plan.branches[idx]:
                read_plainly(text, branch_plan, texts)
    texts[position] = text


@settings(max_examples=150, deadline=None)
@given(plan=plans(), data=st.data())
def test_any_order_of_answers_gives_the_same_texts_and_tokens(plan: Plan, data: st.DataObject) -> None:
    @function
    def program(s: ProgramState) -> list[ProgramState]:
        states: list[ProgramState] = []
        s += "b"
        carry_out(s, plan, states)
        return states

    at_once, in_any_order = scripted("immediate"), scripted("manual")
    expected = program.run(backend=at_once).return_value
    actual = program.run(backend=in_any_order).return_value
    while in_any_order.waiting:
        in_any_order.answer(data.draw(st.sampled_from(in_any_order.waiting)))
    assert isinstance(expected, list)
    assert isinstance(actual, list)
    texts: list[str] = []
    read_plainly("b", plan, texts)
    assert [state.text() for state in actual] == [state.text() for state in expected] == texts
    assert [state.token_ids() for state in actual] == [state.token_ids() for state in expected]
    assert [_values(state) for state in actual] == [_values(state) for state in expected]
    for state in actual:
        assert "".join(state.text_iter()) == state.text()
        assert state.text().startswith(in_any_order.decode(state.token_ids()))
    _check_prompts(actual[0].calls())


def _values(state: ProgramState) -> list[object]:
    return [state[f"v{idx}"] for idx in range(6) if f"v{idx}" in state]


def _check_prompts(calls: Sequence[CallRecord]) -> None:
    """Every call's prompt begins with exactly the prompt of the call before it: nothing is tokenised again."""
    for call in calls:
        before = call
        while before.parent_ids and (before is call or before.kind not in ("gen", "select")):
            before = calls[before.parent_ids[0]]
        if call.kind in ("gen", "select") and before.kind in ("gen", "select"):
            assert call.prompt_token_ids[: len(before.prompt_token_ids)] == before.prompt_token_ids


@given(pieces=st.lists(TEXT, min_size=1, max_size=6), data=st.data())
def test_literals_tokenise_like_the_whole_across_a_fork(pieces: list[str], data: st.DataObject) -> None:
    fork_at = data.draw(st.integers(0, len(pieces)))
    whole = "b" + "".join(pieces)

    @function
    def program(s: ProgramState) -> None:
        s += "b"
        for piece in pieces[:fork_at]:
            s += piece
        for branch in s.fork(2):
            for piece in pieces[fork_at:]:
                branch += piece
            branch += gen("x")

    backend = scripted("immediate")
    program.run(backend=backend).sync()
    ids = tuple(backend.encode([TextSegment(whole)], at_start=True))
    assert [request.call.prompt_token_ids for request in backend.requests] == [ids, ids]


def test_the_mock_is_a_backend() -> None:
    backend: Backend = MockBackend()
    segments: Sequence[TextSegment] = backend.role_prefix([], "user")
    assert backend.decode(backend.encode(segments, at_start=True)) == "<|start|>user\n"
    assert backend.info()["backend"] == "mock"
