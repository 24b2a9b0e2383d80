"""Prefixes that somebody expects to be used again, by number of steps, and the policies that look at it."""

from __future__ import annotations

import pytest

from ramet.radix import EVICTION_POLICIES, NEVER, UNKNOWN, CacheUsageError, Expectation, PrefixCache
from ramet.radix.eviction import EvictionQueue, Usage, make_eviction_policy
from ramet.radix.expectations import MAX_TURNOVERS

from .test_radix_eviction import cached, evict, run, use

A, B, C = run(1000, 32), run(2000, 32), run(3000, 32)
AWARE = [("steps-to-execution", False), *((policy, True) for policy in sorted(EVICTION_POLICIES))]


def expect(cache: PrefixCache, tokens: list[int], steps: int, expectation: Expectation | None = None) -> Expectation:
    """Compute `tokens` and release them as what is used again in so many steps."""
    expectation = expectation or Expectation(steps)
    table, _ = cache.acquire(tokens, cache.match(tokens, max_tokens=len(tokens) - 1), len(tokens)) or pytest.fail(
        "full"
    )
    cache.commit(table, len(tokens))
    cache.release(table, expectation=expectation)
    cache.check_invariants()
    return expectation


@pytest.mark.parametrize(("policy", "keeps_expected"), AWARE)
def test_what_is_expected_goes_last(policy: str, keeps_expected: bool) -> None:
    cache = PrefixCache(8, eviction_policy=policy, keeps_expected=keeps_expected)
    expect(cache, A, 5)
    for text in (B, C, B, C):
        use(cache, text)
    evict(cache, 4)
    assert cached(cache, A, B, C) == [32, 0, 0]
    evict(cache, 2)
    assert cached(cache, A) == [0], "an expectation is no lock"


def test_the_nearest_use_goes_last() -> None:
    cache = PrefixCache(8, eviction_policy="steps-to-execution")
    for text, steps in ((A, 2), (B, 1), (C, 3)):
        expect(cache, text, steps)
    for victim in (C, A, B):
        assert cached(cache, victim) == [32]
        evict(cache, 2)
        assert cached(cache, victim) == [0]


def test_what_is_expected_later_than_before_goes_sooner() -> None:
    cache = PrefixCache(8, eviction_policy="steps-to-execution")
    first, second, third = expect(cache, A, 1), expect(cache, B, 2), expect(cache, C, 3)
    cache.expectations.change(first, 9)
    cache.check_invariants()
    evict(cache, 2)
    assert cached(cache, A, B, C) == [0, 32, 32]
    cache.expectations.change(third, 0)
    cache.expectations.drop(second)
    evict(cache, 2)
    assert cached(cache, A, B, C) == [0, 0, 32]
    assert len(cache.expectations) == 1


def test_the_nearest_of_several_counts_for_a_prefix_that_is_shared() -> None:
    cache = PrefixCache(8, eviction_policy="steps-to-execution")
    near, far = expect(cache, A, 1), expect(cache, A, 7)
    expect(cache, B, 4)
    cache.expectations.drop(far)
    use(cache, C)
    evict(cache, 4)
    assert cached(cache, A, B) == [32, 0]
    cache.expectations.drop(near)
    expect(cache, B, 4)
    evict(cache, 2)
    assert cached(cache, A, B) == [0, 32]


def test_what_a_prefix_loses_leaves_the_rest_expected() -> None:
    """A partial end and a block are evicted; the expectation stays with what is left, then moves to the parent."""
    cache = PrefixCache(8, eviction_policy="steps-to-execution")
    use(cache, [*A, *B])
    expectation = expect(cache, [*A, *C[:20]], 0)
    evict(cache, 3)
    assert cached(cache, [*A, *B], [*A, *C[:20]]) == [32, 48]
    evict(cache, 1)
    assert cached(cache, [*A, *C[:20]]) == [32]
    use(cache, run(5000, 32))
    evict(cache, 2)
    assert cached(cache, A) == [32]
    evict(cache, 2)
    assert expectation.piece is None
    assert len(cache.expectations) == 0


def test_what_is_put_behind_an_expected_prefix_is_not_expected() -> None:
    cache = PrefixCache(8, eviction_policy="steps-to-execution")
    expect(cache, A, 3)
    use(cache, [*A, *B])
    assert cached(cache, [*A, *B]) == [64]
    evict(cache, 2)
    assert cached(cache, [*A, *B]) == [32]


@pytest.mark.parametrize(("policy", "keeps_expected"), AWARE)
def test_what_nobody_will_use_goes_first_and_its_prefix_does_not(policy: str, keeps_expected: bool) -> None:
    cache = PrefixCache(8, eviction_policy=policy, keeps_expected=keeps_expected)
    use(cache, B)
    open_state = expect(cache, A, UNKNOWN)
    ended = expect(cache, [*A, *C[:16]], UNKNOWN)
    cache.expectations.retire(ended)
    cache.check_invariants()
    evict(cache, 1)
    assert cached(cache, [*A, *C[:16]], B) == [32, 32]
    cache.expectations.retire(open_state)
    cache.check_invariants()
    use(cache, A)  # somebody has come all the same
    for text in (A, B):
        use(cache, text)
    cache.check_invariants()
    assert cached(cache, A, B) == [32, 32]


def test_an_expectation_moves_along_with_its_state() -> None:
    cache = PrefixCache(12, eviction_policy="steps-to-execution")
    expectation = expect(cache, [*A, 1, 2], 3)
    expect(cache, [*A, 1, 2, *B], 3, expectation)
    assert len(cache.expectations) == 1
    cache.expectations.drop(expectation)
    use(cache, C)
    evict(cache, 5)
    assert cached(cache, [*A, 1, 2, *B], C) == [0, 32]


def test_what_does_not_come_true_counts_no_more() -> None:
    cache = PrefixCache(8, eviction_policy="steps-to-execution")
    forgotten, repeated = expect(cache, A, 0), expect(cache, B, 0)
    for turn in range(2 * MAX_TURNOVERS - 1):
        if turn == MAX_TURNOVERS:
            cache.expectations.change(repeated, 0)
        use(cache, run(10_000 * (turn + 1), 64))
        evict(cache, 4)
        use(cache, run(10_000 * (turn + 1) + 5_000, 64))
        evict(cache, 4)
    assert forgotten.piece is None
    assert repeated.piece is not None
    use(cache, C)
    evict(cache, 2)
    assert cached(cache, A, B, C) == [0, 32, 32]


def test_nothing_stays_expected_without_sharing() -> None:
    cache = PrefixCache(8, eviction_policy="steps-to-execution", enable_sharing=False)
    assert expect(cache, A, 0).piece is None
    assert len(cache.expectations) == 0


@pytest.mark.parametrize("steps", [-1, 1.5, True, None, NEVER + 1])
def test_bad_steps_are_refused(steps: int) -> None:
    with pytest.raises(CacheUsageError, match="steps="):
        Expectation(steps)
    cache = PrefixCache(8)
    with pytest.raises(CacheUsageError, match="steps="):
        cache.expectations.change(Expectation(1), steps)


class Piece:
    is_evictable = True

    def __init__(self) -> None:
        self.usage = Usage(created=0, last_access=0)


def test_a_queue_stays_short_however_often_keys_go_up_and_down() -> None:
    queue: EvictionQueue[Piece] = EvictionQueue(make_eviction_policy("steps-to-execution"), max_pieces=8)
    pieces = [Piece() for _ in range(8)]
    for piece in pieces:
        queue.push(piece)
    for turn in range(1000):
        piece = pieces[turn * 3 % 8]
        piece.usage.steps_to_use = turn * 7 % 5
        queue.lower(piece)
        assert len(queue) <= 2 * 8 + 64
    assert len(list(queue.entries())) == 8
    popped = [queue.pop() for _ in range(9)]
    assert [piece.usage.steps_to_use for piece in popped if piece] == sorted(
        (piece.usage.steps_to_use for piece in pieces), reverse=True
    )
    assert popped[-1] is None
