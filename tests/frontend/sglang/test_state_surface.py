"""What a state offers beside text and values: meta info, spans, set variables, copies, async reading."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import ramet as sgl
from ramet.frontend.backend import GenerateCall


class BackendDownError(Exception):
    pass


def test_meta_info_of_a_gen() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "abc" + sgl.gen("x", stop="!", return_logprob=True, logprob_start_len=1, top_logprobs_num=2)
        s += sgl.gen("y", max_tokens=2)

    state = program.run(backend=sgl.MockBackend("hi!"))
    info = state.get_meta_info("x")
    assert info.pop("e2e_latency") >= 0
    ids = [item[1] for item in info["output_token_logprobs"]]
    assert [item[2] for item in info["output_token_logprobs"]] == ["h", "i", "!"]
    assert [item[2] for item in info["input_token_logprobs"]] == ["b", "c"]
    assert info == {
        "prompt_tokens": 3,
        "cached_tokens": 0,
        "completion_tokens": 3,
        "finish_reason": {"type": "stop", "matched": "!"},
        "output_token_logprobs": [[-1.0, token_id, text] for token_id, text in zip(ids, "hi!", strict=True)],
        "output_top_logprobs": [[], [], []],
        "input_token_logprobs": info["input_token_logprobs"],
        "input_top_logprobs": [[], []],
    }
    assert state.get_meta_info("y")["finish_reason"] == {"type": "length", "length": 2}
    assert "output_token_logprobs" not in state.get_meta_info("y")
    with pytest.raises(KeyError, match="no variable 'z'"):
        state.get_meta_info("z")


def test_meta_info_of_samples_branches_and_selects() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "q" + sgl.gen("samples", n=2)
        forks = s.fork(3)
        forks += sgl.gen("branches")
        forks.join()
        method = sgl.unconditional_likelihood_normalized
        s += sgl.select("choice", ["a", "bc"], choices_method=method)

    state = program.run(backend=sgl.MockBackend("ok", scores=lambda prompt, choice: -float(len(choice))))
    assert len(state.get_meta_info("samples")) == 2
    assert [info["completion_tokens"] for info in state.get_meta_info("branches")] == [2, 2, 2]
    info = state.get_meta_info("choice")
    assert info["normalized_prompt_logprobs"] == [-1.0, -2.0]
    assert [[item[0] for item in entries] for entries in info["input_token_logprobs"]] == [[-1.0], [-2.0, -2.0]]
    assert [[item[2] for item in entries] for entries in info["input_token_logprobs"]] == [["a"], ["b", "c"]]
    assert info["choices"] == ["a", "bc"]
    assert len(info["unconditional_token_logprobs"][1]) == 2
    assert info["choice_scores"] == [
        conditional - unconditional
        for conditional, unconditional in zip(
            info["normalized_prompt_logprobs"], info["normalized_unconditional_prompt_logprobs"], strict=True
        )
    ]


def test_a_set_variable_is_one_like_others() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s.set_var("plan", {"steps": 2})
        s.set_var("note", "text")
        forks = s.fork(2)
        for idx, branch in enumerate(forks):
            assert branch["plan"] == {"steps": 2}
            branch.set_var("idx", idx)
        forks.join()

    state = program.run(backend=sgl.MockBackend())
    assert (state.get_var("plan"), state["idx"], "note" in state) == ({"steps": 2}, [0, 1], True)
    assert list(state.text_iter("note")) == ["text"]
    with pytest.raises(sgl.InvalidProgramError, match="no text to stream"):
        list(state.text_iter("plan"))
    with pytest.raises(sgl.InvalidProgramError, match="set by the program"):
        state.meta("plan")
    with pytest.raises(sgl.InvalidProgramError, match="non-empty string"):
        state.set_var("", 1)


def test_var_scope_binds_the_text_of_its_block() -> None:
    backend = sgl.MockBackend(["one", "two"], mode="manual")

    @sgl.function
    def program(s: Any) -> None:
        s += "Before. "
        with s.var_scope("span"):
            s += "First: " + sgl.gen("x")
            with s.assistant():
                s += "then " + sgl.gen("y")
        assert "span" in s
        s += " After."

    state = program.run(backend=backend)
    assert "span (pending)" in repr(state)
    with pytest.raises(sgl.ReadTimeoutError, match=r"var_scope 'span' at test_state_surface.py:\d+"):
        state.get("span", timeout=0.01)
    backend.answer_all()
    assert state["span"] == "First: one<|start|>assistant\nthen two<|end|>\n"
    assert list(state.text_iter("span")) == [state["span"]]
    with pytest.raises(sgl.InvalidProgramError, match="ask the calls in it"):
        state.meta("span")


@pytest.mark.parametrize("replies", [[BackendDownError("gone")], ["fine", BackendDownError("gone")]])
def test_var_scope_fails_with_the_call_before_or_inside(replies: list[Any]) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "a" + sgl.gen("x")
        with s.var_scope("span"):
            s += sgl.gen("y")

    state = program.run(backend=sgl.MockBackend(replies))
    with pytest.raises(sgl.GenerationError, match=r"var_scope 'span' at .* was not run: .* failed: gone") as failure:
        state["span"]
    assert isinstance(failure.value.__cause__.__cause__, BackendDownError)  # type: ignore[union-attr]


def test_var_scope_of_a_block_that_raises_binds_nothing() -> None:
    @sgl.function
    def program(s: Any) -> None:
        try:
            with s.var_scope("span"):
                s += "text"
                raise LookupError
        except LookupError:
            pass
        assert "span" not in s

    assert program.run(backend=sgl.MockBackend()).text() == "text"


def test_a_copy_is_a_branch_that_is_joined() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "q"
        with s.copy() as c:
            c += " aside " + sgl.gen("x")
        s += " on " + sgl.gen("y")

    state = program.run(backend=sgl.MockBackend(["1", "2"]))
    assert (state["x"], state["y"], state.text()) == (["1"], "2", "q on 2")


def test_a_message_is_closed_when_its_block_raises() -> None:
    @sgl.function
    def program(s: Any) -> None:
        try:
            with s.user():
                s += "Hel"
                raise LookupError("stopped typing")
        except LookupError:
            s += sgl.user("again")
        try:
            with s.user():
                s += "b" + sgl.user_end()
                raise LookupError("closed by hand before")
        except LookupError:
            pass
        s += sgl.assistant(sgl.gen("x"))

    state = program.run(backend=sgl.MockBackend("yes"))
    assert [message["content"] for message in state.messages()] == ["Hel", "again", "b", "yes"]


def test_what_is_not_there_is_refused() -> None:
    for missing in (sgl.image, sgl.video):
        with pytest.raises(sgl.InvalidProgramError, match="not supported"):
            missing("path", num_frames=3)

    @sgl.function
    def program(s: Any, offset: Any) -> None:
        s.fork(2, position_ids_offset=offset)

    for fine in (None, [0, 0], np.zeros(2, dtype=int)):
        program.run(fine, backend=sgl.MockBackend())
    with pytest.raises(sgl.InvalidProgramError, match=r"position_ids_offset=\[0, 5\]"):
        program.run([0, 5], backend=sgl.MockBackend())


def test_numbers_of_numpy_are_numbers() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "q" + sgl.gen("x", max_tokens=np.int64(3), logit_bias={np.int64(4): 1})
        assert len(s.fork(np.int64(2))) == 2

    assert program.run(backend=sgl.MockBackend("text"), temperature=np.float32(0.5))["x"] == "tex"


def test_global_config_takes_what_is_so_and_refuses_the_rest() -> None:
    config = sgl.global_config
    assert (config.verbosity, config.skip_special_tokens_in_output) == (0, True)
    config.verbosity = 0
    config.enable_precache_with_tracing = False
    assert config.enable_precache_with_tracing is False
    config.enable_precache_with_tracing = True
    for name, value in (("verbosity", 2), ("skip_special_tokens_in_output", False), ("verbosity", False)):
        with pytest.raises(sgl.InvalidProgramError, match=f"global_config.{name}={value} is not allowed"):
            setattr(config, name, value)
    with pytest.raises(sgl.InvalidProgramError, match="has no 'speed'; it has verbosity"):
        config.speed = 1  # type: ignore[attr-defined]


def test_text_async_iter_yields_everything_without_blocking_the_loop() -> None:
    backend = sgl.MockBackend(["one two", "three"], mode="manual")

    @sgl.function
    def program(s: Any) -> None:
        s += "q: " + sgl.gen("x") + "; " + sgl.gen("y")

    async def read() -> tuple[list[str], list[str], list[Any]]:
        state = program.run(backend=backend)
        whole = asyncio.create_task(collect(state.text_async_iter()))
        one = asyncio.create_task(collect(state.text_async_iter("y")))
        with_meta = asyncio.create_task(collect(state.text_async_iter("x", return_meta_data=True)))
        await asyncio.sleep(0.01)  # the readers wait, the loop does not
        backend.answer_all()
        return await whole, await one, await with_meta

    whole, one, with_meta = asyncio.run(read())
    assert "".join(whole) == "q: one two; three"
    assert "".join(one) == "three"
    assert "".join(piece for piece, _ in with_meta) == "one two"
    assert with_meta[-1][0] == ""
    assert with_meta[-1][1]["finish_reason"]["type"] == "stop"


async def collect(pieces: Any) -> list[Any]:
    return [piece async for piece in pieces]


def test_text_async_iter_raises_what_failed_and_may_be_left() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "q" + sgl.gen("x")

    async def fails() -> list[str]:
        state = program.run(backend=sgl.MockBackend([BackendDownError("gone")]))
        pieces = state.text_async_iter()
        shown = [await anext(pieces)]
        with pytest.raises(sgl.GenerationError, match="gone"):
            await anext(pieces)
        with pytest.raises(sgl.InvalidProgramError, match="needs a name"):
            state.text_async_iter(return_meta_data=True)
        return shown

    async def leaves() -> str:
        state = program.run(backend=sgl.MockBackend(mode="manual"))
        async for piece in state.text_async_iter():
            state.cancel()
            return str(piece)
        return ""

    assert asyncio.run(fails()) == ["q"]
    assert asyncio.run(leaves()) == "q"


def test_a_call_knows_where_its_prompt_logprobs_start() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "abcd" + sgl.gen("x", logprob_start_len=99)

    backend = sgl.MockBackend()
    state = program.run(backend=backend)
    call = backend.requests[0].call
    assert isinstance(call, GenerateCall)
    assert call.prompt_logprobs_start == 4
    assert state.get_meta_info("x")["input_token_logprobs"] == []


@pytest.mark.model
def test_logprobs_of_prompt_and_output_on_a_model(smollm2: sgl.LLM) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "One two three four" + sgl.gen("x", max_tokens=3, temperature=0, return_logprob=True, logprob_start_len=2)

    smollm2.reset_prefix_cache()
    with sgl.LocalBackend(smollm2) as backend:
        first, second = (program.run(backend=backend, top_p=1.0) for _ in range(2))
        info, cached = first.get_meta_info("x"), second.get_meta_info("x")
    assert [item[2] for item in info["input_token_logprobs"]] == [" three", " four"]
    assert "".join(item[2] for item in info["output_token_logprobs"]) == first["x"]
    assert all(item[0] <= 0 for item in info["input_token_logprobs"] + info["output_token_logprobs"])
    for key in ("input_token_logprobs", "output_token_logprobs", "finish_reason"):
        assert info[key] == cached[key]
