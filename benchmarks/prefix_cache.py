"""What does the prefix cache save? Three kinds of programs, with the cache, without it, and in transformers.

    python -m benchmarks.prefix_cache [--scale 1.0] [--output benchmarks/results/prefix_cache.md]

Every row is one workload on the bundled model, greedy, end-of-sequence ignored, all three ways in one process with the
same threads and weights. transformers runs one prompt after the other through `generate`, as a script without an engine
would. Read the ratios; the seconds are this machine's.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ramet import LLM, SamplingParams
from ramet.runtime.weights.resolve import resolve_model

TEXT = (
    "The lighthouse keeper had not spoken to anyone for eleven days when the boat came. It carried flour, paraffin, "
    "three letters and a boy of about nine, who stepped onto the rock as if he had been there before. "
)

Ask = Callable[[list[list[int]], int], list[list[int]]]
"""Continue every prompt of a list by so many tokens; they are submitted together."""


@dataclass(frozen=True)
class Workload:
    name: str
    run: Callable[[Ask, list[int], float], None]


def few_shot(ask: Ask, words: list[int], scale: float) -> None:
    """16 questions of 32 tokens behind one prefix of 1,024, 8 tokens each."""
    prefix = words[:1024]
    ask([[*prefix, 2000 + idx, *words[idx : idx + 31]] for idx in range(max(2, int(16 * scale)))], 8)


def chat(ask: Ask, words: list[int], scale: float) -> None:
    """4 chats of 6 turns: 40 tokens in, 32 tokens out."""
    histories = [[3000 + idx, *words[:60]] for idx in range(4)]
    for turn in range(max(2, int(6 * scale))):
        histories = [history + words[turn : turn + 40] for history in histories]
        replies = ask(histories, 32)
        histories = [history + reply for history, reply in zip(histories, replies, strict=True)]


def fork(ask: Ask, words: list[int], scale: float) -> None:
    """A prefix of 768, 8 branches of 32 tokens in and 32 out, one joining call over all of them."""
    prefix = words[:768]
    branches = [[*prefix, 4000 + idx, *words[idx : idx + 31]] for idx in range(max(2, int(8 * scale)))]
    replies = ask(branches, 32)
    ask([prefix + [token for reply in replies for token in reply]], 32)


WORKLOADS = [
    Workload("few-shot: 16 x 32 behind 1,024", few_shot),
    Workload("chat: 4 x 6 turns", chat),
    Workload("fork: 8 behind 768, join", fork),
]


def engine_ask(llm: LLM) -> Ask:
    def ask(prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return [output.outputs[0].token_ids for output in outputs]

    return ask


def transformers_ask() -> Ask:
    from transformers import LlamaConfig, LlamaForCausalLM

    checkpoint = resolve_model("smollm2")
    model: Any = LlamaForCausalLM(LlamaConfig(**checkpoint.config)).eval()
    state = {name: torch.empty(checkpoint.shape(name)) for name in checkpoint.tensor_names()}
    for name, tensor in state.items():
        checkpoint.read_into(name, tensor)
    model.load_state_dict(state, strict=False)
    model.tie_weights()

    def ask(prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        replies = []
        for prompt in prompts:
            ids = torch.tensor([prompt])
            with torch.inference_mode():
                output = model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=num_tokens,
                    min_new_tokens=num_tokens,
                    do_sample=False,
                    pad_token_id=0,
                    eos_token_id=None,
                )
            replies.append(output[0, len(prompt) :].tolist())
        return replies

    return ask


def measure(workload: Workload, ask: Ask, words: list[int], scale: float) -> float:
    start = time.perf_counter()
    workload.run(ask, words, scale)
    return time.perf_counter() - start


def row(workload: Workload, cached: LLM, uncached: LLM, peer: Ask, words: list[int], scale: float) -> str:
    cached.reset_prefix_cache()
    before = cached.metrics()
    with_cache = measure(workload, engine_ask(cached), words, scale)
    after = cached.metrics()
    without_cache = measure(workload, engine_ask(uncached), words, scale)
    by_peer = measure(workload, peer, words, scale)
    num_prompt_tokens = after.num_prompt_tokens - before.num_prompt_tokens
    hit_rate = (after.num_cached_tokens - before.num_cached_tokens) / num_prompt_tokens
    return (
        f"| {workload.name} | {hit_rate:.1%} | {with_cache:.1f} s | {without_cache:.1f} s | {by_peer:.1f} s "
        f"| {without_cache / with_cache:.1f}x | {by_peer / with_cache:.1f}x |"
    )


def machine() -> str:
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers", "ramet"))
    return f"{platform.machine()}, {torch.get_num_threads()} threads, Python {platform.python_version()}, {versions}"


def main() -> None:
    parser = argparse.ArgumentParser(description="What the prefix cache saves.")
    parser.add_argument("--scale", type=float, default=1.0, help="shrink the workloads for a quick look")
    parser.add_argument("--output", type=Path, help="also write the table to this file")
    args = parser.parse_args()
    with LLM("smollm2") as cached, LLM("smollm2", enable_prefix_caching=False) as uncached:
        words = cached.tokenizer.encode(TEXT * 30)
        peer = transformers_ask()
        engine_ask(cached)([words[:32]], 4), engine_ask(uncached)([words[:32]], 4), peer([words[:32]], 4)
        lines = [
            f"SmolLM2-135M-Instruct, fp32, {machine()}",
            "",
            "| workload | hit rate | ramet | cache off | transformers | vs cache off | vs transformers |",
            "|---|---|---|---|---|---|---|",
        ]
        lines += [row(workload, cached, uncached, peer, words, args.scale) for workload in WORKLOADS]
    report = "\n".join(lines)
    print(report)
    if args.output is not None:
        args.output.write_text(report + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
