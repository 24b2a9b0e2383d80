"""Can a client tell from the time to the first token what others have asked? See `benchmarks.server --isolation`."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from .server_client import completion, prompts_of, send
from .server_process import Prompt, ServerProcess

ISOLATION_PROMPT_LEN = 600
VICTIM, SPY = "victim-key", "spying-key"


@dataclass(frozen=True)
class Guess:
    """What a client sees who asks for prompts that the victim has asked for before, and for new ones.

    Attributes:
        known_s, new_s: seconds to the first token.
        num_cached: the most tokens that a known prompt is told to have had in the cache.
    """

    known_s: list[float]
    new_s: list[float]
    num_cached: int

    @property
    def auc(self) -> float:
        """How often a known prompt is answered faster than a new one: 0.5 tells nothing, 1 everything."""
        faster = sum((new > known) + (new == known) / 2 for known in self.known_s for new in self.new_s)
        return faster / (len(self.known_s) * len(self.new_s))


def ask(server: ServerProcess, prompt: Prompt, key: str, salt: str | None) -> tuple[float, int]:
    """Seconds to the first token, and the tokens said to be cached."""
    client = asyncio.run(send(server.address, completion(prompt, 1, key=key, cache_salt=salt)))
    assert client.status == 200, client.answer
    return client.first_at - client.began_at, client.num_cached


def guess(server: ServerProcess, name: str, num_probes: int, key: str, salt: str | None) -> Guess:
    """Half of the probes are of known prompts, in random order. No prompt is asked for twice by the spy."""
    source = random.Random(name)
    times: dict[bool, list[float]] = {True: [], False: []}
    num_cached = 0
    for idx, prompt in enumerate(prompts_of(name, num_probes, ISOLATION_PROMPT_LEN)):
        is_known = source.random() < 0.5
        victims = prompt if is_known else prompts_of(f"{name} other {idx}", 1, ISOLATION_PROMPT_LEN)[0]
        ask(server, victims, VICTIM, None)  # so that the server has done the same before each probe
        seconds, cached = ask(server, prompt, key, salt)
        times[is_known].append(seconds)
        num_cached = max(num_cached, cached)
    return Guess(times[True], times[False], num_cached)


def report_isolation(num_probes: int, num_threads: int | None) -> str:
    options = {} if num_threads is None else {"num_threads": num_threads}
    with ServerProcess(api_keys=[VICTIM, SPY], **options) as server:
        guess(server, "warm up", 10, SPY, None)
        found = {
            "another key": guess(server, "key", num_probes, SPY, None),
            "the same key, another salt": guess(server, "salt", num_probes, VICTIM, "another"),
            "the same key": guess(server, "same", num_probes, VICTIM, None),
        }
    rows = ["| asked by | probes | AUC | cached tokens of 600, at most |", "|---|---|---|---|"]
    rows += [f"| {name} | {num_probes} | {of.auc:.3f} | {of.num_cached} |" for name, of in found.items()]
    return "\n".join(rows)
