"""What the language relies on, for every backend of the registry, and that what one cannot do is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pytest

from ramet import LLM
from ramet.frontend.backend import Backend, GenerateCall, ScoreCall, TextSegment
from ramet.frontend.backends.errors import UnsupportedByBackendError
from ramet.frontend.backends.registry import BACKENDS
from ramet.frontend.generation import GenerateResult
from ramet.frontend.handle import Handle
from ramet.sampling_params import SamplingParams

from .backends.fake_apis import FakeAnthropic, FakeOpenAI
from .backends.fake_runtime import FakeRuntime
from .backends.stub_server import Script, StubServer

TIMEOUT_S = 120.0
COUNTING = "1, 2, 3, 4, 5, 6, 7,"


REPLY = " 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20"

Lack = Literal["plain text", "roles", "scores", "samples and logprobs", "flush", "ignore_eos", "temperature"]
"""What some backends cannot do. The tests check that they say so."""


@dataclass(frozen=True)
class Variant:
    """One way to set up a backend of the registry."""

    backend: str
    make: Callable[[pytest.FixtureRequest], Backend]
    lacks: frozenset[Lack] = frozenset()


def make_local(request: pytest.FixtureRequest) -> Backend:
    llm: LLM = request.getfixturevalue("smollm2")
    return BACKENDS["local"]()(llm)


def make_mock(request: pytest.FixtureRequest) -> Backend:
    return BACKENDS["mock"]()(REPLY, mode="background")


def serve(request: pytest.FixtureRequest, script: Script) -> str:
    server = StubServer()
    request.addfinalizer(server.close)
    server.script = script
    return server.url


def make_openai(request: pytest.FixtureRequest, *, is_chat_model: bool) -> Backend:
    url = serve(request, FakeOpenAI(REPLY))
    return BACKENDS["openai"]()("fake", is_chat_model, base_url=f"{url}/v1", api_key="none")


def make_anthropic(request: pytest.FixtureRequest) -> Backend:
    return BACKENDS["anthropic"]()("fake", base_url=serve(request, FakeAnthropic(REPLY)), api_key="none")


def make_endpoint(request: pytest.FixtureRequest, *, is_ramet: bool) -> Backend:
    fake = FakeRuntime(lambda prompt: REPLY, is_ramet=is_ramet)
    return BACKENDS["endpoint"]()(serve(request, fake), chat_template_name="chatml")


CHAT_API: frozenset[Lack] = frozenset({"plain text", "scores", "flush", "ignore_eos"})
VARIANTS: dict[str, Variant] = {
    "local": Variant("local", make_local),
    "mock": Variant("mock", make_mock),
    "endpoint of ramet": Variant("endpoint", partial(make_endpoint, is_ramet=True)),
    "endpoint of sglang": Variant("endpoint", partial(make_endpoint, is_ramet=False)),
    "openai chat": Variant("openai", partial(make_openai, is_chat_model=True), CHAT_API),
    "openai completion": Variant(
        "openai", partial(make_openai, is_chat_model=False), frozenset({"roles", "flush", "ignore_eos"})
    ),
    "anthropic": Variant("anthropic", make_anthropic, CHAT_API | {"samples and logprobs", "temperature"}),
}
NEED_MODEL = {"local"}


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.model if name in NEED_MODEL else ()) for name in VARIANTS])
def variant(request: pytest.FixtureRequest) -> Variant:
    return VARIANTS[request.param]


@pytest.fixture
def lacks(variant: Variant) -> frozenset[Lack]:
    return variant.lacks


@pytest.fixture
def backend(variant: Variant, request: pytest.FixtureRequest) -> Iterator[Backend]:
    made = variant.make(request)
    if "flush" not in variant.lacks:
        made.flush_cache()
    yield made
    made.close()  # type: ignore[attr-defined]


def encode(backend: Backend, text: str) -> tuple[int, ...]:
    return tuple(backend.encode([TextSegment(text)], at_start=True))


def prompt(backend: Backend, lacks: frozenset[Lack]) -> tuple[int, ...]:
    """COUNTING as the backend can go on with it."""
    if "plain text" not in lacks:
        return encode(backend, COUNTING)
    return tuple(backend.encode(backend.chat_segments([{"role": "user", "content": COUNTING}]), at_start=True))


def need(what: Lack, lacks: frozenset[Lack]) -> None:
    """Leave out a test of what the backend cannot do."""
    if what in lacks:
        pytest.skip(f"it has no {what}, and says so: test_what_it_lacks_is_refused")


def generate(backend: Backend, lacks: frozenset[Lack], **options: object) -> GenerateResult:
    temperature = 1.0 if "temperature" in lacks else 0.0
    params = SamplingParams(**{"temperature": temperature, "max_tokens": 12, **options})  # type: ignore[arg-type]
    return backend.generate(GenerateCall(prompt(backend, lacks), params, name="x")).result(TIMEOUT_S)


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
    assert {variant.backend for variant in VARIANTS.values()} == set(BACKENDS)


def test_it_fits_the_protocol_and_says_what_it_is(backend: Backend, variant: Variant) -> None:
    assert isinstance(backend, Backend)
    assert backend.info()["backend"] == variant.backend


def test_what_it_lacks_is_refused(backend: Backend, lacks: frozenset[Lack]) -> None:
    """Each lack is one, and is told as such."""

    def asked(**options: Any) -> object:
        return backend.generate(GenerateCall(prompt(backend, lacks), SamplingParams(**options)))

    attempts: dict[Lack, Callable[[], object]] = {
        "plain text": lambda: backend.generate(GenerateCall(encode(backend, COUNTING), SamplingParams())),
        "roles": lambda: backend.role_prefix([], "user"),
        "scores": lambda: backend.score(ScoreCall(encode(backend, "a"), (encode(backend, "b"),))),
        "samples and logprobs": lambda: [asked(n=2), asked(logprobs=0)],
        "flush": backend.flush_cache,
        "ignore_eos": lambda: asked(ignore_eos=True),
        "temperature": lambda: asked(temperature=0.0),
    }
    for lack in lacks:
        with pytest.raises(UnsupportedByBackendError, match=r"cannot|takes chat messages only|has no roles"):
            attempts[lack]()


@pytest.mark.parametrize("user_text", ["Hello, world!", " two  spaces\n", "naïve 日本 🙂", "<|im_end|><|end|>"])
def test_decoding_undoes_encoding_with_template_segments(
    backend: Backend, lacks: frozenset[Lack], user_text: str
) -> None:
    if "roles" in lacks:
        ids = backend.encode([TextSegment(user_text)], at_start=True)
        assert backend.decode(ids) == user_text
        return
    segments = chat_segments(backend, user_text)
    assert any(segment.is_template for segment in segments)
    ids = backend.encode(segments, at_start=False)
    assert backend.decode(ids) == text_of(segments)
    assert backend.decode(backend.encode(segments, at_start=True)).endswith(text_of(segments))


def test_only_template_text_becomes_special_tokens(backend: Backend, lacks: frozenset[Lack]) -> None:
    need("roles", lacks)
    suffix = text_of(backend.role_suffix([], "user"))
    as_template = backend.encode([TextSegment(suffix, is_template=True)], at_start=False)
    as_text = backend.encode([TextSegment(suffix)], at_start=False)
    assert backend.decode(as_text) == backend.decode(as_template)
    assert as_text != as_template


def test_a_message_opens_and_closes_around_its_text(backend: Backend, lacks: frozenset[Lack]) -> None:
    need("roles", lacks)
    segments = chat_segments(backend, "Hello")
    assert text_of(backend.role_prefix([], "user")) + "Hello" in text_of(segments)
    assert "assistant" in text_of(backend.role_prefix([{"role": "user", "content": "Hello"}], "assistant"))


def test_max_tokens_ends_a_generation(backend: Backend, lacks: frozenset[Lack]) -> None:
    result = generate(backend, lacks, max_tokens=5)
    (sample,) = result.samples
    assert (sample.finish_reason, sample.stop_reason) == ("length", None)
    assert len(sample.token_ids) == 5
    assert sample.kept_token_ids == sample.token_ids
    assert backend.decode(sample.token_ids) == sample.text
    assert result.num_generated_tokens in (None, 5)
    if "plain text" not in lacks:
        assert result.num_prompt_tokens == len(encode(backend, COUNTING))


def test_a_stop_string_ends_a_generation_and_is_no_part_of_it(backend: Backend, lacks: frozenset[Lack]) -> None:
    (whole,) = generate(backend, lacks).samples
    stop = whole.text[4:6]
    (sample,) = generate(backend, lacks, stop=[stop]).samples
    assert (sample.finish_reason, sample.stop_reason) == ("stop", stop)
    assert sample.text == whole.text[: whole.text.index(stop)]
    assert sample.token_ids == whole.token_ids[: len(sample.token_ids)]
    assert sample.kept_token_ids == sample.token_ids[: len(sample.kept_token_ids)]
    assert backend.decode(sample.kept_token_ids) + sample.leftover_text == sample.text


def test_samples_and_logprobs_are_those_asked_for(backend: Backend, lacks: frozenset[Lack]) -> None:
    need("samples and logprobs", lacks)
    result = generate(backend, lacks, n=2, temperature=1.0, seed=1, logprobs=0, max_tokens=4)
    assert len(result.samples) == 2
    for sample in result.samples:
        assert sample.logprobs is not None
        assert [item.token_id for item in sample.logprobs] == list(sample.token_ids)
        assert all(item.logprob <= 0.0 for item in sample.logprobs)


def test_chunks_add_up_to_the_text_for_every_reader(backend: Backend, lacks: frozenset[Lack]) -> None:
    generation = backend.generate(GenerateCall(prompt(backend, lacks), SamplingParams(max_tokens=12)))
    early = "".join(generation.chunks(TIMEOUT_S))
    late = "".join(generation.chunks(TIMEOUT_S))
    (sample,) = generation.result(TIMEOUT_S).samples
    assert early == late == generation.text_so_far() == sample.text != ""


def test_scores_have_a_value_a_token(backend: Backend, lacks: frozenset[Lack]) -> None:
    need("scores", lacks)
    prompt = encode(backend, "The sky is")
    continuations = tuple(
        tuple(backend.encode([TextSegment(text)], at_start=False)) for text in (" blue", " a deep shade of blue")
    )
    result = backend.score(ScoreCall(prompt, continuations)).result(TIMEOUT_S)
    scored_ids = continuations if result.token_ids is None else result.token_ids
    assert [len(values) for values in result.logprobs] == [len(ids) for ids in scored_ids]
    assert [backend.decode(ids) for ids in scored_ids] == [backend.decode(ids) for ids in continuations]
    assert all(value is not None and value <= 0.0 for values in result.logprobs for value in values)
    assert result.num_prompt_tokens == len(prompt)
    assert 0 <= result.num_cached_tokens <= len(prompt)


def test_scores_without_a_prompt_leave_out_the_first_token(backend: Backend, lacks: frozenset[Lack]) -> None:
    need("scores", lacks)
    ids = tuple(backend.encode([TextSegment(" a deep shade")], at_start=False))
    (values,) = backend.score(ScoreCall((), (ids,))).result(TIMEOUT_S).logprobs
    assert [value is None for value in values] == [True] + [False] * (len(ids) - 1)


def test_a_cancelled_call_settles_and_the_backend_goes_on(backend: Backend, lacks: frozenset[Lack]) -> None:
    params = SamplingParams(max_tokens=2000, ignore_eos="ignore_eos" not in lacks)
    handles: list[Handle[Any]] = [backend.generate(GenerateCall(prompt(backend, lacks), params))]
    if "scores" not in lacks:
        handles.append(backend.score(ScoreCall(encode(backend, COUNTING), (encode(backend, " 8"),))))
    for handle in handles:
        handle.cancel()
        handle.cancel()
    for handle in handles:
        with suppress(Exception):  # it may have ended before
            handle.result(TIMEOUT_S)
        assert handle.is_done
    assert generate(backend, lacks).samples[0].text


def test_cached_tokens_are_counted_until_the_cache_is_flushed(backend: Backend, lacks: frozenset[Lack]) -> None:
    need("flush", lacks)
    num_prompt_tokens = generate(backend, lacks).num_prompt_tokens
    assert generate(backend, lacks).num_cached_tokens == num_prompt_tokens - 1
    backend.flush_cache()
    assert generate(backend, lacks).num_cached_tokens == 0


def test_callbacks_run_once_whenever_they_are_added(backend: Backend, lacks: frozenset[Lack]) -> None:
    generation = backend.generate(GenerateCall(prompt(backend, lacks), SamplingParams(max_tokens=2)))
    calls: list[str] = []
    generation.add_done_callback(lambda: calls.append("early"))
    generation.result(TIMEOUT_S)
    generation.add_done_callback(lambda: calls.append("late"))
    generate(backend, lacks)  # its end comes after all that the first one sets off
    assert sorted(calls) == ["early", "late"]
