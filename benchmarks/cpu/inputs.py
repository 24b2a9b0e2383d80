"""The token ids that every engine is given, and how many of them there are."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .text import Writer


@dataclass(frozen=True)
class Sizes:
    """Counts of tokens and of requests.

    Attributes:
        single: W1, (prompt, generated).
        batch: W2, (prompts, tokens of each, generated).
        shared: W3, (questions, tokens of each, prefix, generated).
        choices: W3-select, (choices, tokens of each).
        chats: W4, (chats, turns, tokens in, generated).
        forks: W5, (prefix, branches, tokens in, generated, generated after the join).
    """

    single: tuple[int, int] = (512, 128)
    batch: tuple[int, int, int] = (32, 128, 64)
    shared: tuple[int, int, int, int] = (64, 32, 1024, 8)
    choices: tuple[int, int] = (4, 3)
    chats: tuple[int, int, int, int] = (8, 6, 40, 64)
    forks: tuple[int, int, int, int, int] = (768, 8, 32, 64, 64)


FULL = Sizes()
QUICK = Sizes(
    single=(64, 8),
    batch=(4, 32, 8),
    shared=(6, 16, 128, 4),
    choices=(4, 3),
    chats=(2, 2, 16, 8),
    forks=(96, 3, 16, 8, 8),
)


@dataclass(frozen=True)
class Inputs:
    """What the workloads are made of, as token ids. Every list of token ids continues nothing: it is text of its own.

    Attributes:
        single: W1's prompt.
        batch: W2's prompts.
        prefix, questions, choices: W3's; a prompt is the prefix and a question, a choice continues it.
        chats: W4's, for each chat the tokens of each turn.
        fork_prefix, branches: W5's.
    """

    sizes: Sizes
    single: list[int]
    batch: list[list[int]]
    prefix: list[int]
    questions: list[list[int]]
    choices: list[list[int]]
    chats: list[list[list[int]]]
    fork_prefix: list[int]
    branches: list[list[int]]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @staticmethod
    def load(path: Path) -> Inputs:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        sizes = Sizes(**{name: tuple(value) for name, value in data.pop("sizes").items()})
        return Inputs(sizes=sizes, **data)


def make_inputs(words: dict[str, int], sizes: Sizes, bos_token_id: int | None, seed: int = 0) -> Inputs:
    """Args:
    words: token ids of the words (see `text.whole_words`).
    bos_token_id: begins every prompt and counts as one of its tokens; None where the model has none.
    """
    writer = Writer(words, seed)
    bos = [] if bos_token_id is None else [bos_token_id]

    def opening(num_tokens: int) -> list[int]:
        return bos + writer.take(num_tokens - len(bos))

    num_prompts, prompt_len, _ = sizes.batch
    num_questions, question_len, prefix_len, _ = sizes.shared
    num_chats, num_turns, turn_len, _ = sizes.chats
    fork_prefix_len, num_branches, branch_len, _, _ = sizes.forks
    return Inputs(
        sizes=sizes,
        single=opening(sizes.single[0]),
        batch=[opening(prompt_len) for _ in range(num_prompts)],
        prefix=opening(prefix_len),
        questions=[writer.take(question_len) for _ in range(num_questions)],
        choices=_distinct_choices(writer, *sizes.choices),
        chats=[
            [opening(turn_len) if turn == 0 else writer.take(turn_len) for turn in range(num_turns)]
            for _ in range(num_chats)
        ],
        fork_prefix=opening(fork_prefix_len),
        branches=[writer.take(branch_len) for _ in range(num_branches)],
    )


def _distinct_choices(writer: Writer, num_choices: int, choice_len: int) -> list[list[int]]:
    """Choices that differ in their first token: nothing of one can be reused for another."""
    choices: dict[int, list[int]] = {}
    while len(choices) < num_choices:
        choice = writer.take(choice_len)
        choices.setdefault(choice[0], choice)
    return list(choices.values())
