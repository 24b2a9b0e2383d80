"""SGLang's own frontend package, unmodified, drives the server, with the results of ramet's frontend on the engine.

It is installed without its dependencies: requirements/clients.txt says how.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import ramet
from ramet import LLM, LocalBackend
from ramet.runtime.server.config import ServerConfig
from ramet.runtime.server.listener import BackgroundServer

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import sglang
except ImportError as error:
    if os.environ.get("RAMET_TESTS_REQUIRE_CLIENTS") == "1":
        raise
    pytest.skip(f"SGLang cannot be imported ({error}): see requirements/clients.txt", allow_module_level=True)

pytestmark = [
    pytest.mark.model,
    pytest.mark.clients,
    pytest.mark.filterwarnings("default"),  # its own are not ours
]

KEY = "secret-key"


@pytest.fixture(scope="module")
def server(smollm2: LLM) -> Iterator[BackgroundServer]:
    with BackgroundServer(smollm2, ServerConfig(port=0, api_keys=(KEY,))) as running:
        yield running


@pytest.fixture
def theirs(server: BackgroundServer) -> Any:
    return sglang.RuntimeEndpoint(server.url, api_key=KEY, chat_template_name="chatml")


@pytest.fixture
def ours(smollm2: LLM) -> Iterator[LocalBackend]:
    with LocalBackend(smollm2) as backend:
        yield backend


def run_both(body: Any, theirs: Any, ours: LocalBackend, names: tuple[str, ...], **arguments: Any) -> Any:
    """The same program by both frontends. Its body takes the frontend's module as `sgl`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        remote = sglang.function(lambda s, **given: body(sglang, s, **given)).run(
            backend=theirs, temperature=0, **arguments
        )
        remote.sync()
    assert remote.error() is None, (remote.error(), [str(warning.message) for warning in caught])
    at_home = ramet.function(lambda s, **given: body(ramet, s, **given)).run(backend=ours, temperature=0, **arguments)
    for name in names:
        assert remote[name] == at_home[name], name
    assert remote.text() == at_home.text()
    return remote, at_home


def complete(sgl: Any, s: Any, country: str) -> None:
    s += f"The capital of {country} is"
    s += sgl.gen("city", max_tokens=8, stop=".")
    s += "\nIts river is called the" + sgl.gen("river", max_tokens=5)


def test_run(theirs: Any, ours: LocalBackend) -> None:
    remote, at_home = run_both(complete, theirs, ours, ("city", "river"), country="France")
    meta, expected = remote.get_meta_info("city"), at_home.get_meta_info("city")
    assert meta["finish_reason"] == expected["finish_reason"] == {"type": "stop", "matched": "."}
    for name in ("prompt_tokens", "completion_tokens"):
        assert meta[name] == expected[name]


def chat(sgl: Any, s: Any, question: str) -> None:
    s += sgl.system("You are brief.")
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("first", max_tokens=12))
    with s.user():
        s += "And of Spain?"
    with s.assistant():
        s += sgl.gen("second", max_tokens=12)


def test_chat_roles(theirs: Any, ours: LocalBackend) -> None:
    remote, at_home = run_both(chat, theirs, ours, ("first", "second"), question="What is the capital of France?")
    assert [message["role"] for message in remote.messages()] == ["system", "user", "assistant", "user", "assistant"]
    assert remote.messages() == at_home.messages()


def test_the_prefix_is_found_in_the_cache(theirs: Any, ours: LocalBackend) -> None:
    remote, _ = run_both(chat, theirs, ours, (), question="What is the capital of France? " * 4)
    first, second = remote.get_meta_info("first"), remote.get_meta_info("second")
    assert second["cached_tokens"] >= first["prompt_tokens"] - 32


def constrained(sgl: Any, s: Any) -> None:
    s += "An address of a computer: 192" + sgl.gen("address", max_tokens=12, regex=r"(\.[0-9]{1,3}){3}")
    s += "\nA colour:" + sgl.gen("colour", choices=[" red", " green", " blue"])


def test_regex_and_choices(theirs: Any, ours: LocalBackend) -> None:
    remote, _ = run_both(constrained, theirs, ours, ("colour",))
    assert re.fullmatch(r"(\.[0-9]{1,3}){3}", remote["address"])


@pytest.mark.parametrize(
    "method", ["token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"]
)
def test_select(theirs: Any, ours: LocalBackend, method: str) -> None:
    def pick(sgl: Any, s: Any) -> None:
        s += "The capital of France is the city of"
        s += sgl.select("city", [" Paris", " London", " Berlin"], choices_method=getattr(sgl, method))

    remote, _ = run_both(pick, theirs, ours, ("city",))
    assert remote["city"] == " Paris"


def typed(sgl: Any, s: Any) -> None:
    s += "Two and two make " + sgl.gen_int("sum", max_tokens=4)
    s += ".\nSaid she: " + sgl.gen_string("said", max_tokens=12)
    s += ".\nIs it true? " + sgl.gen("truth", dtype=bool, max_tokens=4)


def test_typed_gens(theirs: Any) -> None:
    state = sglang.function(lambda s: typed(sglang, s)).run(backend=theirs, temperature=0)
    assert re.fullmatch(r"[-+]?[0-9]+", state["sum"])
    assert state["said"].startswith('"')
    assert state["truth"] in ("True", "False")


def tips(sgl: Any, s: Any) -> None:
    s += "Three tips for a healthy life.\n"
    forks = s.fork(3)
    for idx, fork in enumerate(forks):
        fork += f"Tip {idx + 1}:" + sgl.gen("tip", max_tokens=10, stop="\n")
    forks.join()
    s += "First:" + forks[0]["tip"] + "\nIn short:" + sgl.gen("summary", max_tokens=8)


def test_fork_and_join(theirs: Any, ours: LocalBackend) -> None:
    remote, at_home = run_both(tips, theirs, ours, ("summary",))
    assert remote["tip"] == at_home["tip"]
    assert len(remote["tip"]) == 3


def test_run_batch(theirs: Any, ours: LocalBackend) -> None:
    items = [{"country": country} for country in ("France", "Spain", "Italy", "Japan", "Peru", "Chad", "Cuba", "Oman")]
    program = sglang.function(lambda s, country: complete(sglang, s, country))
    remote = program.run_batch(items, backend=theirs, temperature=0, num_threads=4)
    at_home = ramet.function(lambda s, country: complete(ramet, s, country)).run_batch(
        items, backend=ours, temperature=0
    )
    assert [state.text() for state in remote] == [state.text() for state in at_home]


def test_streaming(theirs: Any, ours: LocalBackend) -> None:
    program = sglang.function(lambda s, country: complete(sglang, s, country))
    state = program.run(country="France", backend=theirs, temperature=0, stream=True)
    pieces = list(state.text_iter())
    assert len(pieces) > 5
    expected = ramet.function(lambda s, country: complete(ramet, s, country)).run(
        country="France", backend=ours, temperature=0
    )
    assert "".join(pieces) == expected.text()
    state = program.run(country="Spain", backend=theirs, temperature=0, stream=True)
    assert "".join(state.text_iter("river")) == state["river"]


def test_logprobs(theirs: Any, ours: LocalBackend) -> None:
    def body(sgl: Any, s: Any) -> None:
        s += "The capital of France is"
        s += sgl.gen(
            "city", max_tokens=4, return_logprob=True, top_logprobs_num=2, return_text_in_logprobs=True,
            logprob_start_len=0,
        )  # fmt: skip

    remote, at_home = run_both(body, theirs, ours, ("city",))
    here, there = remote.get_meta_info("city"), at_home.get_meta_info("city")
    assert here["input_token_logprobs"][0][0] is None  # of the very first token; ramet's frontend leaves it out
    here["input_token_logprobs"].pop(0)
    for name in ("input_token_logprobs", "output_token_logprobs", "output_top_logprobs"):
        assert here[name] == [_as_lists(item) for item in there[name]], name


def _as_lists(value: Any) -> Any:
    return [_as_lists(item) for item in value] if isinstance(value, list | tuple) else value


def test_the_backends_own_calls(theirs: Any, server: BackgroundServer, smollm2: LLM) -> None:
    assert theirs.get_model_name() == "smollm2"
    assert theirs.get_server_info()["tp_size"] == 1
    theirs.cache_prefix("Once upon a time, in a land far away, there lived a king who had no name. " * 2)
    assert smollm2.cache_snapshot().runs
    sglang.flush_cache(theirs)
    assert not smollm2.cache_snapshot().runs
    theirs.start_profile()
    theirs.stop_profile()
    assert server.service.admission.num_live == 0


def test_what_is_refused_is_told(theirs: Any) -> None:
    @sglang.function
    def program(s: Any) -> None:
        s += "A" + sglang.gen("x", stop_token_ids=[10**9])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = program.run(backend=theirs)
        state.sync()
    assert "stop_token_ids" in str(state.error())
