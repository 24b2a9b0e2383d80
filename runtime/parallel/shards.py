"""Which part of a model a rank holds, after Megatron-LM (Shoeybi et al. 2019).

    attention       query heads 0..3 | 4..7       rows of q_proj, columns of o_proj
                    kv heads      0  |  1         rows of k_proj and v_proj; fewer than ranks: one is held by several
    feed-forward    inner units  0.. | ..         rows of gate_proj and up_proj, columns of down_proj
    vocabulary      tokens       0.. | ..         rows of the embedding and of the output matrix

A product with some rows of a matrix gives some of the outputs, exact. One with some columns gives a part of every sum:
parts are added over all ranks, twice a layer. All else (norms, biases of what is summed, positions) every rank has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from ..errors import InvalidConfigError
from ..models.base import ModelConfig
from .group import Group

Config = TypeVar("Config", bound=ModelConfig)


@dataclass(frozen=True, slots=True)
class Shards:
    """What a rank holds.

    Attributes:
        queries, keys: rows of the query projection, and of those of keys and values.
        inner: units of the feed-forward.
        vocab: token ids, one range for each rank.
    """

    queries: range
    keys: range
    inner: range
    vocab: range

    @staticmethod
    def of(config: ModelConfig, group: Group) -> Shards:
        """The shards of the group's rank; `check_divisible` has passed."""
        rank, size = group.rank, group.size
        num_kv_heads = -(-config.num_kv_heads // size)
        first_kv_head = rank * config.num_kv_heads // size
        head_dim = config.head_dim
        return Shards(
            queries=part(config.num_heads * head_dim, rank, size),
            keys=range(first_kv_head * head_dim, (first_kv_head + num_kv_heads) * head_dim),
            inner=part(config.intermediate_size, rank, size),
            vocab=part(config.vocab_size, rank, size),
        )


def part(total: int, rank: int, size: int) -> range:
    """The rank's share of 0 .. total - 1; shares differ by one at most."""
    return range(rank * total // size, (rank + 1) * total // size)


def shard_config(config: Config, group: Group) -> Config:
    """The configuration of one rank's part: its heads and inner units. Everything else, the vocabulary too, is the
    model's."""
    shards = Shards.of(config, group)
    return replace(
        config,
        num_heads=len(shards.queries) // config.head_dim,
        num_kv_heads=len(shards.keys) // config.head_dim,
        intermediate_size=len(shards.inner),
    )


def check_divisible(config: ModelConfig, size: int) -> None:
    """Raises:
    InvalidConfigError: the model does not fall into `size` equal parts; the message names the sizes that work.
    """
    if _is_divisible(config, size):
        return
    sizes = [each for each in range(1, config.num_heads + 1) if _is_divisible(config, each)]
    raise InvalidConfigError(
        f"tensor_parallel_size={size} does not divide this model with {config.num_heads} query heads, "
        f"{config.num_kv_heads} key/value heads and an intermediate size of {config.intermediate_size}; sizes that "
        f"work are {', '.join(map(str, sizes))}"
    )


def _is_divisible(config: ModelConfig, size: int) -> bool:
    has_whole_kv_heads = config.num_kv_heads % size == 0 or size % config.num_kv_heads == 0
    return (
        config.num_heads % size == 0
        and has_whole_kv_heads
        and config.intermediate_size % size == 0
        and config.vocab_size >= size
    )
