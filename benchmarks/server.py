"""What does HTTP cost over the engine in the same process, and what does a server do that is asked for too much?

    python -m benchmarks.server [--batch 32] [--tokens 128] [--rounds 6] [--threads N] [--output FILE]
    python -m benchmarks.server --overload 60
    python -m benchmarks.server --isolation 300

Two processes: the server, and a client that does as little as a client can. Runs alternate, so read the ratios:

- *HTTP*: streams of `/v1/completions`, all at once, each read to its end.
- *in process*: the same requests by `LLM.submit_requests` in the server's process, which then only waits; the client
  has nothing to do. The difference is all that HTTP costs, the work of the client included.
- *beside a client*: the same, while the client burns as much time of the processors as it did for HTTP. What is left
  is the server's own share; on few cores the client, which in real life is elsewhere, takes them from the engine.

"CPU ms a token" is what the server's process spent, kernels included. The time to the first token is of single requests
with prompts that are not cached.

`--overload` offers ten times what the server can do, with a connection for each request, and reports what became of
them. `--isolation` has a client guess from the time to the first token whether another has asked for a prompt before.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .server_client import completion, prompts_of, send, send_all
from .server_isolation import report_isolation
from .server_overload import report_overload
from .server_process import Prompt, ServerProcess


@dataclass(frozen=True)
class Run:
    """Seconds of one run: on the clock, of the server's processors, and of the client's."""

    wall: float
    server_cpu: float
    client_cpu: float


def timed(server: ServerProcess, work: Callable[[], None]) -> Run:
    server.ask("forget")
    before, began, client_before = server.ask("usage")["cpu"], time.perf_counter(), time.process_time()
    work()
    wall, client_cpu = time.perf_counter() - began, time.process_time() - client_before
    return Run(wall, server.ask("usage")["cpu"] - before, client_cpu)


def over_http(server: ServerProcess, prompts: list[Prompt], max_tokens: int) -> None:
    clients = asyncio.run(send_all(server.address, [completion(prompt, max_tokens) for prompt in prompts]))
    for client in clients:
        assert client.status == 200, client.answer
        assert b'"completion_tokens":%d,' % max_tokens in client.answer, client.answer[-500:]
        assert b"[DONE]" in client.answer, client.answer[-500:]


def beside_a_client(work: Callable[[], None], share: float) -> None:
    """Run `work` while a thread of this process burns a share of a processor."""
    is_over = threading.Event()

    def burn() -> None:
        while not is_over.is_set():
            until = time.perf_counter() + 0.002 * share
            while time.perf_counter() < until:
                pass
            time.sleep(0.002 * (1 - share))

    burning = threading.Thread(target=burn)
    burning.start()
    work()
    is_over.set()
    burning.join()


def measure_throughput(server: ServerProcess, batch: int, max_tokens: int, num_rounds: int) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {"HTTP": [], "in process": [], "beside a client": []}
    for idx in range(num_rounds + 1):
        prompts = prompts_of(idx, batch)
        http = timed(server, lambda prompts=prompts: over_http(server, prompts, max_tokens))  # type: ignore[misc]

        def in_process(prompts: list[Prompt] = prompts) -> None:
            server.ask("run", prompts=prompts, max_tokens=max_tokens)

        alone = timed(server, in_process)
        share = min(http.client_cpu / http.wall, 0.95)
        beside = timed(server, lambda share=share, run=in_process: beside_a_client(run, share))  # type: ignore[misc]
        if idx:  # the first is for warming up
            for name, run in zip(runs, (http, alone, beside), strict=True):
                runs[name].append(run)
    return runs


def measure_first_tokens(server: ServerProcess, count: int) -> tuple[list[float], list[float]]:
    """Seconds over HTTP, and in process."""
    http, alone = [], []
    for idx in range(count):
        one, other = prompts_of(f"first {idx}", 2)
        client = asyncio.run(send(server.address, completion(one, 4)))
        http.append(client.first_at - client.began_at)
        alone.append(server.ask("first", prompt=other)["seconds"])
    return http, alone


def report_overhead(args: argparse.Namespace) -> str:
    options = {} if args.threads is None else {"num_threads": args.threads}
    with ServerProcess(**options) as server:
        runs = measure_throughput(server, args.batch, args.tokens, args.rounds)
        http_first, alone_first = measure_first_tokens(server, 10 * args.rounds)
    num_tokens = args.batch * args.tokens
    rows = ["| | tokens/s | of in process | CPU ms a token |", "|---|---|---|---|"]
    for name, of_name in runs.items():
        wall = statistics.median(run.wall for run in of_name)
        pairs = zip(of_name, runs["in process"], strict=True)
        ratio = statistics.median(alone.wall / run.wall for run, alone in pairs)
        cpu = statistics.median(run.server_cpu for run in of_name) / num_tokens
        rows.append(f"| {name} | {num_tokens / wall:.0f} | {ratio:.3f} | {1000 * cpu:.3f} |")
    client = statistics.median(run.client_cpu for run in runs["HTTP"]) / num_tokens
    ms = [1000 * statistics.median(times) for times in (http_first, alone_first)]
    pairs = zip(runs["HTTP"], runs["beside a client"], strict=True)
    own = statistics.median(beside.wall / http.wall for http, beside in pairs)
    rows += [
        "",
        f"{args.batch} streams of {args.tokens} tokens, {args.rounds} rounds, "
        f"{args.threads or 'all'} threads, {platform.machine()}, Python {platform.python_version()}. "
        f"HTTP has {own:.3f} of the throughput beside a client, which spent {1000 * client:.3f} ms a token. "
        f"First token: {ms[0]:.1f} ms over HTTP, {ms[1]:.1f} ms in process, {ms[0] - ms[1]:.1f} ms more.",
    ]
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--batch", type=int, default=32, help="streams at once")
    parser.add_argument("--tokens", type=int, default=128, help="generated by each")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, help="of the kernels (default: the cores available)")
    parser.add_argument("--overload", type=float, metavar="SECONDS", help="ask for ten times too much, so long")
    parser.add_argument("--isolation", type=int, metavar="PROBES", help="guess from the time what others have asked")
    parser.add_argument("--output", type=Path, help="write the report there too")
    args = parser.parse_args()
    if args.overload is not None:
        text = report_overload(args.overload, args.threads)
    elif args.isolation is not None:
        text = report_isolation(args.isolation, args.threads)
    else:
        text = report_overhead(args)
    print(text)
    if args.output is not None:
        args.output.write_text(f"# The server\n\n`python -m benchmarks.server`\n\n{text}\n")


if __name__ == "__main__":
    main()
