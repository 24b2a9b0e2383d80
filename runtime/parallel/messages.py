"""What goes through a channel: steps as integers, failures as JSON.

step     [T, R, S, C] | token ids T | positions T | logit rows R | query starts S + 1 | context lens S
         | block counts S | block ids, table after table | copies 3 C           int32, after the step's id in int64
"""

from __future__ import annotations

import json
import struct
from array import array
from dataclasses import dataclass

from ...radix.block_table import BlockCopy
from ..batch import Batch, FlatBatch

LOADING = -1
_STEP_ID = struct.Struct("<q")


def pack_id(number: int) -> bytes:
    """A step's id, or a number of collectives."""
    return _STEP_ID.pack(number)


def unpack_id(payload: bytes) -> int:
    return int(_STEP_ID.unpack_from(payload)[0])


def pack_step(step_id: int, flat: FlatBatch, block_copies: list[BlockCopy]) -> bytes:
    """O(tokens + blocks of all tables). Both ends are on one machine, so integers are in its byte order."""
    sizes = (len(flat.token_ids), len(flat.logit_rows), len(flat.block_tables), len(block_copies))
    numbers = array("i", sizes)
    for part in (flat.token_ids, flat.positions, flat.logit_rows, flat.query_starts, flat.context_lens):
        numbers.extend(part)
    numbers.extend(map(len, flat.block_tables))
    for table in flat.block_tables:
        numbers.fromlist(table)
    for copy in block_copies:
        numbers.extend((copy.src_block_id, copy.dst_block_id, copy.num_tokens))
    return _STEP_ID.pack(step_id) + numbers.tobytes()


def unpack_step(payload: bytes) -> tuple[int, FlatBatch, list[BlockCopy]]:
    """What `pack_step` was given."""
    packed = array("i")
    packed.frombytes(payload[_STEP_ID.size :])
    numbers, place = packed.tolist(), 4
    num_tokens, num_logit_rows, num_seqs, num_copies = numbers[:4]

    def take(count: int) -> list[int]:
        nonlocal place
        place += count
        return numbers[place - count : place]

    flat = FlatBatch(Batch())
    flat.token_ids, flat.positions, flat.logit_rows = take(num_tokens), take(num_tokens), take(num_logit_rows)
    flat.query_starts, flat.context_lens = take(num_seqs + 1), take(num_seqs)
    flat.block_tables = [take(count) for count in take(num_seqs)]
    copies = [BlockCopy(*take(3)) for _ in range(num_copies)]
    assert place == len(numbers)
    return unpack_id(payload), flat, copies


@dataclass(frozen=True, slots=True)
class Failure:
    """What a rank raised.

    Attributes:
        error_name, message: the class of it, and what it says.
        step_id: of the step; LOADING while there are none.
        num_started: collectives that the rank had entered.
    """

    error_name: str
    message: str
    step_id: int
    num_started: int

    @property
    def is_of_a_step(self) -> bool:
        return self.step_id != LOADING

    @staticmethod
    def of(error: BaseException, step_id: int = LOADING, num_started: int = 0) -> Failure:
        return Failure(type(error).__name__, str(error), step_id, num_started)

    def pack(self) -> bytes:
        return json.dumps([self.error_name, self.message, self.step_id, self.num_started]).encode()

    @staticmethod
    def unpack(payload: bytes) -> Failure:
        return Failure(*json.loads(payload))
