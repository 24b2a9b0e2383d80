"""Which rank holds what, and which numbers of ranks a model has."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.config import EngineConfig
from ramet.runtime.errors import InvalidConfigError
from ramet.runtime.models.base import ModelConfig
from ramet.runtime.parallel.loading import rank_devices
from ramet.runtime.parallel.shards import Shards, check_divisible, part, shard_config
from ramet.runtime.runner_factory import RUNNERS, runner_candidates

SMOLLM2 = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    norm_eps=1e-5,
    max_position_embeddings=8192,
    rope=None,
    tie_word_embeddings=True,
    attention_bias=False,
    attention_output_bias=False,
    mlp_bias=False,
    has_qk_norm=False,
    sliding_windows=(None,) * 30,
    bos_token_id=1,
    eos_token_ids=(2,),
)


class Rank:
    """The part of a Group that shards depend on."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


@given(st.integers(0, 300), st.integers(1, 9))
def test_parts_are_nearly_equal_and_cover_everything(total: int, size: int) -> None:
    parts = [part(total, rank, size) for rank in range(size)]
    assert [idx for each in parts for idx in each] == list(range(total))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_every_rank_has_the_key_heads_that_its_queries_read() -> None:
    """For all numbers of heads and ranks that go together."""
    num_checked = 0
    for num_heads in range(1, 25):
        for num_kv_heads in (each for each in range(1, num_heads + 1) if num_heads % each == 0):
            config = replace(SMOLLM2, num_heads=num_heads, num_kv_heads=num_kv_heads, intermediate_size=5 * num_heads)
            for size in range(1, num_heads + 1):
                try:
                    check_divisible(config, size)
                except InvalidConfigError:
                    continue
                num_checked += 1
                for rank in range(size):
                    shards = Shards.of(config, Rank(rank, size))  # type: ignore[arg-type]
                    heads = [row // 64 for row in shards.queries[::64]]
                    kv_heads = [row // 64 for row in shards.keys[::64]]
                    local = shard_config(config, Rank(rank, size))  # type: ignore[arg-type]
                    group_size = local.num_heads // local.num_kv_heads
                    assert (len(heads), len(kv_heads)) == (local.num_heads, local.num_kv_heads)
                    assert [kv_heads[idx // group_size] for idx in range(len(heads))] == [
                        head * num_kv_heads // num_heads for head in heads
                    ]
    assert num_checked > 100


def test_a_model_that_does_not_divide_says_which_sizes_work() -> None:
    check_divisible(SMOLLM2, 3)
    for size in (2, 4, 9, 100):
        with pytest.raises(
            InvalidConfigError,
            match=rf"tensor_parallel_size={size} .* 9 query heads, 3 key/value heads .* of 1536; .* work are 1, 3$",
        ):
            check_divisible(SMOLLM2, size)


@pytest.mark.parametrize("size", [0, -1, True, 2.0, "2"])
def test_the_option_is_checked(size: object) -> None:
    with pytest.raises(InvalidConfigError, match=r"tensor_parallel_size=.* must be a positive integer"):
        EngineConfig(tensor_parallel_size=size)  # type: ignore[arg-type]


def test_ranks_take_devices_one_after_another() -> None:
    assert rank_devices(torch.device("cpu"), 3, 0) == ["cpu", "cpu", "cpu"]
    assert rank_devices(torch.device("cuda"), 2, 4) == ["cuda:0", "cuda:1"]
    assert rank_devices(torch.device("cuda:2"), 2, 4) == ["cuda:2", "cuda:3"]
    with pytest.raises(InvalidConfigError, match=r"tensor_parallel_size=2 needs 2 CUDA devices from cuda:3 on, .* 4;"):
        rank_devices(torch.device("cuda:3"), 2, 4)


def test_only_runners_that_can_be_parallel_are_taken() -> None:
    assert runner_candidates(None, "cpu", 2) == ("torch",)
    for name, kind in RUNNERS.items():
        if kind.can_be_parallel:
            assert runner_candidates(name, "cpu", 2) == (name,)
    for name in ("cpu", "torch_int8"):
        with pytest.raises(
            InvalidConfigError,
            match=f"tensor_parallel_size=2 does not go with kernels='{name}'; use one of reference, torch, triton",
        ):
            runner_candidates(name, "cpu", 2)
