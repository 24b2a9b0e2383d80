"""Workloads: programs of several model calls whose prompts share prefixes, as token lists without a meaning.

A *program* is a generator. It yields the calls it makes at one time and is sent their outputs, in order; the next calls
may be built from them. The shapes are those of the SGLang paper's evaluation (arXiv 2312.07104, section 6.1), made
smaller: few-shot evaluation, tree of thought, chats of several turns, and agents in the style of ReAct.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import islice

from .lengths import poisson_times

Tokens = list[int]


@dataclass(frozen=True, slots=True)
class Call:
    """One model call.

    Attributes:
        prompt: token ids.
        num_output_tokens: it generates exactly so many.
        session: which conversation, task or agent it belongs to; its routing key.
        priority: lower is more important.
    """

    prompt: Tokens
    num_output_tokens: int
    session: str
    priority: int = 0


Program = Generator[list[Call], list[Tokens], None]


class TokenSource:
    """Random tokens and lengths, the same for the same seed. Two runs of a few tokens are practically never equal."""

    def __init__(self, seed: int, vocab_size: int) -> None:
        self.random = random.Random(seed)
        self.vocab_size = vocab_size

    def branch(self) -> TokenSource:
        """A source of its own for a program: what it draws then does not depend on when the others run."""
        return TokenSource(self.random.getrandbits(63), self.vocab_size)

    def tokens(self, num_tokens: int) -> Tokens:
        return self.random.choices(range(self.vocab_size), k=num_tokens)

    def between(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def priority(self) -> int:
        """One of three classes, at random: priorities that know nothing of the cache."""
        return self.between(0, 2)


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of program, many times.

    Attributes:
        name: short, for tables.
        make: programs(source, num_programs); the same source state gives the same programs.
        num_programs: at full scale.
        rate: programs that start in a second, as a Poisson process; None starts all at once.
        is_known_ahead: every call is known before the first one runs, so that there is a best order to serve them in.
    """

    name: str
    make: Callable[[TokenSource, int], list[Program]]
    num_programs: int
    rate: float | None = None
    is_known_ahead: bool = False

    def draw(self, source: TokenSource, num_programs: int) -> tuple[list[Program], list[float]]:
        """The programs and the times at which they start, in seconds."""
        programs = self.make(source, num_programs)
        times = (
            [0.0] * num_programs
            if self.rate is None
            else list(islice(poisson_times(self.rate, source.random), num_programs))
        )
        return programs, times


def few_shot(source: TokenSource, num_programs: int) -> list[Program]:
    """Questions of 32-64 tokens behind the 512 worked tokens of their task, 16 questions to a task, in random order."""
    tasks = [source.tokens(512) for _ in range(max(2, num_programs // 16))]
    programs = []
    for idx in range(num_programs):
        task_id = idx % len(tasks)
        prompt = tasks[task_id] + source.tokens(source.between(32, 64))
        call = Call(prompt, source.between(1, 16), f"task {task_id}", source.priority())
        programs.append(_single(call))
    source.random.shuffle(programs)
    return programs


def _single(call: Call) -> Program:
    yield [call]


def tree_of_thought(source: TokenSource, num_programs: int) -> list[Program]:
    """Problems behind one instruction of 256 tokens: two thoughts of 32 tokens from every thought, three levels deep,
    each level followed by a verdict of 4 tokens on every thought."""
    instruction = source.tokens(256)
    return [_tree_of_thought(source.branch(), idx, instruction) for idx in range(num_programs)]


def _tree_of_thought(source: TokenSource, idx: int, instruction: Tokens) -> Program:

    def call(prompt: Tokens, num_output_tokens: int) -> Call:
        return Call(prompt, num_output_tokens, f"problem {idx}", source.priority())

    thoughts = [instruction + source.tokens(source.between(64, 128))]
    for _ in range(3):
        prompts = [thought + source.tokens(8) for thought in thoughts for _ in range(2)]
        replies = yield [call(prompt, 32) for prompt in prompts]
        thoughts = [prompt + reply for prompt, reply in zip(prompts, replies, strict=True)]
        yield [call(thought + source.tokens(16), 4) for thought in thoughts]


def multi_turn_chat(source: TokenSource, num_programs: int) -> list[Program]:
    """Chats of four turns behind one system prompt of 128 tokens: 64-128 tokens in, 16-64 out."""
    system = source.tokens(128)
    return [_chat(source.branch(), idx, system) for idx in range(num_programs)]


def _chat(source: TokenSource, idx: int, system: Tokens) -> Program:
    history = system
    for _ in range(4):
        prompt = history + source.tokens(source.between(64, 128))
        (reply,) = yield [Call(prompt, source.between(16, 64), f"chat {idx}", source.priority())]
        history = prompt + reply


def agent(source: TokenSource, num_programs: int) -> list[Program]:
    """Agents of four kinds, each kind with instructions of 384 tokens: five times a thought of 24 tokens and what the
    tool says, 32-96 tokens."""
    instructions = [source.tokens(384) for _ in range(4)]
    return [_agent(source.branch(), idx, source.random.choice(instructions)) for idx in range(num_programs)]


def _agent(source: TokenSource, idx: int, instructions: Tokens) -> Program:
    context = instructions + source.tokens(source.between(16, 48))
    for _ in range(5):
        (thought,) = yield [Call(context, 24, f"agent {idx}", source.priority())]
        context = context + thought + source.tokens(source.between(32, 96))


WORKLOADS = (
    Workload("few-shot", few_shot, 128, is_known_ahead=True),
    Workload("tree-of-thought", tree_of_thought, 24, rate=4.0),
    Workload("multi-turn", multi_turn_chat, 48),
    Workload("agent", agent, 48, rate=4.0),
)
