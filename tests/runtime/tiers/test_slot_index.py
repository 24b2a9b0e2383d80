"""SlotIndex against a list of what was put in, in the order of its use."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.tiers.slot_index import NO_SLOT, SlotIndex

BLOCK_SIZE = 2
tokens = st.lists(st.integers(0, 1), max_size=12)
names = st.sampled_from(["a", None])


def held(index: SlotIndex, namespace: object, token_ids: list[int]) -> list[int]:
    path = index.path(namespace, index.keys(token_ids, len(token_ids) // BLOCK_SIZE))
    return [entry.slot for entry in path if entry.slot != NO_SLOT]


@given(st.integers(1, 9), st.lists(st.tuples(st.sampled_from(["add", "touch", "drop"]), names, tokens), max_size=40))
def test_the_stalest_end_of_a_prefix_goes_first(num_slots, actions):
    """The model: blocks by (namespace, tokens up to their end), each with the time of its last use."""
    index = SlotIndex(num_slots, BLOCK_SIZE)
    used: dict[tuple[object, tuple[int, ...]], float] = {}
    for now, (action, namespace, token_ids) in enumerate(actions):
        end = len(token_ids) // BLOCK_SIZE
        keys = index.keys(token_ids, end)
        prefixes = [(namespace, tuple(token_ids[: (idx + 1) * BLOCK_SIZE])) for idx in range(end)]
        known = [prefix for prefix in prefixes if prefix in used]
        if action == "add" and end:
            added, num_evicted = index.add(namespace, keys, 0)
            new = [prefix for prefix in prefixes if prefix not in used][: num_slots - len(known)]
            assert len(added) == len(new)
            for prefix in known:
                used[prefix] = now
            overfull = max(0, len(used) + len(new) - num_slots)
            assert num_evicted == overfull
            for _ in range(overfull):
                del used[min(used, key=lambda prefix: (used[prefix], -len(prefix[1])))]
            used |= dict.fromkeys(new, now)
        elif action == "touch":
            index.touch(index.path(namespace, keys))
            used |= dict.fromkeys(known, now)
        elif action == "drop" and known:
            index.drop(index.path(namespace, keys)[len(known) - 1])
            gone = known[-1]
            used = {key: at for key, at in used.items() if key[0] != gone[0] or key[1][: len(gone[1])] != gone[1]}
        assert index.num_used_slots == len(used) <= num_slots
        slots = [entry.slot for entry in index.entries()]
        assert len(set(slots)) == len(slots)
        for prefix in used:
            assert len(held(index, prefix[0], list(prefix[1]))) == len(prefix[1]) // BLOCK_SIZE


def test_only_the_end_of_a_prefix_may_be_held():
    """As in a host tier: the pool has the beginning."""
    index = SlotIndex(4, BLOCK_SIZE)
    keys = index.keys([1, 2, 3, 4, 5, 6], 3)
    added, _ = index.add(None, keys, 2)
    assert [entry.key for entry in added] == [keys[2]]
    added, _ = index.add(None, keys, 1)
    assert [entry.key for entry in added] == [keys[1]]
    assert [entry.slot == NO_SLOT for entry in index.path(None, keys)] == [True, False, False]
    index.drop(index.path(None, keys)[1])
    assert index.path(None, keys) == []


def test_a_block_may_push_out_what_goes_on_from_it():
    index = SlotIndex(1, BLOCK_SIZE)
    keys = index.keys([1, 2, 3, 4], 2)
    index.add(None, keys, 1)
    added, num_evicted = index.add(None, keys[:1], 0)
    assert (len(added), num_evicted) == (1, 1)
    assert [entry.key for entry in index.path(None, keys)] == [keys[0]]


def test_more_than_fits_keeps_its_beginning():
    index = SlotIndex(2, BLOCK_SIZE)
    index.add("other", index.keys([9, 9], 1), 0)
    added, num_evicted = index.add(None, index.keys(list(range(8)), 4), 0)
    assert (len(added), num_evicted) == (2, 1)
    assert len(held(index, None, list(range(8)))) == 2
    assert index.path("other", index.keys([9, 9], 1)) == []
