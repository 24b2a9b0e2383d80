"""The workloads, as programs over a session. What they ask for is the same for every engine, token by token.

Greedy, end of sequence ignored. A workload's time is from its first call to its last token: loading, warming up and
forgetting what the last workload left in the caches are not part of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from .inputs import Inputs


@dataclass(frozen=True)
class Shape:
    """What is to come, for engines that size their cache beforehand.

    Attributes:
        num_sequences: most prompts in one call.
        max_len: longest sequence in tokens, what is generated included.
        num_tokens: most tokens in all sequences of the workload, what they share counted once.
        is_shared: the prompts of a call begin alike.
    """

    num_sequences: int
    max_len: int
    num_tokens: int
    is_shared: bool


class Session(Protocol):
    """A loaded model. Any means the engine has to reuse what it computed since `begin` are fair.

    Attributes:
        primes_prefix: a prefix common to prompts that arrive together is computed once only if it was sent before.
    """

    @property
    def primes_prefix(self) -> bool: ...

    def begin(self, shape: Shape) -> None:
        """Forget everything computed so far."""
        ...

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        """Continue every prompt by exactly so many tokens; they are handed over together."""
        ...

    def choose(self, prefix: list[int], questions: list[list[int]], choices: list[list[int]]) -> list[int]:
        """For each question behind the prefix, the choice with the highest mean log-probability a token.

        Raises:
            UnsupportedError: the engine has no way to score given tokens.
        """
        ...

    def close(self) -> None: ...


class UnsupportedError(Exception):
    """The engine cannot do what a workload asks. The message is shown in the table."""


@dataclass
class Outcome:
    """What a workload did.

    Attributes:
        seconds: from the first call to the last token.
        prefill_seconds: W1 only: until the first token, in a run of its own.
        num_tokens: tokens generated, or questions decided.
        answers: the first token of every reply, or the choices taken; to compare engines by.
    """

    seconds: float
    num_tokens: int
    answers: list[int] = field(default_factory=list)
    prefill_seconds: float | None = None


@dataclass(frozen=True)
class Workload:
    """Attributes:
    name: as in the table.
    description: one line.
    num_tokens: what `Outcome.num_tokens` must be.
    """

    name: str
    description: Callable[[Inputs], str]
    run: Callable[[Session, Inputs], Outcome]
    num_tokens: Callable[[Inputs], int]


def run_single(session: Session, inputs: Inputs) -> Outcome:
    prompt_len, num_tokens = inputs.sizes.single
    shape = Shape(1, prompt_len + num_tokens, prompt_len + num_tokens, is_shared=False)
    session.begin(shape)
    start = time.perf_counter()
    session.generate([inputs.single], 1)
    prefill_seconds = time.perf_counter() - start
    session.begin(shape)
    start = time.perf_counter()
    replies = session.generate([inputs.single], num_tokens)
    return _outcome(start, replies, prefill_seconds)


def run_batch(session: Session, inputs: Inputs) -> Outcome:
    num_prompts, prompt_len, num_tokens = inputs.sizes.batch
    length = prompt_len + num_tokens
    session.begin(Shape(num_prompts, length, num_prompts * length, is_shared=False))
    start = time.perf_counter()
    return _outcome(start, session.generate(inputs.batch, num_tokens))


def run_shared(session: Session, inputs: Inputs) -> Outcome:
    """The prefix is sent ahead where the engine needs that."""
    return _run_shared(session, inputs, is_primed=session.primes_prefix)


def run_shared_together(session: Session, inputs: Inputs) -> Outcome:
    return _run_shared(session, inputs, is_primed=False)


def _run_shared(session: Session, inputs: Inputs, *, is_primed: bool) -> Outcome:
    num_tokens = inputs.sizes.shared[-1]
    session.begin(_question_shape(inputs, num_tokens))
    prompts = [inputs.prefix + question for question in inputs.questions]
    start = time.perf_counter()
    if is_primed:
        session.generate([inputs.prefix], 1)
    return _outcome(start, session.generate(prompts, num_tokens))


def run_select(session: Session, inputs: Inputs) -> Outcome:
    session.begin(_question_shape(inputs, inputs.sizes.choices[1]))
    start = time.perf_counter()
    chosen = session.choose(inputs.prefix, inputs.questions, inputs.choices)
    return Outcome(time.perf_counter() - start, len(chosen), chosen)


def _question_shape(inputs: Inputs, num_tokens: int) -> Shape:
    num_questions, question_len, prefix_len, _ = inputs.sizes.shared
    own = question_len + num_tokens
    return Shape(num_questions, prefix_len + own, prefix_len + num_questions * own, is_shared=True)


def run_chats(session: Session, inputs: Inputs) -> Outcome:
    num_chats, num_turns, turn_len, num_tokens = inputs.sizes.chats
    length = num_turns * (turn_len + num_tokens)
    session.begin(Shape(num_chats, length, num_chats * length, is_shared=False))
    start = time.perf_counter()
    histories: list[list[int]] = [[] for _ in inputs.chats]
    all_replies: list[list[int]] = []
    for turn in range(num_turns):
        prompts = [history + chat[turn] for history, chat in zip(histories, inputs.chats, strict=True)]
        replies = session.generate(prompts, num_tokens)
        histories = [prompt + reply for prompt, reply in zip(prompts, replies, strict=True)]
        all_replies += replies
    return _outcome(start, all_replies)


def run_forks(session: Session, inputs: Inputs) -> Outcome:
    prefix_len, num_branches, branch_len, num_tokens, num_joined = inputs.sizes.forks
    length = prefix_len + num_branches * (branch_len + num_tokens) + num_joined
    session.begin(Shape(num_branches, length, length + num_branches * (branch_len + num_tokens), is_shared=True))
    start = time.perf_counter()
    if session.primes_prefix:
        session.generate([inputs.fork_prefix], 1)
    replies = session.generate([inputs.fork_prefix + branch for branch in inputs.branches], num_tokens)
    joined = list(inputs.fork_prefix)
    for branch, reply in zip(inputs.branches, replies, strict=True):
        joined += branch + reply
    return _outcome(start, replies + session.generate([joined], num_joined))


def _outcome(start: float, replies: list[list[int]], prefill_seconds: float | None = None) -> Outcome:
    seconds = time.perf_counter() - start
    return Outcome(seconds, sum(map(len, replies)), [reply[0] for reply in replies], prefill_seconds)


def _describe_single(inputs: Inputs) -> str:
    return "prompt {}, generate {}".format(*inputs.sizes.single)


def _describe_batch(inputs: Inputs) -> str:
    return "{} prompts of {}, generate {}".format(*inputs.sizes.batch)


def _describe_shared(inputs: Inputs) -> str:
    return "{} questions of {} behind {}, generate {}".format(*inputs.sizes.shared)


def _describe_select(inputs: Inputs) -> str:
    questions = "{} questions of {} behind {}".format(*inputs.sizes.shared[:3])
    return questions + ", {} choices of {}".format(*inputs.sizes.choices)


def _describe_chats(inputs: Inputs) -> str:
    return "{} chats x {} turns x ({} + {})".format(*inputs.sizes.chats)


def _describe_forks(inputs: Inputs) -> str:
    return "{} prefix, {} forks x ({} + {}), join, {}".format(*inputs.sizes.forks)


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("W1", _describe_single, run_single, lambda inputs: inputs.sizes.single[1]),
        Workload("W2", _describe_batch, run_batch, lambda inputs: inputs.sizes.batch[0] * inputs.sizes.batch[2]),
        Workload("W3", _describe_shared, run_shared, lambda inputs: inputs.sizes.shared[0] * inputs.sizes.shared[3]),
        Workload(
            "W3-together",
            _describe_shared,
            run_shared_together,
            lambda inputs: inputs.sizes.shared[0] * inputs.sizes.shared[3],
        ),
        Workload("W3-select", _describe_select, run_select, lambda inputs: inputs.sizes.shared[0]),
        Workload(
            "W4",
            _describe_chats,
            run_chats,
            lambda inputs: inputs.sizes.chats[0] * inputs.sizes.chats[1] * inputs.sizes.chats[3],
        ),
        Workload(
            "W5",
            _describe_forks,
            run_forks,
            lambda inputs: inputs.sizes.forks[1] * inputs.sizes.forks[3] + inputs.sizes.forks[4],
        ),
    )
}
