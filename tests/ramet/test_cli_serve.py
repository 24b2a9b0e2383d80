"""`ramet serve`: its options, and a real process from its start to its end."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ramet.cli import main as cli
from ramet.cli.serve import server_config
from ramet.runtime.config import EngineConfig
from ramet.runtime.server.config import ServerConfig

RAMET = [sys.executable, "-m", "ramet"]


def parsed(*arguments: str) -> ServerConfig:
    return server_config(cli.build_parser().parse_args(["serve", *arguments]))


def test_without_options_the_defaults_of_the_server_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAMET_API_KEY", raising=False)
    assert parsed() == ServerConfig()


def test_every_option_of_the_server_has_a_flag() -> None:
    arguments: dict[str, tuple[str, ...]] = {
        "host": ("--host", "::1"),
        "port": ("--port", "1"),
        "api_keys": ("--api-key", "a-secret", "--api-key", "bob=b-secret"),
        "admin_api_keys": ("--admin-api-key", "c-secret"),
        "served_model_names": ("--served-model-name", "x,y", "--served-model-name", "z"),
        "max_body_bytes": ("--max-body-size", "1M"),
        "max_header_bytes": ("--max-header-size", "2K"),
        "max_total_body_bytes": ("--max-total-body-size", "3M"),
        "max_stored_response_bytes": ("--max-stored-response-size", "4M"),
        "max_n": ("--max-n", "2"),
        "max_prompts": ("--max-prompts", "3"),
        "max_waiting_sequences": ("--max-waiting-sequences", "0"),
        "max_prompt_chars": ("--max-prompt-chars", "4"),
        "max_connections": ("--max-connections", "5"),
        "request_timeout_s": ("--request-timeout", "0"),
        "header_timeout_s": ("--header-timeout", "7"),
        "body_timeout_s": ("--body-timeout", "8"),
        "write_timeout_s": ("--write-timeout", "9"),
        "drain_timeout_s": ("--drain-timeout", "0"),
        "step_timeout_s": ("--step-timeout", "11"),
        "log_requests": ("--log-requests",),
        "allow_request_template": ("--allow-request-template",),
        "allowed_origins": ("--allowed-origins", "http://a"),
        "grpc_port": ("--grpc-port", "12"),
    }
    assert set(arguments) == {field.name for field in dataclasses.fields(ServerConfig)}
    config = parsed(*(part for parts in arguments.values() for part in parts))
    unchanged = {name for name in arguments if getattr(config, name) == getattr(ServerConfig(), name)}
    assert unchanged == set()
    assert config.api_keys == ("a-secret", "bob=b-secret")
    assert (config.max_body_bytes, config.request_timeout_s) == (1 << 20, None)
    assert config.served_model_names == ("x", "y", "z")


@pytest.mark.parametrize("option", ["--served-model-name", "--allowed-origins"])
def test_no_option_takes_the_model_for_one_of_its_values(option: str) -> None:
    args = cli.build_parser().parse_args(["serve", option, "http://a,http://b", "./fake.gguf"])
    assert args.served_model == "./fake.gguf"
    config = server_config(args)
    assert ("http://a", "http://b") in (config.served_model_names, config.allowed_origins)


def test_keys_come_from_the_environment_unless_some_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMET_API_KEY", "key-of-one, bob=two-secret")
    assert parsed().api_keys == ("key-of-one", "bob=two-secret")
    assert parsed("--api-key", "key-of-three").api_keys == ("key-of-three",)


def test_a_short_key_in_the_environment_is_named_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAMET_API_KEY", "long-enough,short")
    assert cli.main(["serve"]) == 2
    assert "environment variable RAMET_API_KEY: key-2 has 5 characters" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "70000"], "--port=70000 must be a port from 0 to 65535"),
        (["--drain-timeout", "-1"], "--drain-timeout=-1.0 must be a number of seconds, 0 or more"),
        (["--request-timeout", "-1"], "--request-timeout=-1.0 must be a number of seconds, 0 or more"),
        (["--step-timeout", "nan"], "--step-timeout=nan must be a number of seconds above 0"),
        (["--served-model-name", ""], "--served-model-name has an empty text"),
        (["--api-key", ""], "--api-key has an empty text"),
        (["--allowed-origins", "foo"], "--allowed-origins='foo' must be scheme://host"),
        (
            ["--host", "192.0.2.1"],
            "--port=0 at --host='192.0.2.1' cannot be listened on (Cannot assign requested address)",
        ),
        (["--cache-dir", "/dev/null/x"], "--cache-dir='/dev/null/x' cannot be used: "),
        (
            ["--cache-dir", "x", "--no-prefix-caching"],
            "--cache-dir keeps cached prefixes, and --no-prefix-caching keeps",
        ),
        (["--api-key", "a=12345678", "--api-key", "a=87654321"], "two API keys are called 'a'"),
        (["--api-key", "hunter=2"], "--api-key: key-1 has 1 character after its first"),
        (["--api-key", "short"], "--api-key: key-1 has 5 characters, and a KEY, alone or in NAME=KEY, must have"),
        (
            ["--admin-api-key", "te am=SECRETKEY123"],
            "--admin-api-key: what admin-1 has before its first '=' is no name",
        ),
        (["a.gguf", "--model", "b.gguf"], "two models are named, 'a.gguf' and 'b.gguf'"),
    ],
)
def test_what_is_impossible_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object, **__: object) -> None:
        pytest.fail("a model is loaded for nothing")

    monkeypatch.setattr("ramet.runtime.llm.build_runner", load)
    assert cli.main(["serve", "--port", "0", *arguments]) == 2
    error = capsys.readouterr().err.removeprefix("ramet: loading smollm2\n")
    assert message in error
    assert error.count("\n") == 1
    assert "Errno" not in error.partition("cannot be used")[0]


def test_a_port_in_use_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert cli.main(["serve", "--port", str(taken.getsockname()[1])]) == 2
    error = capsys.readouterr().err
    assert "in use" in error
    assert error.count("\n") == 1


def test_a_port_in_use_of_grpc_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("grpc", reason="gRPC is an extra")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert cli.main(["serve", "--port", "0", "--grpc-port", str(taken.getsockname()[1])]) == 2
    error = capsys.readouterr().err
    assert "--grpc-port=" in error
    assert "in use" in error
    assert error.count("\n") == 1


def test_missing_packages_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in [name for name in sys.modules if name.startswith("ramet.runtime.server.")]:
        if not name.endswith(".config"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert cli.main(["serve"]) == 2
    error = capsys.readouterr().err
    assert "pip install '.[server]'" in error
    assert error.count("\n") == 1


@contextmanager
def serving(
    *arguments: str, num_lines: int = 4, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """The process, where it listens, and what it said when it was ready."""
    command = [*RAMET, "serve", "--port", "0", *arguments]
    env = {name: value for name, value in os.environ.items() if name != "RAMET_API_KEY"} | environment
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stdout is not None
            said = "".join(process.stdout.readline() for _ in range(num_lines))
            found = re.search(r" at (http://\S+)", said)
            if found is None:
                pytest.fail(f"it did not start: {process.communicate(timeout=30)}")
            yield process, found[1], said
        finally:
            process.kill()


@pytest.mark.model
def test_it_serves_until_sigterm_and_ends_with_0() -> None:
    with serving("--log-requests", RAMET_API_KEY="alice=secret-key") as (process, url, said):
        headers = {"authorization": "Bearer secret-key"}
        assert httpx2.get(f"{url}/ready").status_code == 200
        assert httpx2.get(f"{url}/v1/models").status_code == 401
        assert httpx2.get(f"{url}/v1/models?prompt=private", headers=headers).status_code == 200
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "context 8,192 tokens" in said
    assert "1 API key known" in said
    assert re.search(r"INFO req-\w+ alice GET /v1/models 200 ", errors)
    lines = errors.splitlines()
    assert lines[0] == "ramet: loading smollm2"
    assert lines.index("ramet: stopping") < lines.index("ramet: stopped") == len(lines) - 1
    for private in ("secret", "private", "Traceback"):
        assert private not in said + output + errors


@pytest.mark.model
def test_it_says_where_grpc_is_and_what_was_kept(tmp_path: Path) -> None:
    for is_found in (False, True):
        with serving("--grpc-port", "0", "--cache-dir", str(tmp_path), num_lines=6) as (process, url, said):
            assert re.search(r"gRPC at 127\.0\.0\.1:[1-9]", said)
            found = re.search(rf"kept in {re.escape(str(tmp_path))}, where ([\d,]+) tokens were found", said)
            assert found is not None
            assert (found[1] != "0") == is_found
            httpx2.post(f"{url}/v1/completions", json={"prompt": "One two three " * 20, "max_tokens": 1})
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


@pytest.mark.model
def test_after_ctrl_c_a_second_signal_does_not_wait() -> None:
    with serving("--drain-timeout", "600") as (process, url, _):
        body = {"prompt": "Once", "max_tokens": 8000, "stream": True, "ignore_eos": True}
        with httpx2.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            assert next(lines)
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
            assert "shutting down" in "".join(lines)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1, errors
    said = errors.splitlines()
    assert "ramet: stopping: waiting up to 600 s for 1 request; press Ctrl-C again to stop at once" in said
    assert "ramet: stopping at once: 1 request cut off" in said
    assert "1 request cut off by the end of the server" in errors
    assert said[-1] == "ramet: stopped"
    assert "Traceback" not in errors


def test_whoever_listens_everywhere_without_keys_is_warned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ramet.cli import serve

    class Loaded:
        model_name, max_context_len, kernels_name, config = "m", 10, "cpu", EngineConfig()

        @staticmethod
        def cache_snapshot() -> Any:
            return type("Snapshot", (), {"num_blocks": 2, "block_size": 16})

    loaded: Any = Loaded()
    for options, is_warned, is_everywhere in [
        ({"host": "0.0.0.0"}, True, True),
        ({"host": "::"}, True, True),
        ({"host": "0.0.0.0", "api_keys": ("key-of-one",)}, False, True),
        ({"host": "::1"}, False, False),
        ({"host": "localhost"}, False, False),
    ]:
        serve._announce(loaded, ServerConfig(**options), "http://x", None)
        printed = capsys.readouterr()
        assert ("everybody who reaches" in printed.err) == is_warned
        first = printed.out.splitlines()[0]
        assert first.startswith("ramet serves m at http://x")
        assert (f"and every address of this machine (--host {options['host']})" in first) == is_everywhere


LOADS_FOR_EVER = """
import sys, time
from ramet.cli import main, serve

def load(args):
    print("loading", flush=True)
    time.sleep(600)

serve._load = load
sys.exit(main.main(["serve", "--port", sys.argv[1]]))
"""


@pytest.mark.parametrize(
    ("number", "ended"),
    [(signal.SIGTERM, (143, "\nramet: terminated\n")), (signal.SIGINT, (130, "\nramet: interrupted\n"))],
)
def test_a_signal_while_the_model_is_loaded_turns_early_clients_away(number: int, ended: tuple[int, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-c", LOADS_FOR_EVER, str(port)]
    with (
        ThreadPoolExecutor(3) as clients,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        url = f"http://127.0.0.1:{port}"
        silent = socket.create_connection(("127.0.0.1", port))
        early = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
        for client, path in zip(early, ("/v1/completions", "/v1/messages"), strict=True):
            client.sendall(f"POST {path} HTTP/1.1\r\nhost: {url}\r\ncontent-length: 100000\r\n\r\n".encode())
            client.sendall(b" " * 100_000)
        process.send_signal(number)
        answers = list(clients.map(_all_of, early))
        silent.close()
        assert (process.wait(60), process.communicate()[1]) == ended
    for answer, told in zip(answers, (b'"code":"shutting_down"', b'"type":"overloaded_error"'), strict=True):
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert told in answer


def _all_of(client: socket.socket) -> bytes:
    with client:
        return b"".join(iter(lambda: client.recv(65536), b""))
