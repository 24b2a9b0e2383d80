"""join("concate_and_append"): the text of branches, one after the other, with the tokens the branches have."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ramet as sgl
from ramet.frontend.backends.mock_tokenizer import MockTokenizer


class BackendDownError(Exception):
    pass


def test_appended_branches_keep_their_order_and_tokens() -> None:
    backend = sgl.MockBackend(lambda call, prompt: {"0": "A", "1": "B"}.get(prompt[-3], "end"), mode="manual")

    @sgl.function
    def program(s: Any) -> None:
        s += "Tips:"
        forks = s.fork(2)
        for idx, branch in enumerate(forks):
            branch += f" {idx}. " + sgl.gen("tip") + "."
        forks.join("concate_and_append")
        s += " So " + sgl.gen("end")

    state = program.run(backend=backend)
    assert len(backend.requests) == 2
    backend.answer(backend.waiting[1])
    assert state.text_so_far() == "Tips:"
    backend.answer_all()
    assert state.text() == "Tips: 0. A. 1. B. So end"
    assert "tip" not in state
    assert backend.requests[-1].prompt == "Tips: 0. A. 1. B. So "
    assert backend.decode(state.token_ids()) == state.text()
    assert [call.kind for call in state.calls()][-3:] == ["join", "text", "gen"]


def test_appended_branches_are_part_of_the_open_message() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.user("q")
        with s.assistant():
            s += "Parts: "
            forks = s.fork(2)
            forks += sgl.gen("x", stop=".")
            forks.join(mode="concate_and_append")
            s += "!"

    state = program.run(backend=sgl.MockBackend(["a.", "b."]))
    assert state.messages()[-1]["content"] == "Parts: ab!"


def test_what_cannot_be_appended_is_refused() -> None:
    @sgl.function
    def program(s: Any) -> None:
        forks = s.fork(2)
        forks[1] += sgl.user("x")
        with pytest.raises(sgl.InvalidProgramError, match="the text of branch 1 cannot be appended"):
            forks.join("concate_and_append")
        again = s.fork(1)
        again.join("concate_and_append")
        for mode, options, message in (
            ("concate_and_append", {}, "appended already"),
            ("concate_and_append", {"on_error": "return"}, "on_error='return'"),
            ("append", {}, r"join\('append'\)"),
        ):
            with pytest.raises(sgl.InvalidProgramError, match=message):
                again.join(mode, **options)

    program.run(backend=sgl.MockBackend())


def test_a_failed_branch_fails_what_is_appended() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "q"
        forks = s.fork(3)
        forks += sgl.gen("x")
        forks.join("concate_and_append")
        s += sgl.gen("y")

    state = program.run(backend=sgl.MockBackend(["a", BackendDownError("gone"), "c"]))
    with pytest.raises(sgl.GenerationError, match=r"gen 'y' .* was not run: join at \S+: the text of branch 1") as y:
        state["y"]
    assert "gone" in str(y.value)
    with pytest.raises(sgl.GenerationError):
        state.text()

    waiting = sgl.MockBackend(mode="manual")
    state = program.run(backend=waiting)
    state.cancel()
    with pytest.raises(sgl.ProgramCancelledError, match="gen 'y'"):
        state["y"]
    assert waiting.waiting == ()


PIECES = st.sampled_from(["a", "b", "ab", " ", "c"])
STEPS = st.lists(st.tuples(st.sampled_from(["text", "gen"]), PIECES), max_size=5)
MERGES = st.lists(st.sampled_from(["ab", "ba", " a", "aa", "c ", "bc"]), unique=True, max_size=4)


@given(STEPS, st.lists(STEPS, min_size=1, max_size=3), MERGES)
def test_appending_changes_no_generated_token(
    before: list[tuple[str, str]], branches: list[list[tuple[str, str]]], merges: list[str]
) -> None:
    replies = iter([])
    backend = sgl.MockBackend(lambda call, prompt: next(replies), tokenizer=MockTokenizer(merges=merges))

    def write(s: Any, steps: list[tuple[str, str]]) -> None:
        nonlocal replies
        for kind, text in steps:
            replies = iter([text])
            s += text if kind == "text" else sgl.gen()

    @sgl.function
    def program(s: Any) -> None:
        s += "<"
        write(s, before)
        forks = s.fork(len(branches))
        for branch, steps in zip(forks, branches, strict=True):
            write(branch, steps)
        forks.join("concate_and_append")
        write(s, [("gen", ">")])

    state = program.run(backend=backend)
    assert (
        state.text() == "<" + "".join(text for _, text in [step for part in (before, *branches) for step in part]) + ">"
    )
    assert backend.decode(state.token_ids()) == state.text()
    prompts = [request.call.prompt_token_ids for request in backend.requests]
    num_first = sum(kind == "gen" for kind, _ in before) + sum(kind == "gen" for kind, _ in branches[0])
    if num_first and branches[0] and branches[0][-1][0] == "gen":
        # What the first branch had sent and generated is there, token by token.
        last = prompts[num_first - 1]
        assert prompts[-1][: len(last)] == last


@pytest.mark.model
def test_appended_branches_of_a_model_continue_from_the_cache(smollm2: sgl.LLM) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "The best fruits are: "
        forks = s.fork(2)
        for word, branch in zip(("1.", "\n2."), forks, strict=True):
            branch += word + sgl.gen("x", max_tokens=6)
        s.set_var("branches", list(forks))
        forks.join("concate_and_append")
        s += "\n3." + sgl.gen("y", max_tokens=4)

    with sgl.LocalBackend(smollm2) as backend:
        state = program.run(backend=backend, temperature=0)
        first, second = state["branches"]
        assert state.text() == first.text() + second.text().removeprefix("The best fruits are: ") + "\n3." + state["y"]
        ids = state.token_ids()
        assert ids[: len(first.token_ids())] == first.token_ids()
        assert backend.decode(ids) == state.text()
        assert state.meta("y").num_cached_tokens >= len(first.token_ids()) - 1


@pytest.mark.model
@pytest.mark.parametrize("before", ["Say ", "Say", "Say: \n", ""])
def test_a_token_that_ends_inside_a_character_at_the_fork(smollm2: sgl.LLM, before: str) -> None:
    """In this vocabulary a token may be a space and the first byte of the character after it."""
    starts = ["你好", "🙂", " é", "x\ufffdy"]

    @sgl.function
    def program(s: Any) -> None:
        s += "A" + sgl.gen(max_tokens=1) + before
        forks = s.fork(len(starts))
        for start, branch in zip(starts, forks, strict=True):
            branch += start + sgl.gen(max_tokens=2)
        s.set_var("branches", list(forks))
        forks.join("concate_and_append")
        s += "." + sgl.gen(max_tokens=1)

    with sgl.LocalBackend(smollm2) as backend:
        state = program.run(backend=backend, temperature=0)
        assert state.error() is None
        texts = [branch.text() for branch in state["branches"]]
        common = texts[0][: texts[0].index(starts[0])]
        assert state.text().startswith(common + "".join(text.removeprefix(common) for text in texts))
        assert backend.decode(state.token_ids()) == state.text()
