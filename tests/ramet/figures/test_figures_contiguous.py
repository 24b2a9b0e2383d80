"""The buddy allocator, and the memory that contiguous reservations leave unused."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.figures.contiguous import BuddyAllocator, next_power_of_two, reserved_len, serve


@given(num_slots=st.integers(1, 300), actions=st.lists(st.one_of(st.integers(1, 70), st.none()), max_size=60))
def test_runs_are_aligned_disjoint_and_merged_again(num_slots: int, actions: list[int | None]) -> None:
    allocator = BuddyAllocator(num_slots)
    held: list[int] = []
    for size in actions:
        if size is not None:
            start = allocator.allocate(size)
            if start is None:
                assert allocator.num_free_slots < num_slots or next_power_of_two(size) > num_slots
            else:
                held.append(start)
        elif held:
            allocator.free(held.pop(len(held) // 2))
        runs = allocator.runs()
        assert sorted(held) == [start for start, _ in runs]
        assert all(start % size == 0 and size == next_power_of_two(size) for start, size in runs)
        assert all(start + size <= after for (start, size), (after, _) in itertools.pairwise(runs))
        assert sum(size for _, size in runs) + allocator.num_free_slots == num_slots
    for start in held:
        allocator.free(start)
    assert allocator.allocate(1 << (num_slots.bit_length() - 1)) is not None, "the largest run is whole again"


def test_a_run_is_halved_until_it_fits() -> None:
    allocator = BuddyAllocator(16)
    assert [allocator.allocate(3), allocator.allocate(1), allocator.allocate(8), allocator.allocate(3)] == [
        0,
        4,
        8,
        None,
    ]
    assert allocator.runs() == [(0, 4), (4, 1), (8, 8)]
    allocator.free(4)
    assert allocator.allocate(4) == 4


@pytest.mark.parametrize(("reservation", "expected"), [("max", 64), ("pow2", 26), ("oracle", 21)])
def test_what_a_request_reserves(reservation: str, expected: int) -> None:
    assert reserved_len(reservation, 10, 11, 64) == expected  # type: ignore[arg-type]


def test_usage_is_counted_slot_by_slot_and_step_by_step() -> None:
    # One run of 8 slots. Each request is there for 4 steps with 3, 4, 5 and 6 tokens; the last one ends the count.
    usage = serve([(3, 4)] * 3, "oracle", num_slots=8, max_context_len=8)
    assert usage.pool == 8 * 8
    assert usage.reserved == 8 * 8
    assert usage.written == 2 * (3 + 4 + 5 + 6)
