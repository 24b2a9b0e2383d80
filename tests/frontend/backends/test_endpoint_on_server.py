"""A program on a server of ramet's does what it does on the engine itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ramet import LLM, BackendCallError, LocalBackend, RuntimeEndpoint
from ramet.frontend.backends.text_ids import TOKEN_BASE
from ramet.frontend.primitives import assistant, gen, select, system, user
from ramet.frontend.program import function
from ramet.frontend.state import ProgramState
from ramet.runtime.server.config import ServerConfig
from ramet.runtime.server.listener import BackgroundServer

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def url(smollm2: LLM) -> Iterator[str]:
    with BackgroundServer(smollm2, ServerConfig(port=0, api_keys=("secret-key",))) as server:
        yield server.url


@pytest.fixture
def endpoint(smollm2: LLM, url: str) -> Iterator[RuntimeEndpoint]:
    smollm2.reset_prefix_cache()
    with RuntimeEndpoint(url, api_key="secret-key") as endpoint:
        yield endpoint


@pytest.fixture
def local(smollm2: LLM) -> Iterator[LocalBackend]:
    with LocalBackend(smollm2) as backend:
        yield backend


@function
def talk(s: ProgramState, topic: str) -> None:
    s += system("You are brief.")
    s += user(f"Name three {topic}.<|im_end|>")
    s += assistant(gen("names", max_tokens=20, temperature=0.0, stop="."))
    s += user("Are they green? 🙂")
    s += assistant(select("green", ["Yes", "Yes, all", "No", "I do not know"]) + ", " + gen("why", max_tokens=8))
    s += user("How many?")
    s += assistant(gen("number", regex="[1-9][0-9]?", max_tokens=4))


def test_a_program_gives_the_same_over_http(endpoint: RuntimeEndpoint, local: LocalBackend, smollm2: LLM) -> None:
    remote = talk.run(topic="plants", backend=endpoint, temperature=0.0)
    text = remote.text()
    smollm2.reset_prefix_cache()
    at_home = talk.run(topic="plants", backend=local, temperature=0.0)
    assert text == at_home.text()
    assert remote.messages() == at_home.messages()
    for name in ("names", "green", "why", "number"):
        here, there = remote.meta(name), at_home.meta(name)
        assert here.num_prompt_tokens == there.num_prompt_tokens
        assert (here.finish_reason, here.stop_reason) == (there.finish_reason, there.stop_reason)
        assert [sample.text for sample in here.samples] == [sample.text for sample in there.samples]
        assert [choice.choice.logprobs for choice in here.choices] == [
            choice.choice.logprobs for choice in there.choices
        ]
    assert remote.meta("number").num_cached_tokens > 0
    generated = [token_id - TOKEN_BASE for token_id in remote.meta("why").samples[0].token_ids]
    assert generated == list(at_home.meta("why").samples[0].token_ids)
    assert remote.meta("number").complete is True


def test_what_the_engine_refuses_is_told(endpoint: RuntimeEndpoint) -> None:
    @function
    def complete(s: ProgramState) -> None:
        s += "Once" + gen("more", max_tokens=4, stop_token_ids=[10**9])

    failure = complete.run(backend=endpoint).error()
    assert "HTTP 400: " in str(failure)
    assert "stop_token_ids" in str(failure)


@function
def answer(s: ProgramState) -> None:
    s += "The sky is blue. Is it? Answer: "
    s += gen("truth", regex=" ?(yes|no)", max_tokens=6)
    s += ", for the colour is" + gen("why", max_tokens=6, n=2)


@pytest.mark.parametrize("uses_ids", [True, False])
def test_the_boundary_is_healed_as_at_home(url: str, local: LocalBackend, smollm2: LLM, uses_ids: bool) -> None:
    with RuntimeEndpoint(url, api_key="secret-key", use_token_ids=uses_ids) as endpoint:
        remote = answer.run(backend=endpoint, temperature=0.0)
        texts = (remote.text(), remote["truth"], remote["why"])
        at_home = answer.run(backend=local, temperature=0.0)
        assert texts == (at_home.text(), at_home["truth"], at_home["why"])
        here, there = remote.meta("truth"), at_home.meta("truth")
        assert here.num_prompt_tokens == there.num_prompt_tokens
        assert here.num_generated_tokens == there.num_generated_tokens
        if uses_ids:
            first = remote.meta("truth").samples[0].token_ids
            assert [token_id - TOKEN_BASE for token_id in first] == list(at_home.meta("truth").samples[0].token_ids)


def test_the_server_is_asked_about_itself(endpoint: RuntimeEndpoint, smollm2: LLM) -> None:
    assert endpoint.info()["uses_token_ids"] is True
    assert endpoint.get_server_info()["model_path"] == "smollm2"
    endpoint.cache_prefix("Once upon a time, in a land far away, there lived a king who had no name. " * 2)
    assert smollm2.cache_snapshot().runs
    endpoint.flush_cache()
    assert not smollm2.cache_snapshot().runs


def test_a_wrong_key_is_told(url: str) -> None:
    with pytest.raises(BackendCallError, match="API key"):
        RuntimeEndpoint(url, api_key="wrong")
