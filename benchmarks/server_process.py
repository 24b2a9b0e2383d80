"""The server's process of `benchmarks.server`, which also runs requests without HTTP, and how it is spoken to."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from ramet import LLM, SamplingParams
from ramet.runtime.request import Request
from ramet.runtime.server.config import ServerConfig
from ramet.runtime.server.listener import BackgroundServer
from ramet.runtime.server.memory import settle

Prompt = list[int]


def serve(options: dict[str, Any]) -> None:
    """Obey the lines of the standard input, each with a line of the standard output."""
    config = ServerConfig(
        port=0,
        max_waiting_sequences=options.pop("max_waiting_sequences", 512),
        api_keys=tuple(options.pop("api_keys", ())),
    )
    with LLM("smollm2", show_progress=False, **options) as llm, BackgroundServer(llm, config) as server:
        settle()  # as `ramet serve` does
        print(json.dumps({"url": server.url}), flush=True)
        for line in sys.stdin:
            command = json.loads(line)
            answer = COMMANDS[command.pop("do")](llm, **command)
            print(json.dumps(answer), flush=True)


def run_in_process(llm: LLM, prompts: list[Prompt], max_tokens: int) -> dict[str, float]:
    began = time.perf_counter()
    handles = llm.submit_requests([_request(llm, prompt, max_tokens) for prompt in prompts])
    num_tokens = sum(len(handle.result().outputs[0].token_ids) for handle in handles)
    seconds = time.perf_counter() - began
    assert num_tokens == max_tokens * len(prompts)
    return {"seconds": seconds}


def first_token_in_process(llm: LLM, prompt: Prompt) -> dict[str, float]:
    began = time.perf_counter()
    (handle,) = llm.submit_requests([_request(llm, prompt, 4)])
    chunks = handle.stream()
    next(chunks)
    seconds = time.perf_counter() - began
    for _ in chunks:
        pass
    return {"seconds": seconds}


def usage(llm: LLM) -> dict[str, float]:
    times = resource.getrusage(resource.RUSAGE_SELF)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {"cpu": times.ru_utime + times.ru_stime, "rss": pages * resource.getpagesize()}


def forget(llm: LLM) -> dict[str, float]:
    return {"num_blocks": llm.reset_prefix_cache()}


COMMANDS: dict[str, Callable[..., dict[str, float]]] = {
    "run": run_in_process,
    "first": first_token_in_process,
    "usage": usage,
    "forget": forget,
}


def _request(llm: LLM, prompt: Prompt, max_tokens: int) -> Request:
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    return Request(request_id=llm.new_request_id(), prompt_token_ids=tuple(prompt), sampling_params=params)


class ServerProcess:
    """The other process, as this one speaks to it. A context manager."""

    def __init__(self, **options: Any) -> None:
        command = [sys.executable, "-m", "benchmarks.server_process", json.dumps(options)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        host, port = self._answer()["url"].removeprefix("http://").split(":")
        self.address = (host, int(port))

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the server's process has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate(timeout=60)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
