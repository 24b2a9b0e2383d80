"""What goes through a channel comes out of it, and the end of one side is seen on the other."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.radix.block_table import BlockCopy
from ramet.runtime.batch import Batch, FlatBatch
from ramet.runtime.parallel.channel import Channel, ChannelClosedError, Kind
from ramet.runtime.parallel.messages import Failure, pack_id, pack_step, unpack_id, unpack_step

NUMBERS = st.integers(0, 2**31 - 1)
SEQUENCES = st.lists(st.tuples(st.lists(NUMBERS, min_size=1, max_size=5), st.lists(NUMBERS, max_size=6)), max_size=5)


@given(SEQUENCES, st.lists(st.builds(BlockCopy, NUMBERS, NUMBERS, NUMBERS), max_size=3), st.integers(0, 2**60))
def test_a_step_is_what_was_packed(
    sequences: list[tuple[list[int], list[int]]], copies: list[BlockCopy], step_id: int
) -> None:
    flat = FlatBatch(Batch())
    for token_ids, table in sequences:
        flat.token_ids += token_ids
        flat.positions += range(len(token_ids))
        flat.query_starts.append(len(flat.token_ids))
        flat.block_tables.append(table)
        flat.context_lens.append(len(token_ids) + 7)
    flat.logit_rows = list(range(0, len(flat.token_ids), 2))
    payload = pack_step(step_id, flat, copies)
    found_id, found, found_copies = unpack_step(payload)
    assert (found_id, found_copies, unpack_id(payload)) == (step_id, copies, step_id)
    assert vars(found) == vars(flat)


@given(st.text(max_size=20), st.integers(-1, 2**60))
def test_a_failure_is_what_was_packed(message: str, step_id: int) -> None:
    failure = Failure("MemoryError", message, step_id, 7)
    assert Failure.unpack(failure.pack()) == failure
    assert failure.is_of_a_step is (step_id >= 0)


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    first, second = (Channel(end) for end in socket.socketpair())
    yield first, second
    first.close()
    second.close()


def test_messages_of_any_length_arrive_in_order(ends: tuple[Channel, Channel]) -> None:
    first, second = ends
    payloads = [b"", b"x", bytes(range(256)) * 60_000, pack_id(5)]
    sender = threading.Thread(target=lambda: [first.send(Kind.STEP, payload) for payload in payloads])
    sender.start()
    assert [second.receive() for _ in payloads] == [(Kind.STEP, payload) for payload in payloads]
    sender.join()


def test_a_closed_end_is_seen_on_both_sides(ends: tuple[Channel, Channel]) -> None:
    first, second = ends
    caught: list[Any] = []

    def receive() -> None:
        try:
            first.receive()
        except ChannelClosedError as error:
            caught.append(error)

    waiting = threading.Thread(target=receive)
    waiting.start()
    first.close()
    waiting.join(30)
    assert len(caught) == 1
    with pytest.raises(ChannelClosedError, match="the other side has closed"):
        second.receive()
    with pytest.raises(ChannelClosedError, match="cannot be sent"):
        second.send(Kind.RUN, bytes(100))
