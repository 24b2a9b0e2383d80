"""Depth-first order against every other order, on the real cache."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.figures.comparison_policies import UnagedLongestPrefixMatch
from ramet.figures.offline_optimum import best_of_all_orders, depth_first, num_hit_tokens
from ramet.figures.sglang_optimal import BLOCK_SIZE, num_hits_of_policy, random_batch
from ramet.figures.workloads import TokenSource
from ramet.runtime.policies.fcfs import FirstComeFirstServed
from ramet.runtime.policies.lpm import LongestPrefixMatch


def block(token_id: int) -> list[int]:
    return [token_id] * 4


def test_the_order_of_service_decides_what_is_found() -> None:
    first, second, other = block(1) + block(2), block(1) + block(3), block(4) + block(5)

    assert num_hit_tokens([first, second, other], num_blocks=2, block_size=4) == 4
    assert num_hit_tokens([first, other, second], num_blocks=2, block_size=4) == 0
    assert best_of_all_orders([first, other, second], num_blocks=2, block_size=4) == 4
    assert depth_first([first, other, second]) == [first, second, other]


def test_the_last_token_is_computed_even_where_all_is_known() -> None:
    prompt = block(1) + block(2)

    assert num_hit_tokens([prompt, prompt], num_blocks=4, block_size=4) == 7


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), num_prompts=st.integers(2, 5))
def test_no_order_beats_depth_first(seed: int, num_prompts: int) -> None:
    batch = random_batch(TokenSource(seed, 32_000), num_prompts)
    found = num_hit_tokens(depth_first(batch.prompts), batch.num_blocks, BLOCK_SIZE)

    assert found == best_of_all_orders(batch.prompts, batch.num_blocks, BLOCK_SIZE)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_an_engine_that_serves_one_at_a_time_finds_what_the_cache_alone_does(seed: int) -> None:
    batch = random_batch(TokenSource(seed, 32_000), 5)

    assert num_hits_of_policy(batch, FirstComeFirstServed()) == num_hit_tokens(
        batch.prompts, batch.num_blocks, BLOCK_SIZE
    )


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_longest_match_first_is_as_good_as_depth_first(seed: int) -> None:
    batch = random_batch(TokenSource(seed, 32_000), 5)
    best = num_hit_tokens(depth_first(batch.prompts), batch.num_blocks, BLOCK_SIZE)

    assert num_hits_of_policy(batch, UnagedLongestPrefixMatch()) == best
    assert num_hits_of_policy(batch, LongestPrefixMatch()) <= best
