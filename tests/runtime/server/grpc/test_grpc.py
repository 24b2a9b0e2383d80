"""gRPC gives what the engine gives, under the same tenants and limits as HTTP, and frees what it is left with."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ramet import LLM, InvalidConfigError, SamplingParams
from ramet.runtime.server.config import ServerConfig
from ramet.runtime.server.listener import BackgroundServer, bound_socket
from ramet.runtime.server.service import EngineService

from ..conftest import Serve

grpc = pytest.importorskip("grpc", reason="gRPC is an extra")
pb = pytest.importorskip("ramet.runtime.server.grpc.ramet_pb2")
messages = pytest.importorskip("ramet.runtime.server.grpc.messages")
servicer = pytest.importorskip("ramet.runtime.server.grpc.servicer")

pytestmark = pytest.mark.model

PROMPT = "The capital of France is"
GREEDY = {"max_new_tokens": 8, "temperature": 0.0}
LONG = {"max_new_tokens": 4000, "temperature": 0.0, "ignore_eos": True}


class Client:
    """The calls of ramet.proto."""

    def __init__(self, server: BackgroundServer, **metadata: str) -> None:
        self.channel = grpc.insecure_channel(f"127.0.0.1:{server.service.grpc_port}")
        self.metadata = [(name.replace("_", "-"), value) for name, value in metadata.items()]

    def call(self, name: str, request: Any, response: Any, **options: Any) -> Any:
        unary = self.channel.unary_unary(
            f"/ramet.v1.Ramet/{name}", type(request).SerializeToString, response.FromString
        )
        return unary(request, metadata=self.metadata, **{"timeout": 60, **options})

    def generate(self, params: dict[str, Any] | None = None, **fields: Any) -> Any:
        request = pb.GenerateRequest(sampling_params=pb.SamplingParams(**(params or GREEDY)), **fields)
        return self.call("Generate", request, pb.GenerateResponse)

    def stream(self, params: dict[str, Any] | None = None, *, timeout: float = 60, **fields: Any) -> Any:
        request = pb.GenerateRequest(sampling_params=pb.SamplingParams(**(params or GREEDY)), **fields)
        stream = self.channel.unary_stream(
            "/ramet.v1.Ramet/GenerateStream", pb.GenerateRequest.SerializeToString, pb.GenerateChunk.FromString
        )
        return stream(request, metadata=self.metadata, timeout=timeout)

    def abort(self, **fields: Any) -> int:
        return int(self.call("Abort", pb.AbortRequest(**fields), pb.AbortResponse).num_aborted)


@contextmanager
def client_of(server: BackgroundServer, **metadata: str) -> Iterator[Client]:
    client = Client(server, **metadata)
    try:
        yield client
    finally:
        client.channel.close()


@pytest.fixture(scope="module")
def speaking(smollm2: LLM) -> Iterator[BackgroundServer]:
    with BackgroundServer(smollm2, ServerConfig(port=0, grpc_port=0, max_n=4)) as server:
        yield server


@pytest.fixture
def client(speaking: BackgroundServer) -> Iterator[Client]:
    with client_of(speaking) as client:
        yield client


def _status(call: Callable[[], object]) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code()


def wait_until_empty(server: BackgroundServer) -> None:
    deadline = time.monotonic() + 20
    while server.service.admission.num_live and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.service.admission.num_live == 0


def test_it_gives_what_the_engine_gives(client: Client, smollm2: LLM) -> None:
    sampling = SamplingParams(max_tokens=8, temperature=0.7, seed=3, n=2, logprobs=2, prompt_logprobs=2)
    (output,) = smollm2.generate([PROMPT], sampling)
    found = client.generate(
        {"max_new_tokens": 8, "temperature": 0.7, "sampling_seed": 3, "n": 2},
        text=PROMPT, return_logprob=True, logprob_start_len=0, top_logprobs_num=2, rid="mine",
    )  # fmt: skip
    assert found.rid == "mine"
    assert [sample.text for sample in found.samples] == [sample.text for sample in output.outputs]
    assert [list(sample.token_ids) for sample in found.samples] == [sample.token_ids for sample in output.outputs]
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (5, 16)
    assert not found.prompt_logprobs[0].HasField("logprob")
    for sample, expected in zip(found.samples, output.outputs, strict=True):
        assert sample.finish_reason.type == "length"
        assert expected.logprobs is not None
        for item, entry in zip(sample.logprobs, expected.logprobs, strict=True):
            assert item.logprob == entry[item.token_id].logprob
            assert len(item.top) == 2
    again = client.generate(
        {"max_new_tokens": 8, "temperature": 0.7, "sampling_seed": 3, "n": 2},
        input_ids=pb.TokenIds(ids=output.prompt_token_ids),
    )
    assert [sample.text for sample in again.samples] == [sample.text for sample in output.outputs]


def test_a_stream_says_everything_once(client: Client) -> None:
    params = {**GREEDY, "n": 2, "temperature": 0.7, "sampling_seed": 5}
    fields = {"text": PROMPT, "return_logprob": True, "logprob_start_len": 0}
    whole = client.generate(params, **fields)
    chunks = list(client.stream(params, **fields))
    assert len(chunks) > 8
    for sample in whole.samples:
        own = [chunk.delta for chunk in chunks if chunk.delta.index == sample.index]
        assert "".join(delta.text for delta in own) == sample.text
        assert [token_id for delta in own for token_id in delta.token_ids] == list(sample.token_ids)
        assert own[-1].finish_reason == sample.finish_reason
        assert list(own[-1].logprobs) == list(sample.logprobs)
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert list(chunks[-1].prompt_logprobs) == list(whole.prompt_logprobs)
    assert not any(chunk.HasField("usage") for chunk in chunks[:-1])


def test_constraints_and_stops(client: Client) -> None:
    found = client.generate({**GREEDY, "choices": ["yes", "no"]}, text="Is it? ")
    assert found.samples[0].text in ("yes", "no")
    assert found.samples[0].complete is True
    found = client.generate({**GREEDY, "stop": ["Paris"]}, text=PROMPT)
    assert (found.samples[0].finish_reason.type, found.samples[0].finish_reason.text) == ("stop", "Paris")
    plain = client.generate(text=PROMPT)
    banned = plain.samples[0].token_ids[0]
    assert client.generate({**GREEDY, "logit_bias": {banned: -100.0}}, text=PROMPT).samples[0].token_ids[0] != banned
    assert client.generate({"max_new_tokens": 0}, text=PROMPT).usage.completion_tokens == 0


@pytest.mark.parametrize(
    ("params", "fields", "named"),
    [
        (GREEDY, {}, "text or input_ids"),
        (GREEDY, {"text": ""}, "empty"),
        (GREEDY, {"input_ids": pb.TokenIds(ids=[10**9])}, "1000000000"),
        (GREEDY, {"input_ids": pb.TokenIds()}, "input_ids"),
        ({"temperature": -1.0}, {"text": PROMPT}, "temperature"),
        ({"temperature": float("nan")}, {"text": PROMPT}, "temperature"),
        ({"n": 5}, {"text": PROMPT}, "n=5"),
        ({"n": -1}, {"text": PROMPT}, "n=-1"),
        ({"regex": "("}, {"text": PROMPT}, "regex"),
        (GREEDY, {"text": PROMPT, "cache_salt": ""}, "cache_salt"),
        (GREEDY, {"text": PROMPT, "rid": ""}, "rid"),
        (GREEDY, {"text": PROMPT, "top_logprobs_num": -1}, "top_logprobs_num"),
    ],
)
def test_what_is_wrong_is_an_invalid_argument(
    client: Client, params: dict[str, Any], fields: dict[str, Any], named: str
) -> None:
    for call in (lambda: client.generate(params, **fields), lambda: list(client.stream(params, **fields))):
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert named in caught.value.details()


@pytest.mark.parametrize("name", ["Generate", "Abort", "ModelInfo", "Health", "GenerateStream"])
def test_bytes_that_are_no_message_are_an_invalid_argument(client: Client, name: str) -> None:
    make = client.channel.unary_stream if name == "GenerateStream" else client.channel.unary_unary
    with pytest.raises(grpc.RpcError) as caught:
        list(make(f"/ramet.v1.Ramet/{name}")(b"\xff\xff garbage", timeout=60))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "of ramet.proto" in caught.value.details()
    assert "Error" not in caught.value.details()


@pytest.mark.parametrize("params", [{"repetition_penalty": 1e-38}, {"regex": "(a?){2000}a{2000}"}])
def test_what_comes_to_light_while_it_runs_is_an_invalid_argument(client: Client, params: dict[str, Any]) -> None:
    asked = {"max_new_tokens": 3, **params}
    assert _status(lambda: client.generate(asked, text="the the the")) is grpc.StatusCode.INVALID_ARGUMENT
    assert _status(lambda: list(client.stream(asked, text="the the the"))) is grpc.StatusCode.INVALID_ARGUMENT


def test_keys_are_asked_for_and_keep_caches_apart(serve: Serve) -> None:
    server = serve(grpc_port=0, api_keys=("alice=alice-key", "bob=bobs-key"))
    text = "Once upon a time there was a cache that nobody could look into. " * 3
    with client_of(server) as nobody, client_of(server, x_api_key="wrong") as wrong:
        for stranger in (nobody, wrong):
            assert _status(partial(stranger.generate, text=text)) == grpc.StatusCode.UNAUTHENTICATED
            assert _status(lambda stream=stranger.stream: list(stream(text=text))) == grpc.StatusCode.UNAUTHENTICATED
            assert _status(partial(stranger.abort, abort_all=True)) == grpc.StatusCode.UNAUTHENTICATED
        assert nobody.call("Health", pb.HealthRequest(), pb.HealthResponse).is_ready
    with client_of(server, authorization="Bearer alice-key") as alice, client_of(server, x_api_key="bobs-key") as bob:
        alice.generate(text=text)
        assert alice.generate(text=text).usage.cached_tokens > 0
        assert bob.generate(text=text).usage.cached_tokens == 0
        info = alice.call("ModelInfo", pb.ModelInfoRequest(), pb.ModelInfoResponse)
        assert (info.model_path, info.vocab_size) == ("smollm2", 49152)


def test_leaving_a_call_and_its_deadline_free_everything(client: Client, speaking: BackgroundServer) -> None:
    stream = client.stream(LONG, text=PROMPT)
    next(stream)
    assert speaking.service.admission.num_live == 1
    stream.cancel()
    wait_until_empty(speaking)
    with pytest.raises(grpc.RpcError) as caught:
        list(client.stream(LONG, text=PROMPT, timeout=0.5))
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until_empty(speaking)
    request = pb.GenerateRequest(sampling_params=pb.SamplingParams(**LONG), text=PROMPT)
    with pytest.raises(grpc.RpcError) as caught:
        client.call("Generate", request, pb.GenerateResponse, timeout=0.5)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until_empty(speaking)
    assert client.generate(text=PROMPT).samples[0].text


def test_a_call_is_aborted_by_name(client: Client, speaking: BackgroundServer) -> None:
    stream = client.stream(LONG, text=PROMPT, rid="long")
    next(stream)
    with pytest.raises(grpc.RpcError) as caught:
        client.generate(text=PROMPT, rid="long")
    assert caught.value.code() == grpc.StatusCode.ALREADY_EXISTS
    assert client.abort(rid="other") == 0
    assert client.abort(rid="long") == 1
    assert list(stream)[-1].delta.finish_reason.type == "abort"
    with pytest.raises(grpc.RpcError):
        client.abort()
    wait_until_empty(speaking)


def test_a_full_server_says_when_to_come_again(serve: Serve) -> None:
    server = serve(grpc_port=0)
    server.service.admission.max_live = 1
    with client_of(server) as client:
        stream = client.stream(LONG, text=PROMPT)
        next(stream)
        with pytest.raises(grpc.RpcError) as caught:
            client.generate(text=PROMPT)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "retry-after" in dict(caught.value.trailing_metadata())
        stream.cancel()
        wait_until_empty(server)


def test_large_messages_are_refused(serve: Serve) -> None:
    server = serve(grpc_port=0, max_body_bytes=1000)
    with client_of(server) as client:
        with pytest.raises(grpc.RpcError) as caught:
            client.generate(text="x" * 2000)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_messages_count_as_bodies_do(serve: Serve) -> None:
    server = serve(grpc_port=0, max_total_body_bytes=200_000)
    with client_of(server) as client:
        body = server.service.bodies.open()
        body.add(100_000)  # of another request
        with pytest.raises(grpc.RpcError) as caught:
            client.generate(text="x" * 150_000)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "hold bodies of 200000 bytes" in caught.value.details()
        assert "retry-after" in dict(caught.value.trailing_metadata())
        body.free()
        for call in (lambda text: client.generate(text=text), lambda text: list(client.stream(text=text))):
            for _ in range(2):  # what is refused is not kept
                with pytest.raises(grpc.RpcError, match="exceeds the context limit"):
                    call("x" * 190_000)
        stream = client.stream(LONG, text=PROMPT)
        next(stream)
        stream.cancel()
        wait_until_empty(server)
    deadline = time.monotonic() + 20
    while server.service.bodies._num_bytes:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_large_message_is_read_by_a_worker(
    client: Client, monkeypatch: pytest.MonkeyPatch, is_streamed: bool
) -> None:
    names: list[str] = []

    def fields_of(request: Any) -> dict[str, Any]:
        names.append(threading.current_thread().name)
        return messages.fields_of(request)

    monkeypatch.setattr(servicer, "fields_of", fields_of)
    for num_ids in (3, 200_000):
        ids = pb.TokenIds(ids=[1] * num_ids)
        asked = partial(client.stream, input_ids=ids) if is_streamed else partial(client.generate, input_ids=ids)
        with suppress(grpc.RpcError):  # more than the context
            list(asked()) if is_streamed else asked()
    assert [name.startswith("ramet-read") for name in names] == [False, True]


def test_a_port_that_is_taken_is_told(speaking: BackgroundServer, smollm2: LLM) -> None:
    config = ServerConfig(port=0, grpc_port=speaking.service.grpc_port)
    service = EngineService(smollm2, config)

    async def start() -> None:
        from ramet.runtime.server.grpc.server import start_grpc

        service.start()
        with pytest.raises(InvalidConfigError, match=f"cannot listen on 127.0.0.1:{config.grpc_port}"):
            await start_grpc(service)

    import asyncio

    asyncio.run(start())
    service.close()


def test_without_its_packages_grpc_is_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramet.runtime.server.listener.find_spec", lambda name: None)
    with pytest.raises(InvalidConfigError, match=r"pip install '\.\[grpc\]'"):
        bound_socket(ServerConfig(port=0, grpc_port=0))


def test_a_taken_port_is_said_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidConfigError, match=f"grpc_port={port} .*in use.*another port"):
            bound_socket(ServerConfig(port=0, grpc_port=port))


def test_one_that_is_taken_later_ends_the_server_with_the_reason(smollm2: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr("ramet.runtime.server.listener._check_grpc", lambda config: None)
        server = BackgroundServer(smollm2, ServerConfig(port=0, grpc_port=taken.getsockname()[1]))
        with pytest.raises(InvalidConfigError, match="gRPC cannot listen"):
            server.start()


def test_the_generated_code_is_of_this_proto(tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc", reason="the compiler of protocol buffers is not installed")
    import ramet

    root = Path(ramet.__file__).parent.parent
    proto = "ramet/runtime/server/grpc/ramet.proto"
    assert protoc.main(["protoc", f"-I{root}", f"--descriptor_set_out={tmp_path / 'set'}", str(root / proto)]) == 0
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

    (compiled,) = FileDescriptorSet.FromString((tmp_path / "set").read_bytes()).file
    checked_in = FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(checked_in)
    assert _without_json_names(compiled) == _without_json_names(checked_in)


def _without_json_names(file: Any) -> Any:
    """They follow from the names, and only one of the two forms spells them."""
    pending = list(file.message_type)
    while pending:
        message = pending.pop()
        pending += message.nested_type
        for field in message.field:
            field.ClearField("json_name")
    return file
