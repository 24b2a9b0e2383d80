"""Responses that are kept: bounded, and each owner's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.server.openai.responses_store import ResponseStore, StoredResponse


def stored(response_id: str, num_bytes: int) -> StoredResponse:
    return StoredResponse({"id": response_id}, (), num_bytes)


def test_each_owner_sees_their_own() -> None:
    store = ResponseStore(100)
    store.put("alice", stored("a", 60))
    store.put("bob", stored("b", 60))
    assert store.get("alice", "a") is not None
    assert store.get("bob", "a") is None
    assert not store.drop("bob", "a")
    assert store.drop("alice", "a")
    assert store.get("alice", "a") is None
    assert store.get("bob", "b") is not None


def test_what_was_used_last_is_kept() -> None:
    store = ResponseStore(100)
    for response_id in "abc":
        store.put("alice", stored(response_id, 30))
    store.get("alice", "a")
    store.put("alice", stored("d", 30))
    assert [store.get("alice", response_id) is not None for response_id in "abcd"] == [True, False, True, True]


@pytest.mark.parametrize("max_bytes", [0, 59])
def test_what_is_too_large_is_not_kept_and_costs_nobody_else(max_bytes: int) -> None:
    store = ResponseStore(max_bytes)
    store.put("alice", stored("small", 1))
    store.put("alice", stored("large", 60))
    assert store.get("alice", "large") is None
    assert (store.get("alice", "small") is not None) == store.is_open


@given(st.lists(st.tuples(st.sampled_from(["put", "get", "drop"]), st.sampled_from("xy"), st.integers(1, 50))))
def test_the_room_is_never_exceeded(operations: list[tuple[str, str, int]]) -> None:
    store, sizes = ResponseStore(100), dict[tuple[str, str], int]()
    for idx, (operation, owner, number) in enumerate(operations):
        if operation == "put":
            store.put(owner, stored(f"id{idx}", number))
            sizes[owner, f"id{idx}"] = number
        elif operation == "get":
            store.get(owner, f"id{number}")
        else:
            store.drop(owner, f"id{number}")
    for owner in "xy":
        kept = [size for (whose, key), size in sizes.items() if whose == owner and store.get(owner, key) is not None]
        assert sum(kept) <= 100
        if sizes and sum(size for (whose, _), size in sizes.items() if whose == owner) <= 100:
            dropped = {
                f"id{number}" for operation, whose, number in operations if operation == "drop" and whose == owner
            }
            assert len(kept) >= sum(whose == owner and key not in dropped for whose, key in sizes)
