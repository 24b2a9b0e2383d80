"""What does it bring that the engine knows which program a request belongs to, and what the program does next?

    python -m benchmarks.programs [--workloads tool-agents ...] [--scale 1.0] [--real 3]

The product's engine, scheduler and cache in virtual time, over a cost model in place of a model (ramet/figures), with
a pool that holds a share of what the programs would like to keep. Each workload runs under pairs of schedule policy and
eviction policy; what is told of the programs is what the language tells by itself (a fork, a join, an end), and in one
workload what the program says with `expect_call`. Rows are ratios to the default (lpm, lru) in the same run:

    tool-agents   agents of four kinds: eight thoughts with a tool that takes seconds after each
    workflow      rounds through eight agents of its own, each with a long role of its own (KVFlow's case)
    fork-join     three times: six branches of two calls each, then one call over what they found
    mixed         eleven short programs to each one that asks sixteen questions at a time (Autellix's case)
    chats         chats whose users think for a long time, among single questions that share a long prompt

With --real the bundled model runs panels of agents in real time, in a pool for two thirds of their roles.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ramet import LLM, LocalBackend, ProgramState, function, gen
from ramet.figures.cost_model import A100_13B
from ramet.figures.lengths import poisson_times
from ramet.figures.simulation import VOCAB_SIZE, Arrival, RequestRecord, Simulation, simulated_request
from ramet.runtime.programs import Programs
from ramet.runtime.request_program import Path, RequestProgram

Tokens = list[int]
Hint = Callable[[Programs, str], None]
"""Tells the engine something of the run with that id."""

DEFAULT_LABEL = "lpm, lru"
POLICIES = {
    "fcfs, lru": ("fcfs", "lru", False),
    DEFAULT_LABEL: ("lpm", "lru", False),
    "lpm, lru, keep open": ("lpm", "lru", True),
    "program, lru": ("program", "lru", False),
    "lpm, steps": ("lpm", "steps-to-execution", False),
    "program, steps": ("program", "steps-to-execution", False),
}


@dataclass(frozen=True, slots=True)
class Ask:
    """One call."""

    prompt: Tokens
    num_output_tokens: int
    branch: Path = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """Calls made at one time, some seconds after what was before, and what is told just before that pause."""

    calls: list[Ask]
    pause_s: float = 0.0
    hints: tuple[Hint, ...] = ()


NUM_AGENTS, ROLE_LEN = 8, 1024
"""Of a workflow."""

Body = Generator[Turn, list[Tokens], None]


@dataclass(frozen=True, slots=True)
class Workload:
    """Programs and when they start.

    Attributes:
        num_blocks: of the pool.
        num_seqs: most sequences in a step.
    """

    programs: list[Body]
    start_times_s: list[float]
    num_blocks: int
    num_seqs: int


def draw(rng: random.Random, num_tokens: int) -> Tokens:
    return rng.choices(range(VOCAB_SIZE - 1), k=num_tokens)


def told_fork(path: Path, num_branches: int, first_idx: int = 0) -> Hint:
    return lambda programs, run_id: programs.fork(run_id, path, first_idx, num_branches)


def told_join(path: Path, joined: Sequence[Path], num_calls: int) -> Hint:
    return lambda programs, run_id: programs.join(run_id, path, joined, num_calls)


def told_expect(path: Path, num_calls: int | None) -> Hint:
    return lambda programs, run_id: programs.expect(run_id, path, num_calls)


# -- the programs ------------------------------------------------------------------------------------------------------


def tool_agents(scale: float) -> Workload:
    rng = random.Random(1)
    kinds = [draw(rng, 512) for _ in range(4)]
    num = max(8, int(96 * scale))
    programs = [_tool_agent(random.Random(rng.random()), rng.choice(kinds)) for _ in range(num)]
    return Workload(programs, list(itertools.islice(poisson_times(3.0, rng), num)), num_blocks=1200, num_seqs=16)


def _tool_agent(rng: random.Random, instructions: Tokens) -> Body:
    context = instructions + draw(rng, rng.randint(32, 96))
    pause_s = 0.0
    for _ in range(8):
        (thought,) = yield Turn([Ask(context, rng.randint(16, 64))], pause_s)
        context = context + thought + draw(rng, rng.randint(32, 160))
        pause_s = rng.expovariate(1 / 4.0)


def workflow(scale: float) -> Workload:
    rng = random.Random(2)
    num = max(2, int(12 * scale))
    programs = [_workflow(random.Random(rng.random())) for _ in range(num)]
    num_blocks = num * NUM_AGENTS * ROLE_LEN // 16 * 2 // 3
    return Workload(programs, [0.5 * idx for idx in range(num)], num_blocks, num_seqs=8)


def _workflow(rng: random.Random) -> Body:
    """The state of each agent is its role; what it is asked is not kept. Each says when its turn comes again."""
    roles = [draw(rng, ROLE_LEN) for _ in range(NUM_AGENTS)]
    message = draw(rng, 32)
    hints: tuple[Hint, ...] = (told_fork((), NUM_AGENTS),)
    for _ in range(6):
        for idx, role in enumerate(roles):
            (message,) = yield Turn([Ask(role + message, 24, (idx,))], 0.05, hints)
            hints = (told_expect((idx,), NUM_AGENTS - 1),)


def fork_join(scale: float) -> Workload:
    rng = random.Random(3)
    num = max(4, int(40 * scale))
    instructions = draw(rng, 256)
    programs = [_fork_join(random.Random(rng.random()), instructions) for _ in range(num)]
    return Workload(programs, list(itertools.islice(poisson_times(2.0, rng), num)), num_blocks=800, num_seqs=16)


def _fork_join(rng: random.Random, instructions: Tokens, num_branches: int = 6) -> Body:
    context = instructions + draw(rng, 512)
    for round_idx in range(3):
        first = round_idx * num_branches
        paths: list[Path] = [(first + idx,) for idx in range(num_branches)]
        texts = [context + draw(rng, 24) for _ in paths]
        hints: tuple[Hint, ...] = (told_fork((), num_branches, first), told_join((), paths, 2))
        for _ in range(2):
            found = yield Turn(
                [Ask(text, rng.randint(16, 80), path) for text, path in zip(texts, paths, strict=True)], 0, hints
            )
            texts = [text + reply + draw(rng, 16) for text, reply in zip(texts, found, strict=True)]
            hints = ()
        context = context + [token for reply in found for token in reply[:16]]
        (verdict,) = yield Turn([Ask(context, 48)])
        context = context + verdict


def mixed(scale: float) -> Workload:
    rng = random.Random(4)
    num = max(10, int(300 * scale))
    programs = [
        _searcher(random.Random(rng.random())) if idx % 12 == 0 else _asker(random.Random(rng.random()))
        for idx in range(num)
    ]
    return Workload(programs, list(itertools.islice(poisson_times(2.0, rng), num)), num_blocks=1600, num_seqs=8)


def _asker(rng: random.Random) -> Body:
    context = draw(rng, rng.randint(64, 256))
    for _ in range(rng.randint(1, 3)):
        (reply,) = yield Turn([Ask(context, rng.randint(16, 64))])
        context = context + reply + draw(rng, 32)


def _searcher(rng: random.Random, num_branches: int = 16) -> Body:
    context = draw(rng, 256)
    (plan,) = yield Turn([Ask(context, 48)])
    context = context + plan
    for round_idx in range(3):
        paths: list[Path] = [(round_idx * num_branches + idx,) for idx in range(num_branches)]
        prompts = [context + draw(rng, 32) for _ in paths]
        hints: tuple[Hint, ...] = (told_fork((), num_branches, paths[0][0]), told_join((), paths, 1))
        calls = [Ask(prompt, rng.randint(32, 96), path) for prompt, path in zip(prompts, paths, strict=True)]
        found = yield Turn(calls, 0.0, hints)
        context = context + max(found, key=len)


def chats(scale: float) -> Workload:
    rng = random.Random(5)
    shared = [draw(rng, 768) for _ in range(6)]
    num = max(20, int(240 * scale))
    programs = [
        _chat(random.Random(rng.random()))
        if idx % 4 == 0
        else _question(random.Random(rng.random()), rng.choice(shared))
        for idx in range(num)
    ]
    return Workload(programs, list(itertools.islice(poisson_times(8.0, rng), num)), num_blocks=700, num_seqs=16)


def _chat(rng: random.Random) -> Body:
    context = draw(rng, 64)
    pause_s = 0.0
    for _ in range(6):
        context = context + draw(rng, rng.randint(32, 96))
        (reply,) = yield Turn([Ask(context, rng.randint(32, 96))], pause_s)
        context = context + reply
        pause_s = rng.expovariate(1 / 10.0)


def _question(rng: random.Random, shared: Tokens) -> Body:
    yield Turn([Ask(shared + draw(rng, rng.randint(16, 64)), rng.randint(8, 32))])


WORKLOADS: dict[str, Callable[[float], Workload]] = {
    "tool-agents": tool_agents,
    "workflow": workflow,
    "fork-join": fork_join,
    "mixed": mixed,
    "chats": chats,
}


# -- running them ------------------------------------------------------------------------------------------------------


@dataclass
class Group:
    """Calls that a program waits for together."""

    run_id: str
    body: Body
    outputs: list[Tokens]
    num_left: int


@dataclass
class Driver:
    """Runs programs in a simulation and notes when each started and ended."""

    simulation: Simulation
    starts_s: dict[str, float] = field(default_factory=dict)
    ends_s: dict[str, float] = field(default_factory=dict)
    pauses_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    places: dict[str, tuple[Group, int]] = field(default_factory=dict)

    def run(self, workload: Workload) -> None:
        arrivals: list[Arrival] = []
        for idx, (body, time_s) in enumerate(zip(workload.programs, workload.start_times_s, strict=True)):
            self.starts_s[str(idx)] = time_s
            arrivals += self._submit(str(idx), body, next(body), time_s)
        self.simulation.run(arrivals, on_output=self._go_on)

    def _submit(self, run_id: str, body: Body, turn: Turn, time_s: float) -> Iterator[Arrival]:
        for hint in turn.hints:
            hint(self.simulation.engine.scheduler.programs, run_id)
        self.pauses_s[run_id] += turn.pause_s
        group = Group(run_id, body, [[] for _ in turn.calls], len(turn.calls))
        for idx, call in enumerate(turn.calls):
            request_id = f"call {len(self.places)}"
            self.places[request_id] = group, idx
            program = RequestProgram(run_id, branch=call.branch)
            yield Arrival(
                time_s + turn.pause_s,
                simulated_request(request_id, call.prompt, call.num_output_tokens, program=program),
            )

    def _go_on(self, record: RequestRecord) -> Iterable[Arrival]:
        group, idx = self.places[record.request.request_id]
        assert record.output is not None
        group.outputs[idx] = record.output.outputs[0].token_ids
        group.num_left -= 1
        if group.num_left:
            return ()
        now_s = self.simulation.now_s
        try:
            turn = group.body.send(group.outputs)
        except StopIteration:
            self.ends_s[group.run_id] = now_s
            self.simulation.engine.scheduler.programs.end(group.run_id)
            return ()
        return self._submit(group.run_id, group.body, turn, now_s)


@dataclass(frozen=True, slots=True)
class Result:
    """Of one workload under one pair of policies. Seconds are virtual; those that programs pause by themselves are left
    out of their latencies."""

    hit_rate: float
    mean_s: float
    p95_s: float
    makespan_s: float


def simulate(workload: Workload, policies: tuple[str, str, bool]) -> Result:
    schedule_policy, eviction_policy, keeps_open = policies
    simulation = Simulation(
        A100_13B,
        num_blocks=workload.num_blocks,
        max_num_seqs=workload.num_seqs,
        schedule_policy=schedule_policy,
        eviction_policy=eviction_policy,
        keep_open_programs=keeps_open,
    )
    driver = Driver(simulation)
    driver.run(workload)
    assert len(simulation.engine.scheduler.programs) == 0
    latencies = sorted(
        driver.ends_s[run_id] - start_s - driver.pauses_s[run_id] for run_id, start_s in driver.starts_s.items()
    )
    return Result(
        hit_rate=simulation.engine.metrics.cache_hit_rate,
        mean_s=statistics.mean(latencies),
        p95_s=latencies[int(0.95 * (len(latencies) - 1))],
        makespan_s=max(driver.ends_s.values()),
    )


def print_table(rows: Mapping[str, Mapping[str, Result]]) -> None:
    """The default as it is, and everything else as its ratio to the default: how many times as fast."""
    print("| workload | policies | hit rate | mean latency | p95 latency | makespan |")
    print("|---|---|---|---|---|---|")
    for name, results in rows.items():
        base = results[DEFAULT_LABEL]
        for label, result in results.items():
            cells = [f"{result.hit_rate:.1%}"]
            for value, usual in (
                (result.mean_s, base.mean_s),
                (result.p95_s, base.p95_s),
                (result.makespan_s, base.makespan_s),
            ):
                cells.append(f"{value:.2f} s" if label == DEFAULT_LABEL else f"{usual / value:.2f}x")
            print(f"| {name} | {label} | {' | '.join(cells)} |", flush=True)


# -- the bundled model -------------------------------------------------------------------------------------------------


@function
def panel(s: ProgramState, topic: str, roles: list[str], num_rounds: int) -> None:
    """Agents with a role each that speak in turn, and say how many others come before them again."""
    members = s.fork(len(roles))
    for member, role in zip(members, roles, strict=True):
        member += role
    said = topic
    for _ in range(num_rounds):
        for member in members:
            member += f"\n{said}\n" + gen("said", max_tokens=8, temperature=0.0, ignore_eos=True)
            member.expect_call(after=len(roles) - 1)
            said = member["said"]


def real_seconds(policies: tuple[str, str, bool], num_programs: int) -> tuple[float, float]:
    """Seconds and hit rate of some panels at a time on the bundled model, in a pool for two thirds of their roles."""
    schedule_policy, eviction_policy, keeps_open = policies
    roles = [
        [f"Role {idx} of panel {panel_idx}. " + "You weigh every word with care. " * 48 for idx in range(6)]
        for panel_idx in range(num_programs)
    ]
    with (
        LLM(
            "smollm2",
            num_blocks=num_programs * 6 * 22 * 2 // 3 + num_programs * 8,
            schedule_policy=schedule_policy,
            eviction_policy=eviction_policy,
            keep_open_programs=keeps_open,
            show_progress=False,
        ) as llm,
        LocalBackend(llm) as backend,
    ):
        items = [{"topic": "Tea or coffee?", "roles": each, "num_rounds": 4} for each in roles]
        began = time.perf_counter()
        for state in panel.run_batch(items, backend=backend):
            assert state.error() is None
        return time.perf_counter() - began, llm.metrics().cache_hit_rate


def run_real(num_programs: int, num_repeats: int) -> None:
    """All policies in turn, several times: the fastest of each counts."""
    fastest: dict[str, tuple[float, float]] = {}
    for _ in range(num_repeats):
        for label, policies in POLICIES.items():
            fastest[label] = min(fastest.get(label, (math.inf, 0.0)), real_seconds(policies, num_programs))
    base = fastest[DEFAULT_LABEL][0]
    print("\n| policies | hit rate | seconds | against the default |")
    print("|---|---|---|---|")
    for label, (seconds, hit_rate) in fastest.items():
        print(f"| {label} | {hit_rate:.1%} | {seconds:.2f} | {base / seconds:.2f}x |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Policies that know programs, against those that do not.")
    parser.add_argument("--workloads", nargs="*", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--scale", type=float, default=1.0, help="how many programs, against the full number")
    parser.add_argument("--real", type=int, default=0, metavar="REPEATS", help="run the bundled model so many times")
    parser.add_argument("--panels", type=int, default=3, help="programs at a time on the bundled model")
    args = parser.parse_args()
    if args.workloads:
        print_table(
            {
                name: {label: simulate(WORKLOADS[name](args.scale), policies) for label, policies in POLICIES.items()}
                for name in args.workloads
            }
        )
    if args.real:
        run_real(args.panels, args.real)


if __name__ == "__main__":
    main()
