"""What the language relies on, for every backend of the registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import pytest

from ramet import LLM
from ramet.frontend.backend import Backend, GenerateCall, ScoreCall, TextSegment
from ramet.frontend.backends.registry import BACKENDS
from ramet.frontend.generation import GenerateResult
from ramet.sampling_params import SamplingParams

TIMEOUT_S = 120.0
COUNTING = "1, 2, 3, 4, 5, 6, 7,"


def make_local(request: pytest.FixtureRequest) -> Backend:
    llm: LLM = request.getfixturevalue("smollm2")
    return BACKENDS["local"]()(llm)


def make_mock(request: pytest.FixtureRequest) -> Backend:
    return BACKENDS["mock"]()(" 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20", mode="background")


MAKERS: dict[str, Callable[[pytest.FixtureRequest], Backend]] = {"local": make_local, "mock": make_mock}
NEED_MODEL = {"local"}


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.model if name in NEED_MODEL else ()) for name in BACKENDS])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    made = MAKERS[request.param](request)
    made.flush_cache()
    yield made
    made.close()  # type: ignore[attr-defined]


def encode(backend: Backend, text: str) -> tuple[int, ...]:
    return tuple(backend.encode([TextSegment(text)], at_start=True))


def generate(backend: Backend, text: str = COUNTING, **options: object) -> GenerateResult:
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 12, **options})  # type: ignore[arg-type]
    return backend.generate(GenerateCall(encode(backend, text), params, name="x")).result(TIMEOUT_S)


def chat_segments(backend: Backend, user_text: str) -> list[TextSegment]:
    return [
        *backend.role_prefix([], "user"),
        TextSegment(user_text),
        *backend.role_suffix([], "user"),
        *backend.role_prefix([{"role": "user", "content": user_text}], "assistant"),
    ]


def text_of(segments: Sequence[TextSegment]) -> str:
    return "".join(segment.text for segment in segments)


def test_every_backend_is_tested() -> None:
    assert set(MAKERS) == set(BACKENDS)


def test_it_fits_the_protocol_and_says_what_it_is(backend: Backend, request: pytest.FixtureRequest) -> None:
    assert isinstance(backend, Backend)
    assert backend.info()["backend"] == request.node.callspec.params["backend"]


@pytest.mark.parametrize("user_text", ["Hello, world!", " two  spaces\n", "naïve 日本 🙂", "<|im_end|><|end|>"])
def test_decoding_undoes_encoding_with_template_segments(backend: Backend, user_text: str) -> None:
    segments = chat_segments(backend, user_text)
    assert any(segment.is_template for segment in segments)
    ids = backend.encode(segments, at_start=False)
    assert backend.decode(ids) == text_of(segments)
    assert backend.decode(backend.encode(segments, at_start=True)).endswith(text_of(segments))


def test_only_template_text_becomes_special_tokens(backend: Backend) -> None:
    suffix = text_of(backend.role_suffix([], "user"))
    as_template = backend.encode([TextSegment(suffix, is_template=True)], at_start=False)
    as_text = backend.encode([TextSegment(suffix)], at_start=False)
    assert backend.decode(as_text) == backend.decode(as_template)
    assert len(as_text) > len(as_template)


def test_a_message_opens_and_closes_around_its_text(backend: Backend) -> None:
    segments = chat_segments(backend, "Hello")
    assert text_of(backend.role_prefix([], "user")) + "Hello" in text_of(segments)
    assert "assistant" in text_of(backend.role_prefix([{"role": "user", "content": "Hello"}], "assistant"))


def test_max_tokens_ends_a_generation(backend: Backend) -> None:
    result = generate(backend, max_tokens=5)
    (sample,) = result.samples
    assert (sample.finish_reason, sample.stop_reason) == ("length", None)
    assert len(sample.token_ids) == 5
    assert sample.kept_token_ids == sample.token_ids
    assert backend.decode(sample.token_ids) == sample.text
    assert result.num_prompt_tokens == len(encode(backend, COUNTING))


def test_a_stop_string_ends_a_generation_and_is_no_part_of_it(backend: Backend) -> None:
    (whole,) = generate(backend).samples
    stop = whole.text[4:6]
    (sample,) = generate(backend, stop=[stop]).samples
    assert (sample.finish_reason, sample.stop_reason) == ("stop", stop)
    assert sample.text == whole.text[: whole.text.index(stop)]
    assert sample.token_ids == whole.token_ids[: len(sample.token_ids)]
    assert sample.kept_token_ids == sample.token_ids[: len(sample.kept_token_ids)]
    assert backend.decode(sample.kept_token_ids) + sample.leftover_text == sample.text


def test_samples_and_logprobs_are_those_asked_for(backend: Backend) -> None:
    result = generate(backend, n=2, temperature=1.0, seed=1, logprobs=0, max_tokens=4)
    assert len(result.samples) == 2
    for sample in result.samples:
        assert sample.logprobs is not None
        assert [item.token_id for item in sample.logprobs] == list(sample.token_ids)
        assert all(item.logprob <= 0.0 for item in sample.logprobs)


def test_chunks_add_up_to_the_text_for_every_reader(backend: Backend) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=12)
    generation = backend.generate(GenerateCall(encode(backend, COUNTING), params))
    early = "".join(generation.chunks(TIMEOUT_S))
    late = "".join(generation.chunks(TIMEOUT_S))
    (sample,) = generation.result(TIMEOUT_S).samples
    assert early == late == generation.text_so_far() == sample.text != ""


def test_scores_have_a_value_a_token(backend: Backend) -> None:
    prompt = encode(backend, "The sky is")
    continuations = tuple(
        tuple(backend.encode([TextSegment(text)], at_start=False)) for text in (" blue", " a deep shade of blue")
    )
    result = backend.score(ScoreCall(prompt, continuations)).result(TIMEOUT_S)
    assert [len(values) for values in result.logprobs] == [len(ids) for ids in continuations]
    assert all(value is not None and value <= 0.0 for values in result.logprobs for value in values)
    assert result.num_prompt_tokens == len(prompt)
    assert 0 <= result.num_cached_tokens <= len(prompt)


def test_scores_without_a_prompt_leave_out_the_first_token(backend: Backend) -> None:
    ids = tuple(backend.encode([TextSegment(" a deep shade")], at_start=False))
    (values,) = backend.score(ScoreCall((), (ids,))).result(TIMEOUT_S).logprobs
    assert [value is None for value in values] == [True] + [False] * (len(ids) - 1)


def test_a_cancelled_call_settles_and_the_backend_goes_on(backend: Backend) -> None:
    params = SamplingParams(max_tokens=2000, ignore_eos=True)
    generation = backend.generate(GenerateCall(encode(backend, COUNTING), params))
    scoring = backend.score(ScoreCall(encode(backend, COUNTING), (encode(backend, " 8"),)))
    for handle in (generation, scoring):
        handle.cancel()
        handle.cancel()
    for handle in (generation, scoring):
        with suppress(Exception):  # it may have ended before
            handle.result(TIMEOUT_S)
        assert handle.is_done
    assert generate(backend).samples[0].text


def test_cached_tokens_are_counted_until_the_cache_is_flushed(backend: Backend) -> None:
    num_prompt_tokens = generate(backend).num_prompt_tokens
    assert generate(backend).num_cached_tokens == num_prompt_tokens - 1
    backend.flush_cache()
    assert generate(backend).num_cached_tokens == 0


def test_callbacks_run_once_whenever_they_are_added(backend: Backend) -> None:
    generation = backend.generate(GenerateCall(encode(backend, COUNTING), SamplingParams(max_tokens=2)))
    calls: list[str] = []
    generation.add_done_callback(lambda: calls.append("early"))
    generation.result(TIMEOUT_S)
    generation.add_done_callback(lambda: calls.append("late"))
    generate(backend)  # its end comes after all that the first one sets off
    assert sorted(calls) == ["early", "late"]
