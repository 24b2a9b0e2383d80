"""LLMs over the bundled model that outlive themselves: a directory of prefixes, and memory of the host."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import pytest

from ramet import LLM, InvalidConfigError, SamplingParams
from ramet.runtime.cache_namespace import CacheNamespace
from ramet.runtime.tiers import disk_files

STORY = " ".join(f"On day {day} the fox counted {day * 7 % 31} crows in the old wood." for day in range(24))
PROMPTS = [f"{STORY} In the end", f"{STORY} But then", "A crow"]
PARAMS = SamplingParams(temperature=0, max_tokens=12, logprobs=4)
SEEDED = SamplingParams(temperature=1.0, seed=7, max_tokens=12, logprobs=2, prompt_logprobs=1)


def facts(outputs: Any) -> Any:
    return [
        [(each.token_ids, each.logprobs) for each in output.outputs] + [output.prompt_logprobs] for output in outputs
    ]


@pytest.fixture(scope="module")
def expected(smollm2: LLM) -> Any:
    smollm2.reset_prefix_cache()
    return facts(smollm2.generate(PROMPTS, [PARAMS, PARAMS, SEEDED]))


def _head(file: Path, num_bytes: int) -> bytes:
    with file.open("rb") as opened:
        return opened.read(num_bytes)


def flip_bytes(file: Path, num_bytes: int) -> None:
    """Of the beginning of a file, one in about a hundred thousand."""
    rng = random.Random(3)
    data = bytearray(_head(file, num_bytes))
    for _ in range(num_bytes // 100_000):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    with file.open("r+b") as opened:
        opened.write(data)


@pytest.mark.model
def test_a_restart_says_the_same_and_computes_less(tmp_path, expected, caplog):
    with LLM("smollm2", prefix_cache_dir=tmp_path, check_invariants=True) as llm:
        assert facts(llm.generate(PROMPTS, [PARAMS, PARAMS, SEEDED])) == expected
    with LLM("smollm2", prefix_cache_dir=tmp_path, check_invariants=True) as llm:
        outputs = llm.generate(PROMPTS, [PARAMS, PARAMS, SEEDED])
        assert facts(outputs) == expected
        num_tokens = len(outputs[0].prompt_token_ids)
        assert [num_tokens - output.num_cached_tokens <= 16 for output in outputs[:2]] == [True, True]
        metrics = llm.metrics()
        assert metrics.num_computed_tokens < num_tokens
        assert metrics.tiers["disk"].num_hits == 1
        (other,) = llm.generate(PROMPTS[0], PARAMS, cache_namespace=CacheNamespace("a tenant"))
        assert other.num_cached_tokens == 0
    flip_bytes(next((tmp_path / disk_files.FOLDER).glob("*.blocks")), 8 << 20)
    caplog.clear()
    with LLM("smollm2", prefix_cache_dir=tmp_path) as llm, caplog.at_level(logging.WARNING):
        assert facts(llm.generate(PROMPTS, [PARAMS, PARAMS, SEEDED])) == expected
        assert llm.metrics().tiers["disk"].num_damaged_blocks > 0
    assert "a stored block is damaged: it is dropped" in caplog.text


@pytest.mark.model
def test_the_memory_of_the_host_stands_behind_a_small_pool(expected):
    with LLM("smollm2", num_blocks=40, host_cache_memory="64M", check_invariants=True) as llm:
        for _ in range(2):
            assert [facts(llm.generate([prompt], PARAMS))[0] for prompt in PROMPTS[:2]] == expected[:2]
            llm.generate("A hen " * 250, SamplingParams(temperature=0, max_tokens=1))
        assert llm.metrics().tiers["host"].num_hits > 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefix_cache_dir": 3}, r"prefix_cache_dir=3 must be the path of a directory, or None"),
        ({"prefix_cache_dir": " "}, r"prefix_cache_dir=' ' must be the path"),
        ({"prefix_cache_dir_size": 0}, r"prefix_cache_dir_size=0 must be a positive integer"),
        ({"prefix_cache_dir_size": "4X"}, r"prefix_cache_dir_size='4X' must be a number of bytes such as 512M"),
        ({"host_cache_memory": "much"}, r"host_cache_memory='much' must be a number of bytes"),
        ({"host_cache_memory": -1}, r"host_cache_memory=-1 must be a positive integer"),
        ({"prefix_cache_dir": "/dev/null/x"}, r"prefix_cache_dir='/dev/null/x' cannot be used: .*Not a directory"),
        ({"prefix_cache_dir": "x", "enable_prefix_caching": False}, r"prefix_cache_dir keeps cached prefixes, and"),
        ({"host_cache_memory": 1 << 20, "tensor_parallel_size": 2}, r"host_cache_memory does not go with tensor_par"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(InvalidConfigError, match=message):
        LLM("smollm2", **options)
