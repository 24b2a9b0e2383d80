"""Arguments have SGLang's names and come in its order, so that a script may give them either way."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import ramet as sgl

GEN = "name max_tokens min_tokens n stop stop_token_ids stop_regex temperature top_p top_k min_p frequency_penalty"
GEN += " presence_penalty ignore_eos return_logprob logprob_start_len top_logprobs_num return_text_in_logprobs"
TYPED_GEN = GEN.replace(" min_tokens", "")

SIGNATURES: list[tuple[Callable[..., Any], str]] = [
    (sgl.function, "func num_api_spec_tokens"),
    (sgl.gen, f"{GEN} dtype choices choices_method regex json_schema"),
    (sgl.gen_int, TYPED_GEN),
    (sgl.gen_string, TYPED_GEN),
    (sgl.select, "name choices temperature choices_method"),
    *((role, "expr") for role in (sgl.system, sgl.user, sgl.assistant)),
    (sgl.separate_reasoning, "expr model_type"),
    (sgl.set_default_backend, "backend"),
    (sgl.flush_cache, "backend empty_cache"),
    (sgl.get_server_info, "backend"),
    (sgl.Program.run_batch, "self batch_kwargs"),
    (sgl.Program.cache, "self backend"),
    *((role, "self expr") for role in (sgl.ProgramState.system, sgl.ProgramState.user, sgl.ProgramState.assistant)),
    (sgl.ProgramState.fork, "self size position_ids_offset"),
    (sgl.ProgramState.copy, "self position_ids_offset"),
    (sgl.ProgramState.var_scope, "self name"),
    (sgl.ProgramState.text_iter, "self var_name"),
    (sgl.ProgramState.text_async_iter, "self var_name return_meta_data"),
    (sgl.ProgramState.get_var, "self name"),
    (sgl.ProgramState.set_var, "self name value"),
    (sgl.ProgramState.get_meta_info, "self name"),
    (sgl.AsyncProgramState.text_iter, "self var_name"),
    (sgl.ForkGroup.join, "self mode"),
    (sgl.RuntimeEndpoint, "base_url api_key verify chat_template_name"),
    (sgl.RuntimeEndpoint.cache_prefix, "self prefix_str"),
    (sgl.OpenAI, "model_name is_chat_model"),
    (sgl.Anthropic, "model_name"),
    (sgl.Runtime.generate, "self prompt sampling_params return_logprob logprob_start_len top_logprobs_num lora_path"),
    (sgl.Runtime.async_generate, "self prompt sampling_params"),
    (sgl.Runtime.add_request, "self prompt sampling_params"),
    (sgl.Runtime.cache_prefix, "self prefix"),
    (sgl.Engine.generate, "self prompt sampling_params input_ids"),
    (sgl.Engine.async_generate, "self prompt sampling_params input_ids"),
]


@pytest.mark.parametrize(("function", "names"), SIGNATURES, ids=[each.__qualname__ for each, _ in SIGNATURES])
def test_arguments_are_sglangs(function: Callable[..., Any], names: str) -> None:
    parameters = inspect.signature(function).parameters
    assert list(parameters)[: len(names.split())] == names.split()
    assert {parameters[name].kind for name in names.split()} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}


@pytest.mark.parametrize("typed", [sgl.gen_int, sgl.gen_string])
def test_typed_gens_take_positions(typed: Callable[..., Any]) -> None:
    assert typed("x", 5, 2, ";", [3]) == typed(name="x", max_tokens=5, n=2, stop=";", stop_token_ids=[3])
    assert typed("x", seed=3).options["seed"] == 3
    with pytest.raises(sgl.InvalidProgramError, match="stopp"):
        typed("x", stopp=";")


def test_values_by_sglangs_names() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s.user(expr="q")
        s += sgl.assistant(expr=sgl.gen("x"))
        s += sgl.system(expr=None)
        with s.copy(position_ids_offset=[0]) as branch:
            branch += "y"

    (state,) = program.run_batch(batch_kwargs=[{}], backend=sgl.MockBackend("hi"))
    assert "".join(state.text_iter(var_name="x")) == state.get_var(name="x") == "hi"
    assert state.messages()[-1] == {"role": "system", "content": ""}

    async def pieces() -> str:
        return "".join([piece async for piece in state.text_async_iter(var_name="x")])

    assert asyncio.run(pieces()) == "hi"
    with pytest.raises(sgl.InvalidProgramError, match="copy"), state.copy([1]):
        pass


def test_the_return_value_of_a_body_that_raised_raises() -> None:
    @sgl.function
    def program(s: Any) -> None:
        raise LookupError("no such row")

    state = program.run(backend=sgl.MockBackend(), on_error="return")
    for name in ("ret_value", "return_value"):
        with pytest.raises(sgl.ProgramError, match="no such row"):
            getattr(state, name)
