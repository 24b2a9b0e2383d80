"""The programs of sglang-cache-speedup: what the SGLang paper measures, in ramet's own language and made smaller."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..frontend.primitives import assistant, gen, select, system, user
from ..frontend.program import Program, function
from ..frontend.state import ProgramState

VOCABULARY = (
    "river stone lamp green seven walk quiet market letter winter bread glass window carry early north paper song "
    "round table water second large field house morning train answer small yellow garden city road light number"
)


def text(seed: int, num_words: int) -> str:
    """Words in random order, the same for the same seed; about a token each."""
    return " ".join(random.Random(seed).choices(VOCABULARY.split(), k=num_words))


@function
def few_shot(s: ProgramState, examples: str, question: str) -> None:
    """One answer of a few tokens behind many worked examples (MMLU)."""
    s += f"{examples}\n\nQuestion: {question}\nAnswer:"
    s += gen("answer", max_tokens=4)


@function
def multiple_choice(s: ProgramState, examples: str, question: str, choices: list[str]) -> None:
    """A choice among endings, which share examples and question (HellaSwag)."""
    s += f"{examples}\n\nQuestion: {question}\nEnding: "
    s += select("ending", choices)


@function
def tree_of_thought(s: ProgramState, examples: str, problem: str, num_branches: int) -> None:
    """Branches, each judged and continued twice."""
    s += f"{examples}\n\nProblem: {problem}\n"
    plans = s.fork(num_branches)
    for idx, plan in enumerate(plans):
        plan += f"Plan {idx}:" + gen("plan", max_tokens=16)
        verdict = plan.fork(1)[0]
        verdict += "\nThis plan is " + gen("verdict", max_tokens=2)
        for step, branch in enumerate(plan.fork(2)):
            branch += f"\nStep {step}:" + gen("step", max_tokens=16)


@function
def chat(s: ProgramState, prompt: str, questions: list[str]) -> None:
    """Turns of a chat, each over all that was said before."""
    s += system(prompt)
    for turn, question in enumerate(questions):
        s += user(question)
        s += assistant(gen(f"answer {turn}", max_tokens=8))


@function
def agent(s: ProgramState, instructions: str, question: str, observations: list[str]) -> None:
    """Thought, action, observation, and so on (ReAct)."""
    s += f"{instructions}\n\nQuestion: {question}\n"
    for step, observation in enumerate(observations):
        s += "Thought:" + gen(f"thought {step}", max_tokens=12)
        s += f"\nObservation: {observation}\n"
    s += "Answer:" + gen("answer", max_tokens=8)


@dataclass(frozen=True, slots=True)
class ProgramBatch:
    """A program and the items it is run for, all at the same time."""

    name: str
    program: Program
    items: list[Mapping[str, Any]]


def program_batches(scale: float, num_turns: int, max_items: int) -> list[ProgramBatch]:
    """All programs with their items.

    Args:
        scale: multiplies the number of words that calls share.
        num_turns: of a chat, and steps of an agent.
        max_items: most items of a program.
    """

    def words(seed: int, num_words: float) -> str:
        return text(seed, max(4, int(num_words * scale)))

    examples = words(1, 700)
    items: list[tuple[str, Program, list[Mapping[str, Any]]]] = [
        ("few-shot", few_shot, [{"examples": examples, "question": text(100 + idx, 24)} for idx in range(12)]),
        (
            "few-shot, select",
            multiple_choice,
            [
                {"examples": examples, "question": text(200 + idx, 40), "choices": [text(n, 8) for n in range(4)]}
                for idx in range(3)
            ],
        ),
        (
            "tree-of-thought",
            tree_of_thought,
            [{"examples": words(2, 300), "problem": text(300 + idx, 40), "num_branches": 3} for idx in range(2)],
        ),
        (
            "multi-turn chat",
            chat,
            [
                {"prompt": words(3, 100), "questions": [words(400 + 10 * idx + turn, 90) for turn in range(num_turns)]}
                for idx in range(3)
            ],
        ),
        (
            "agent",
            agent,
            [
                {
                    "instructions": words(4, 400),
                    "question": text(500 + idx, 16),
                    "observations": [text(600 + 10 * idx + turn, 40) for turn in range(num_turns)],
                }
                for idx in range(2)
            ],
        ),
    ]
    return [ProgramBatch(name, program, batch[:max_items]) for name, program, batch in items]
