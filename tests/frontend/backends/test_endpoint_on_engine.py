"""A program on a server over the real engine does what it does on the engine itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ramet import LLM, Engine, LocalBackend, RuntimeEndpoint
from ramet.frontend.backends.text_ids import TOKEN_BASE
from ramet.frontend.primitives import assistant, gen, select, system, user
from ramet.frontend.program import function
from ramet.frontend.state import ProgramState

from .engine_server import EngineServer
from .stub_server import StubServer

pytestmark = pytest.mark.model


@pytest.fixture
def endpoint(smollm2: LLM, server: StubServer) -> Iterator[RuntimeEndpoint]:
    smollm2.reset_prefix_cache()
    server.script = EngineServer(Engine(smollm2))
    with RuntimeEndpoint(server.url) as endpoint:
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
