"""Engine and Runtime: SGLang's calls, answered by the bundled model."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import pytest

from ramet import (
    LLM,
    BackendCallError,
    Engine,
    InvalidConfigError,
    InvalidRequestError,
    Runtime,
    RuntimeEndpoint,
    SamplingParams,
)
from ramet.frontend.primitives import gen
from ramet.frontend.program import function
from ramet.frontend.state import ProgramState
from ramet.runtime.config import EngineConfig
from ramet.runtime.server_args import llm_options, set_log_level

pytestmark = pytest.mark.model

PROMPT = "The capital of France is"
GREEDY = {"max_new_tokens": 6, "temperature": 0.0}


@pytest.fixture
def engine(smollm2: LLM) -> Iterator[Engine]:
    smollm2.reset_prefix_cache()
    with Engine(smollm2) as engine:
        yield engine


def one(answer: object) -> dict[str, Any]:
    assert isinstance(answer, dict)
    return answer


def several(answers: object) -> list[dict[str, Any]]:
    assert isinstance(answers, list)
    return answers


def test_one_prompt_has_one_answer(engine: Engine) -> None:
    answer = one(engine.generate(PROMPT, GREEDY))
    (output,) = engine.llm.generate(PROMPT, SamplingParams(max_tokens=6, temperature=0.0))
    (completion,) = output.outputs
    assert answer["text"] == completion.text
    assert answer["output_ids"] == completion.token_ids
    meta = answer["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 6}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (len(output.prompt_token_ids), 6)
    assert meta["cached_tokens"] == 0
    assert meta["e2e_latency"] > 0.0
    assert one(engine.generate(input_ids=output.prompt_token_ids, sampling_params=GREEDY))["text"] == completion.text


def test_a_list_has_answers_in_order_and_its_own_parameters(engine: Engine) -> None:
    params = [{**GREEDY, "max_new_tokens": 2}, {**GREEDY, "n": 2}]
    answers = several(engine.generate([PROMPT, "Two and two"], params))
    assert [answer["meta_info"]["completion_tokens"] for answer in answers] == [2, 6, 6]
    assert answers[1]["text"] == answers[2]["text"]


def test_what_was_matched_is_told(engine: Engine) -> None:
    text = one(engine.generate(PROMPT, GREEDY))["text"]
    answer = one(engine.generate(PROMPT, {**GREEDY, "stop": text[3:5]}))
    assert answer["text"] == text[:3]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": text[3:5]}


def test_logprobs_of_prompt_and_output_are_right_in_the_cache_too(engine: Engine) -> None:
    options: dict[str, Any] = {"return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": True}
    cold = one(engine.generate(PROMPT, GREEDY, logprob_start_len=0, **options))["meta_info"]
    warm = one(engine.generate(PROMPT, GREEDY, logprob_start_len=3, **options))["meta_info"]
    assert warm["cached_tokens"] > 0
    assert cold["input_token_logprobs"][0][0] is None
    assert "".join(text for _, _, text in cold["input_token_logprobs"]) == PROMPT
    assert warm["input_token_logprobs"] == cold["input_token_logprobs"][3:]
    assert warm["output_token_logprobs"] == cold["output_token_logprobs"]
    assert cold["input_top_logprobs"][0] is None
    for item, top in zip(cold["output_token_logprobs"], cold["output_top_logprobs"], strict=True):
        assert len(top) == 2
        assert top[0] == item  # it is greedy
    assert one(engine.generate(PROMPT, GREEDY, return_logprob=True))["meta_info"]["input_token_logprobs"] == []


def test_no_new_tokens_bring_in_the_prompt(engine: Engine) -> None:
    answer = one(engine.generate(PROMPT, {"max_new_tokens": 0}, return_logprob=True, logprob_start_len=0))
    assert (answer["text"], answer["output_ids"]) == ("", [])
    meta = answer["meta_info"]
    assert (meta["completion_tokens"], meta["finish_reason"]) == (0, {"type": "length", "length": 0})
    assert len(meta["input_token_logprobs"]) == meta["prompt_tokens"]
    assert meta["output_token_logprobs"] == []
    assert one(engine.generate(PROMPT, GREEDY))["meta_info"]["cached_tokens"] == meta["prompt_tokens"] - 1


def test_a_stream_gives_the_text_so_far(engine: Engine) -> None:
    whole = several(engine.generate([PROMPT, "Two"], {**GREEDY, "n": 2}))
    last: dict[int, dict[str, Any]] = {}
    stream = engine.generate([PROMPT, "Two"], {**GREEDY, "n": 2}, stream=True)
    for answer in cast("Iterator[dict[str, Any]]", stream):
        before = last.get(answer["index"], {"text": ""})
        assert answer["text"].startswith(before["text"])
        last[answer["index"]] = answer
    assert [last[idx]["text"] for idx in range(4)] == [answer["text"] for answer in whole]
    assert last[3]["meta_info"]["finish_reason"] == {"type": "length", "length": 6}


def test_leaving_a_stream_cancels(engine: Engine) -> None:
    num_aborted = engine.llm.metrics().num_aborted
    stream = cast("Iterator[dict[str, Any]]", engine.generate(PROMPT, {"max_new_tokens": 500}, stream=True))
    assert next(stream)["index"] == 0
    stream.close()  # type: ignore[attr-defined]
    assert one(engine.generate(PROMPT, GREEDY))["text"]  # takes at least one step, in which the abort is carried out
    assert engine.llm.metrics().num_aborted == num_aborted + 1


def test_a_stream_that_nobody_began_cancels(engine: Engine) -> None:
    num_aborted = engine.llm.metrics().num_aborted
    long = {"max_new_tokens": 500, "ignore_eos": True}
    engine.generate(PROMPT, long, stream=True)  # dropped at once

    async def leave() -> None:
        await engine.async_generate(PROMPT, long, stream=True)
        async for _ in cast("AsyncIterator[dict[str, Any]]", await engine.async_generate(PROMPT, long, stream=True)):
            break
        assert one(await engine.async_generate(PROMPT, GREEDY))["text"]

    asyncio.run(leave())
    assert engine.llm.metrics().num_aborted == num_aborted + 3


def test_asyncio_has_the_same(engine: Engine) -> None:
    async def ask() -> tuple[Any, Any, list[dict[str, Any]]]:
        first, second = await asyncio.gather(
            engine.async_generate(PROMPT, GREEDY), engine.async_generate(["Two"], GREEDY)
        )
        stream = cast("AsyncIterator[dict[str, Any]]", await engine.async_generate(PROMPT, GREEDY, stream=True))
        return first, second, [answer async for answer in stream]

    first, second, streamed = asyncio.run(ask())
    assert one(first)["text"] == one(engine.generate(PROMPT, GREEDY))["text"] == streamed[-1]["text"]
    assert len(second) == 1


def test_a_cancelled_task_cancels_its_requests(engine: Engine) -> None:
    async def give_up() -> None:
        async with asyncio.timeout(0.05):
            await engine.async_generate(PROMPT, {"max_new_tokens": 5000, "ignore_eos": True})

    num_aborted = engine.llm.metrics().num_aborted
    with pytest.raises(TimeoutError):
        asyncio.run(give_up())
    assert one(engine.generate(PROMPT, GREEDY))["text"]
    assert engine.llm.metrics().num_aborted == num_aborted + 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either prompt or input_ids"),
        ({"prompt": "a", "input_ids": [1]}, "either prompt or input_ids"),
        ({"prompt": []}, "non-empty list of texts"),
        ({"prompt": ["a", 3]}, "non-empty list of texts"),
        ({"prompt": ["a", "b"], "sampling_params": [{}]}, "1 entries for 2 prompts"),
        ({"prompt": "a", "logprob_start_len": 99}, r"logprob_start_len=99 is not allowed: it must lie in \[-1, 1\]"),
        ({"prompt": "a", "top_logprobs_num": -1}, "top_logprobs_num=-1"),
        ({"prompt": "a", "return_logprob": 3}, "return_logprob=3 is not allowed"),
        ({"prompt": "a", "cache_salt": "x"}, "cache_salt is not supported: use LLM.generate"),
        ({"prompt": "a", "image_data": "x"}, "image_data is not supported: text only"),
        ({"prompt": ["a", "b\ud800"]}, "prompt 1: the text holds a lone surrogate"),
        ({"prompt": "\udfff"}, "lone surrogate .* at character 0"),
        ({"input_ids": b"ab"}, "non-empty list of token ids"),
        ({"input_ids": [[1], b"ab"]}, "prompt 1: prompt_token_ids must be a list of integers"),
        ({"prompt": "a", "stream": "x"}, "stream='x' is not allowed"),
        ({"prompt": "a", "logprob_start_len": b"\x01"}, "logprob_start_len=b.* is not allowed"),
        ({"prompt": "a", "return_logprobs": True}, "did you mean 'return_logprob'"),
    ],
)
def test_bad_arguments_are_refused(engine: Engine, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        engine.generate(**arguments)


def test_what_asks_for_nothing_is_accepted(engine: Engine) -> None:
    assert one(engine.generate(PROMPT, GREEDY, image_data=None, return_hidden_states=False, rid=None))["text"]


def test_server_options_have_sglangs_names() -> None:
    options = {"context_length": 64, "chunked_prefill_size": 128, "page_size": 8, "dp_size": 1, "block": 1}
    assert llm_options(options) == {"max_model_len": 64, "max_num_batched_tokens": 128, "block_size": 8, "block": 1}
    assert llm_options({"tp_size": 2}) == {"tensor_parallel_size": 2}
    assert llm_options({"disable_radix_cache": True, "chunked_prefill_size": -1}) == {
        "enable_prefix_caching": False,
        "enable_chunked_prefill": False,
    }
    for bad, message in (
        ({"dp_size": 2}, "dp_size=2 is not supported"),
        ({"port": 30000}, "ramet serve"),
        ({"page_size": 1, "block_size": 2}, "given twice"),
        ({"disable_radix_cache": 3}, "True or False"),
        ({"tp_size": 2, "tensor_parallel_size": 4}, "given twice"),
    ):
        with pytest.raises(InvalidConfigError, match=message):
            llm_options(bad)


def test_options_that_change_no_output_are_taken() -> None:
    taken = {
        "watchdog_timeout": 300,
        "launch_timeout": 9.0,
        "quantization": "awq",
        "dp_size": 1,
    }
    assert llm_options(taken) == {}
    assert llm_options({"quantization": "int8", "tp_size": 2}) == {"quantization": "int8", "tensor_parallel_size": 2}
    with pytest.raises(InvalidConfigError, match="quantization='fp8' is unknown"):
        EngineConfig(**llm_options({"quantization": "fp8"}))
    for bad in ({"load_format": "dummy"}, {"nnodes": 2}):
        with pytest.raises(InvalidConfigError, match=f"{next(iter(bad))}=.*is not supported"):
            llm_options(bad)


def test_the_log_level_is_that_of_the_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("ramet")
    monkeypatch.setattr(logger, "level", logger.level)  # put back after the test
    set_log_level("error")
    assert logger.level == logging.ERROR
    with pytest.raises(InvalidConfigError, match="log_level='loud'"):
        set_log_level("loud")


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="did you mean"):
        Engine("smollm2", max_num_seq=3)


async def pieces_of(stream: AsyncIterator[str]) -> list[str]:
    return [piece async for piece in stream]


def test_a_runtime_runs_programs_and_answers_prompts(smollm2: LLM) -> None:
    smollm2.reset_prefix_cache()

    @function
    def complete(s: ProgramState) -> None:
        s += PROMPT + gen("city", max_tokens=6, temperature=0.0)

    runtime = Runtime(smollm2)
    runtime.cache_prefix(PROMPT)
    state = complete.run(backend=runtime)
    assert state.meta("city").num_cached_tokens > 0
    assert state["city"] == json.loads(runtime.generate(PROMPT, sampling_params=GREEDY))["text"]
    for stream in (runtime.async_generate, runtime.add_request):
        assert "".join(asyncio.run(pieces_of(stream(PROMPT, GREEDY)))) == state["city"]
    with pytest.raises(InvalidRequestError, match="one text"):
        asyncio.run(pieces_of(runtime.async_generate(PROMPT, {"n": 2})))
    scored = json.loads(runtime.generate([PROMPT, "b"], {"max_new_tokens": 1}, True, 0, 1))
    assert len(scored[0]["meta_info"]["input_top_logprobs"]) == scored[0]["meta_info"]["prompt_tokens"]
    info = runtime.get_server_info()
    assert (info["model_path"], info["eviction_policy"]) == ("smollm2", "lru")
    assert info["metrics"]["num_finished"] > 0
    tokenizer = runtime.get_tokenizer()
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert isinstance(prompt, str)
    assert prompt.endswith("user\nHi<|im_end|>\n<|im_start|>assistant\n")
    token_ids = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}])
    assert token_ids == tokenizer.encode(prompt.removesuffix("<|im_start|>assistant\n"), parse_special=True)
    assert runtime.endpoint is runtime
    assert not hasattr(runtime, "url")
    with pytest.raises(AttributeError, match="listens nowhere"):
        runtime.url  # noqa: B018
    runtime.flush_cache()
    assert json.loads(runtime.generate(PROMPT, GREEDY))["meta_info"]["cached_tokens"] == 0
    runtime.shutdown()
    assert one(Engine(smollm2).generate(PROMPT, GREEDY))["text"]  # the LLM is not the runtime's


def test_a_runtime_with_a_port_listens(smollm2: LLM) -> None:
    with Runtime(smollm2, port=0, api_key="secret-key") as runtime:
        assert runtime.url.startswith("http://127.0.0.1:")
        with RuntimeEndpoint(runtime.url, api_key="secret-key") as endpoint:
            assert endpoint.info()["model"] == "smollm2"
        port = int(runtime.url.rpartition(":")[2])
        with pytest.raises(InvalidConfigError, match=f"port={port}"):
            Runtime(smollm2, port=port)
        assert json.loads(runtime.generate(PROMPT, GREEDY))["text"]
    with pytest.raises(BackendCallError):
        RuntimeEndpoint(runtime.url, api_key="secret-key", max_retries=0)
    with pytest.raises(InvalidConfigError, match="port=-1"):
        Runtime(smollm2, port=-1)
    with pytest.raises(InvalidConfigError, match="give a port"):
        Runtime(smollm2, api_key="secret-key")
