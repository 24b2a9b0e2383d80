"""kill -9 at any instant leaves a store that loads, and of which nothing wrong is believed."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

WRITER = Path(__file__).with_name("kill_writer.py")
ROOT = Path(__file__).resolve().parents[3]
GENERATOR = """
import sys
from ramet import LLM, SamplingParams
with LLM("smollm2", prefix_cache_dir=sys.argv[1], num_threads=1) as llm:
    print("opened", flush=True)
    for turn in range(10_000):
        prompt = f"Chapter {turn % 40}. " + "The fox and the crow met again in the old wood. " * 12
        llm.generate([prompt], SamplingParams(temperature=0, max_tokens=8))
        print("put", flush=True)
"""


def start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def check_store(open_tier, blocks, path: Path) -> int:
    """Open it and load all that it has; `get` compares. How many blocks."""
    tier = open_tier(path)
    num_held = tier.stats.num_held_blocks
    found = 0
    for prefix in itertools.product(range(3), repeat=4):
        for entry in tier._index.path(*tier_root(tier, list(prefix))):
            stack = [(entry, list(prefix))]
            while stack:
                each, token_ids = stack.pop()
                found += blocks.get(tier, token_ids, start=len(token_ids) // 4 - 1)
                stack += [(child, token_ids + tokens_of(child.key)) for child in each.children.values()]
    assert found == num_held
    assert tier.stats.num_damaged_blocks == 0
    tier.close()
    return num_held


def tier_root(tier, token_ids):
    from ramet.runtime.tiers.disk_format import namespace_digest

    return namespace_digest(None), tier._index.keys(token_ids, 1)


def tokens_of(key: bytes) -> list[int]:
    return list(memoryview(key).cast("i"))


@pytest.mark.parametrize("num_kills", [5, pytest.param(100, marks=pytest.mark.slow)])
def test_a_store_survives_the_death_of_its_writer(open_tier, blocks, tmp_path, num_kills):
    """What was written whole loads; what was being written is not there. The disk's slots turn over many times."""
    rng = random.Random(num_kills)
    num_put = 0
    with start([str(WRITER), str(tmp_path)]) as killer:
        assert killer.stdin is not None
        assert killer.stdout is not None
        for seed in range(num_kills):
            print(seed, rng.random() * 0.5, file=killer.stdin, flush=True)
            num_put += int(killer.stdout.readline())
            check_store(open_tier, blocks, tmp_path)
        killer.stdin.close()
    assert num_put > 20 * num_kills
    assert check_store(open_tier, blocks, tmp_path) > 40


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(1800)
def test_a_hundred_deaths_of_a_generating_process_change_no_output(tmp_path):
    from ramet import LLM, SamplingParams

    rng = random.Random(0)
    for _ in range(100):
        with start(["-c", GENERATOR, str(tmp_path)]) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "opened\n"
            time.sleep(rng.random() * 2)
            process.kill()
    prompts = [f"Chapter {turn}. " + "The fox and the crow met again in the old wood. " * 12 for turn in range(12)]
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=3)
    with LLM("smollm2") as llm:
        expected = llm.generate(prompts, params)
    with LLM("smollm2", prefix_cache_dir=tmp_path) as llm:
        found = llm.generate(prompts, params)
        assert llm.metrics().tiers["disk"].num_hits > 0
    assert [output.outputs[0].logprobs for output in found] == [output.outputs[0].logprobs for output in expected]
