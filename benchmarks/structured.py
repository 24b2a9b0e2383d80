"""What does a constraint cost and save? Forced tokens, forward passes and wall time, on the bundled model.

    python -m benchmarks.structured [--rounds 5] [--output benchmarks/results/structured.md]

The text is the character record of the SGLang paper (Zheng et al. 2024, section 4), as a regular expression and as a
JSON schema. Each is generated greedily with jump-forward and without, in one process, alternating, so read the ratios.
The paper's way of jumping (append the forced characters, tokenise the whole text again) is replayed over the same text:
it is not part of the engine.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramet import LLM, SamplingParams
from ramet.runtime.grammar.char_automaton import CharAutomaton
from ramet.runtime.grammar.constrained_text import ConstrainedText
from ramet.runtime.grammar.regex import parse_regex

CHARACTER_REGEX = (
    r'\{\n    "name": "[\w\d\s]{1,16}",\n    "house": "(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)",\n'
    r'    "blood status": "(Pure-blood|Half-blood|Muggle-born)",\n    "occupation": "(student|teacher|auror|other)",\n'
    r'    "wand": \{\n        "wood": "[\w\d\s]{1,16}",\n        "core": "[\w\d\s]{1,16}",\n'
    r'        "length": [0-9]{1,2}\.[0-9]{0,2}\n    \},\n    "alive": "(Alive|Deceased)",\n'
    r'    "patronus": "[\w\d\s]{1,16}",\n    "bogart": "[\w\d\s]{1,16}"\n\}'
)
CHARACTER_REGEX = "(?a)" + CHARACTER_REGEX
TEXT = {"type": "string", "pattern": "^[A-Za-z0-9 ]{1,16}$"}
CHARACTER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": TEXT,
        "house": {"enum": ["Gryffindor", "Slytherin", "Ravenclaw", "Hufflepuff"]},
        "blood status": {"enum": ["Pure-blood", "Half-blood", "Muggle-born"]},
        "occupation": {"enum": ["student", "teacher", "auror", "other"]},
        "wand": {
            "type": "object",
            "properties": {"wood": TEXT, "core": TEXT, "length": {"type": "number", "minimum": 5, "maximum": 20}},
            "required": ["wood", "core", "length"],
            "additionalProperties": False,
        },
        "alive": {"enum": ["Alive", "Deceased"]},
        "patronus": TEXT,
        "bogart": TEXT,
    },
    "required": ["name", "house", "blood status", "occupation", "wand", "alive", "patronus", "bogart"],
    "additionalProperties": False,
}
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "regex": {"regex": CHARACTER_REGEX},
    "JSON schema": {"json_schema": CHARACTER_SCHEMA},
    "JSON schema, compact": {"json_schema": CHARACTER_SCHEMA, "json_whitespace": "compact"},
}
PROMPTS = [
    f"{name} is a character in Harry Potter. The facts about {name} as JSON:\n"
    for name in ("Harry Potter", "Hermione Granger", "Ron Weasley", "Draco Malfoy", "Luna Lovegood", "Severus Snape")
]
BATCH_SIZE = 32


@dataclass(frozen=True)
class Run:
    """What generating one text took."""

    text: str
    num_tokens: int
    num_forced_tokens: int
    num_steps: int
    seconds: float


def generate(llm: LLM, prompt: str, constraint: dict[str, Any]) -> Run:
    params = SamplingParams(temperature=0.0, max_tokens=400, **constraint)
    llm.reset_prefix_cache()
    before, start = llm.metrics(), time.perf_counter()
    (output,) = llm.generate([prompt], params, use_tqdm=False)
    seconds, after = time.perf_counter() - start, llm.metrics()
    (sample,) = output.outputs
    assert sample.complete
    num_forced = after.num_forced_tokens - before.num_forced_tokens
    return Run(sample.text, len(sample.token_ids), num_forced, after.num_steps - before.num_steps, seconds)


@dataclass(frozen=True)
class Replay:
    """The paper's way over one text: model steps, tokens appended by jumps, and tokens whose KV they made useless."""

    num_steps: int
    num_extended_tokens: int
    num_invalidated_tokens: int


def replay_retokenising(llm: LLM, automaton: CharAutomaton, text: str) -> Replay:
    """Where the automaton forces characters, append them and tokenise all again; else a token of the model's."""
    encode = llm.tokenizer.encode
    token_ids: list[int] = []
    num_steps = num_extended = num_invalidated = position = 0
    while position < len(text):
        num_forced = len(automaton.forced_after(text[:position]))
        if num_forced:
            position += num_forced
            joint = encode(text[:position], is_text_start=False)
            num_kept = next(
                (idx for idx, pair in enumerate(zip(token_ids, joint, strict=False)) if pair[0] != pair[1]),
                min(len(token_ids), len(joint)),
            )
            num_invalidated += len(token_ids) - num_kept
            num_extended += len(joint) - num_kept
            token_ids = joint
        else:
            (token_id, *_) = encode(text[position:], is_text_start=False)
            token_ids.append(token_id)
            position += len(llm.tokenizer.decode([token_id], is_text_start=False))
            num_steps += 1
    return Replay(num_steps, num_extended, num_invalidated)


def jump_table(jumping: LLM, stepping: LLM, num_rounds: int) -> list[str]:
    lines = [
        "| constraint | tokens | forced | passes | without jumps | fewer passes | seconds | without jumps | speed-up |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, constraint in CONSTRAINTS.items():
        runs, plain = [], []
        for _ in range(num_rounds):
            runs += [generate(jumping, prompt, constraint) for prompt in PROMPTS]
            plain += [generate(stepping, prompt, constraint) for prompt in PROMPTS]
        assert [run.text for run in runs] == [run.text for run in plain], "jumping must not change the text"
        num_tokens, num_forced, num_steps, num_plain = (
            statistics.mean(values)
            for values in (
                [run.num_tokens for run in runs],
                [run.num_forced_tokens for run in runs],
                [run.num_steps for run in runs],
                [run.num_steps for run in plain],
            )
        )
        seconds, plain_seconds = (statistics.median(run.seconds for run in all_runs) for all_runs in (runs, plain))
        lines.append(
            f"| {name} | {num_tokens:.0f} | {num_forced:.0f} ({num_forced / num_tokens:.0%}) | {num_steps:.0f} | "
            f"{num_plain:.0f} | {num_plain / num_steps:.1f}x | {seconds:.2f} | {plain_seconds:.2f} | "
            f"{plain_seconds / seconds:.2f}x |"
        )
    return lines


def replay_lines(llm: LLM) -> list[str]:
    automaton = CharAutomaton(parse_regex(CHARACTER_REGEX))
    texts = [generate(llm, prompt, CONSTRAINTS["regex"]).text for prompt in PROMPTS]
    replays = [replay_retokenising(llm, automaton, text) for text in texts]
    means = [
        statistics.mean(values)
        for values in (
            [replay.num_steps for replay in replays],
            [replay.num_extended_tokens for replay in replays],
            [replay.num_invalidated_tokens for replay in replays],
        )
    ]
    return [
        f"The paper's way over the same {len(texts)} texts: {means[0]:.0f} steps of the model, {means[1]:.0f} tokens "
        f"appended by jumps, and {means[2]:.1f} tokens whose keys and values it had to throw away (ours: none)."
    ]


@contextmanager
def timed(cls: type, names: Sequence[str]) -> Iterator[dict[str, float]]:
    """Seconds spent in some methods of a class while the block runs."""
    seconds = dict.fromkeys(names, 0.0)
    originals = {name: vars(cls)[name] for name in names}

    def clocked(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = originals[name](*args, **kwargs)
            seconds[name] += time.perf_counter() - start
            return result

        return call

    for name in names:
        setattr(cls, name, clocked(name))
    try:
        yield seconds
    finally:
        for name, original in originals.items():
            setattr(cls, name, original)


def mask_lines(llm: LLM, num_rounds: int) -> list[str]:
    """What grammars cost in a step of many sequences, greedy and sampled."""
    prompts = [f"{PROMPTS[idx % len(PROMPTS)]}{idx}" for idx in range(BATCH_SIZE)]
    lines = []
    for temperature in (0.0, 1.0):
        free = SamplingParams(temperature=temperature, seed=1, max_tokens=40, ignore_eos=True)
        bound = free.replace(ignore_eos=False, json_schema=CHARACTER_SCHEMA)
        llm.generate(prompts, bound, use_tqdm=False)
        rows = []
        for _ in range(num_rounds):
            llm.generate(prompts, free, use_tqdm=False)
            before = llm.metrics()
            with timed(ConstrainedText, ("allowed", "allows", "advance")) as seconds:
                llm.generate(prompts, bound, use_tqdm=False)
            after = llm.metrics()
            num_steps = after.num_steps - before.num_steps
            step = (sum(after.phase_seconds.values()) - sum(before.phase_seconds.values())) / num_steps
            masks = (seconds["allowed"] + seconds["allows"]) / num_steps
            rows.append((masks / step, masks, seconds["advance"] / num_steps, step))
        share, masks, advance, step = (statistics.median(column) for column in zip(*rows, strict=True))
        lines.append(
            f"Batch of {BATCH_SIZE}, temperature {temperature:g}: a constrained step takes {step * 1e3:.1f} ms, "
            f"{masks * 1e3:.2f} ms ({share:.1%}) of it to know what is allowed, {advance * 1e3:.2f} ms to accept "
            "tokens and to find the forced ones."
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost and gain of constrained decoding.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    with LLM("smollm2") as jumping, LLM("smollm2", jump_forward=False) as stepping:
        lines = [
            f"{platform.machine()}, Python {platform.python_version()}, {jumping.num_threads} threads, "
            f"{jumping.kernels_name}; character record, {len(PROMPTS)} prompts, {args.rounds} rounds, means a text.",
            "",
            *jump_table(jumping, stepping, args.rounds),
            "",
            *replay_lines(jumping),
            "",
            *mask_lines(jumping, args.rounds),
        ]
    print("\n".join(lines))
    if args.output is not None:
        args.output.write_text("# Structured output\n\n`python -m benchmarks.structured`\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
