"""The boundary between literal and constrained text: which tokens may be healed, and that no text is shown twice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.frontend.backend import GenerateCall, TextSegment
from ramet.frontend.backends.mock import CHAT_TOKENS, MockBackend
from ramet.frontend.backends.mock_tokenizer import MockTokenizer
from ramet.frontend.primitives import Expression, assistant, gen, select, user
from ramet.frontend.program import function
from ramet.frontend.state import ProgramState

ANY = "(.|\n)*"


def constrained(name: str, **options: Any) -> Expression:
    return gen(name, regex=ANY, **options)


def ids(text: str) -> tuple[int, ...]:
    return tuple(ord(character) for character in text)


def gen_calls(backend: MockBackend) -> list[GenerateCall]:
    return [request.call for request in backend.requests if isinstance(request.call, GenerateCall)]


def healable_texts(backend: MockBackend) -> list[str]:
    """What each gen's call allows to be healed."""
    return [
        backend.decode(call.prompt_token_ids[len(call.prompt_token_ids) - call.num_healable_tokens :])
        for call in gen_calls(backend)
    ]


@function
def one_gen(s: ProgramState, prompt: str, options: dict[str, Any]) -> None:
    s += prompt + gen("x", **options) + "!" + gen("y")


def test_a_token_may_span_the_boundary_and_no_text_is_shown_twice() -> None:
    tokenizer = MockTokenizer(merges=[" yes"])
    yes = tokenizer.merge_ids[" yes"]
    backend = MockBackend(["yes", "ok"], tokenizer=tokenizer)
    state = one_gen.run("a: ", {"regex": "yes|no"}, backend=backend)
    assert (state["x"], state.text()) == ("yes", "a: yes!ok")
    assert "".join(state.text_iter("x")) == "yes"
    assert state.meta("x").samples[0].token_ids == (yes,)
    assert state.token_ids() == [*ids("a:"), yes, *ids("!ok")]
    assert gen_calls(backend)[0].prompt_token_ids == ids("a: ")
    assert gen_calls(backend)[0].num_healable_tokens == 2
    first, second = (call for call in state.calls() if call.kind == "gen")
    assert first.prompt_token_ids == ids("a:")
    assert second.prompt_token_ids == (*ids("a:"), yes, *ids("!"))
    assert state.meta("x").num_prompt_tokens == 2
    assert state.meta("y").num_prompt_tokens == len(second.prompt_token_ids)
    assert state.meta("y").num_cached_tokens == 3


def test_what_is_not_healed_stays_as_it_was() -> None:
    backend = MockBackend(["no", "ok"], tokenizer=MockTokenizer(merges=[" yes"]))
    state = one_gen.run("a: ", {"regex": "yes|no"}, backend=backend)
    assert state.text() == "a: no!ok"
    assert state.token_ids() == list(ids("a: no!ok"))
    assert next(call for call in state.calls() if call.name == "x").prompt_token_ids == ids("a: ")
    assert state.meta("x").num_prompt_tokens == 3


@pytest.mark.parametrize("options", [{}, {"regex": "yes|no", "heal": False}])
def test_plain_gens_and_those_that_do_not_want_it_are_never_healed(options: dict[str, Any]) -> None:
    backend = MockBackend(["yes", "ok"], tokenizer=MockTokenizer(merges=[" yes"]))
    state = one_gen.run("a: ", options, backend=backend)
    assert state.token_ids() == list(ids("a: yes!ok"))
    assert [call.num_healable_tokens for call in gen_calls(backend)] == [0, 0]


@pytest.mark.parametrize("options", [{"dtype": int}, {"choices": ["1", "2"], "temperature": 1.0}, {"ebnf": "start: X"}])
def test_every_constraint_is_healed(options: dict[str, Any]) -> None:
    backend = MockBackend("1")
    one_gen.run("a: ", options, backend=backend).sync()
    assert [call.num_healable_tokens for call in gen_calls(backend)] == [2, 0]


def test_the_prompt_of_a_running_call_has_the_tokens_that_were_sent() -> None:
    backend = MockBackend(["yes", "ok"], tokenizer=MockTokenizer(merges=[" yes"]), mode="manual")
    state = one_gen.run("a: ", {"regex": "yes|no"}, backend=backend)
    record = next(call for call in state.calls() if call.name == "x")
    assert record.prompt_token_ids == ids("a: ")
    backend.answer_all()
    assert record.prompt_token_ids == ids("a:")


@pytest.mark.parametrize(("prompt", "healable"), [("a", ""), ("ab", "b"), ("abcdefgh", "efgh")])
def test_four_tokens_at_most_and_never_the_first_of_all(prompt: str, healable: str) -> None:
    backend = MockBackend("x")
    one_gen.run(prompt, {"regex": ANY}, backend=backend).sync()
    assert healable_texts(backend)[0] == healable


def test_a_begin_token_may_be_all_that_stays() -> None:
    tokenizer = MockTokenizer(special_tokens=CHAT_TOKENS, begin_token="<|begin|>")
    backend = MockBackend("x", tokenizer=tokenizer)
    one_gen.run("ab", {"regex": ANY}, backend=backend).sync()
    assert healable_texts(backend)[0] == "ab"


def test_template_text_and_special_tokens_are_not_healed() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += user("q") + assistant(constrained("bare"))
        with s.assistant():
            s += "n: " + constrained("after text")

    backend = MockBackend("x")
    program.run(backend=backend).sync()
    assert healable_texts(backend) == ["", "n: "]


def test_text_that_spells_a_special_token_is_literal() -> None:
    @function
    def program(s: ProgramState) -> None:
        with s.assistant():
            s += "<|end|>" + constrained("x")

    backend = MockBackend("x", tokenizer=MockTokenizer(merges=["<|", "end", "|>"], special_tokens=CHAT_TOKENS))
    program.run(backend=backend).sync()
    assert healable_texts(backend) == ["<|end|>"]
    assert gen_calls(backend)[0].num_healable_tokens == 3


def test_generated_text_is_not_healed() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "start" + gen("first", stop="-") + constrained("second")
        s += "," + constrained("third") + select("fourth", ["a", "b"]) + constrained("fifth")

    backend = MockBackend(["x-", "y", "z", "w"], tokenizer=MockTokenizer(merges=["x-"]))
    state = program.run(backend=backend)
    assert state.text() == "startxy,zaw"
    # "x" is what the stop left of the token "x-": it is tokenised again, but generated all the same.
    assert healable_texts(backend) == ["", "", ",", ""]


def test_literal_text_behind_what_a_stop_left_over_is_healed_without_it() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "start" + gen("first", stop="-") + "," + constrained("second")

    backend = MockBackend(["x-", "y"], tokenizer=MockTokenizer(merges=["x-"]))
    program.run(backend=backend).sync()
    assert healable_texts(backend) == ["", ","]


def test_text_that_ends_inside_the_spanning_token_gets_its_own_tokens_again() -> None:
    tokenizer = MockTokenizer(merges=[" yes."])
    backend = MockBackend(["yes.", "ok"], tokenizer=tokenizer)
    state = one_gen.run("a: ", {"regex": ANY, "stop": "."}, backend=backend)
    assert (state["x"], state.text()) == ("yes", "a: yes!ok")
    assert state.token_ids() == list(ids("a: yes!ok"))
    assert state.meta("x").samples[0].kept_token_ids == ()


def test_samples_share_one_boundary() -> None:
    tokenizer = MockTokenizer(merges=[" yes"])
    backend = MockBackend(["no", "yes", "ok"], tokenizer=tokenizer)
    state = one_gen.run("a: ", {"regex": "yes|no", "n": 2}, backend=backend)
    assert state["x"] == ["no", "yes"]
    assert [sample.token_ids for sample in state.meta("x").samples] == [ids(" no"), (tokenizer.merge_ids[" yes"],)]
    assert state.text() == "a: no!ok"
    assert state.token_ids() == list(ids("a: no!ok"))


def test_branches_heal_what_they_share_and_say_no_more_than_they_still_do() -> None:
    """The end of the text before a fork is healed too: what siblings share only gets shorter by it."""

    @function
    def program(s: ProgramState) -> None:
        s += "q a: "
        branches = s.fork(2)
        branches += constrained("x") + "." + gen("y")
        branches.join()

    tokenizer = MockTokenizer(merges=[" yes"])
    yes = tokenizer.merge_ids[" yes"]
    backend = MockBackend(lambda call, prompt: "yes" if call.name == "x" else "ok", tokenizer=tokenizer)
    state = program.run(backend=backend)
    assert state["x"] == ["yes", "yes"]
    for call in gen_calls(backend):
        assert call.prompt_token_ids[: call.shared_prefix_len] == ids("q a: ")[: call.shared_prefix_len]
        assert call.shared_prefix_len <= len(call.prompt_token_ids) - call.num_healable_tokens
        if call.name == "y":
            assert call.prompt_token_ids == (*ids("q a:"), yes, ord("."))
            assert call.shared_prefix_len == len("q a:")
    assert state.metas("y")[1].num_cached_tokens == len("q a:") + 1 + 1 - 1


# The property


TEXT = st.text(alphabet="ab ", max_size=5)
MERGES = ("ab", " a", "ba ", " ab", "b a", "aab")
STEP = st.one_of(
    st.tuples(st.just("text"), TEXT, st.just({})),
    st.tuples(st.just("constrained"), TEXT, st.fixed_dictionaries({"max_tokens": st.integers(1, 4)})),
    st.tuples(st.just("constrained"), TEXT, st.fixed_dictionaries({"stop": st.sampled_from(["b", " a", "ab"])})),
    st.tuples(st.just("plain"), TEXT, st.just({})),
    st.tuples(st.just("select"), TEXT, st.just({})),
    st.tuples(st.just("branch"), TEXT, st.just({})),
)


@settings(max_examples=300, deadline=None)
@given(steps=st.lists(STEP, max_size=7), mode=st.sampled_from(["immediate", "background"]))
def test_the_text_is_the_pieces_in_order_and_the_tokens_spell_it(
    steps: list[tuple[str, str, dict[str, Any]]], mode: Any
) -> None:
    states: list[ProgramState] = []

    @function
    def program(s: ProgramState) -> None:
        s += "a"
        for idx, (kind, text, options) in enumerate(steps):
            if kind == "text":
                s += text
            elif kind == "constrained":
                s += constrained(f"v{idx}", **options)
            elif kind == "plain":
                s += gen(f"v{idx}")
            elif kind == "select":
                s += select(f"v{idx}", ["ab", "b"])
            else:
                states.append(s)
                s = s.fork(2)[1]
        states.append(s)

    replies = {f"v{idx}": text for idx, (_, text, _) in enumerate(steps)}
    backend = MockBackend(
        lambda call, prompt: replies[str(call.name)], tokenizer=MockTokenizer(merges=MERGES), mode=mode
    )
    program.run(backend=backend)
    pieces = ["a"]
    for idx, (kind, text, _) in enumerate(steps):
        if kind != "branch":
            pieces.append(text if kind == "text" else states[-1][f"v{idx}"])
    whole = "".join(pieces)
    assert states[-1].text() == "".join(states[-1].text_iter()) == whole
    assert whole.startswith(backend.decode(states[-1].token_ids()))
    for idx, (kind, text, options) in enumerate(steps):
        if kind == "constrained" and "stop" not in options:
            assert text.startswith(states[-1][f"v{idx}"])
    for call in states[-1].calls():
        if call.kind in ("gen", "select"):
            assert whole.startswith(backend.decode(call.prompt_token_ids))
            assert call.meta is not None
            assert call.meta.num_prompt_tokens == len(call.prompt_token_ids)
    backend.close()


def test_a_call_gives_tokens_that_the_tokenizer_would_give_the_whole() -> None:
    """After healing the ids are those of the text written in one piece, so a later prompt finds them in the cache."""
    tokenizer = MockTokenizer(merges=MERGES)
    backend = MockBackend(["ab a", "ok"], tokenizer=tokenizer)
    state = one_gen.run("bb ", {"regex": ANY}, backend=backend)
    state.sync()
    record = next(call for call in state.calls() if call.name == "y")
    assert record.prompt_token_ids == tuple(backend.encode([TextSegment("bb ab a!")], at_start=True))
