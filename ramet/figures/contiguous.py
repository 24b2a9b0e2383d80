"""Contiguous KV memory: what servers had before paging. Each request reserves one run of slots for its whole life.

Three ways to say how long a run a request needs, as the PagedAttention paper compares them (section 6.1): the longest
context there is ("max"), its prompt and the next power of two over its output ("pow2"), or exactly what it will use
("oracle"). The runs come from a buddy allocator, whose sizes are powers of two.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Reservation = Literal["max", "pow2", "oracle"]


def next_power_of_two(value: int) -> int:
    """The smallest power of two that is at least `value`; value must be positive."""
    return 1 << (value - 1).bit_length()


class BuddyAllocator:
    """Runs of slots, each of a power of two and aligned to its size (Knuth, The Art of Computer Programming, 2.5).

    Args:
        num_slots: any number; the pool is as many whole runs as its binary digits say, the largest first.

    Attributes:
        num_free_slots: in free runs, whatever their sizes.
    """

    def __init__(self, num_slots: int) -> None:
        assert num_slots > 0
        self.num_slots = num_slots
        self.num_free_slots = num_slots
        self._free: dict[int, set[int]] = {}
        self._sizes: dict[int, int] = {}
        start = 0
        for bit in reversed(range(num_slots.bit_length())):
            if num_slots >> bit & 1:
                self._free.setdefault(1 << bit, set()).add(start)
                start += 1 << bit

    def allocate(self, num_slots: int) -> int | None:
        """Reserve a run of the next power of two; its first slot, or None if no free run is long enough.

        The lowest run of the smallest fitting size is taken and halved until it fits.
        """
        size = next_power_of_two(num_slots)
        fitting = [free_size for free_size, starts in self._free.items() if free_size >= size and starts]
        if not fitting:
            return None
        found = min(fitting)
        start = min(self._free[found])
        self._free[found].remove(start)
        while found > size:
            found //= 2
            self._free.setdefault(found, set()).add(start + found)
        self._sizes[start] = size
        self.num_free_slots -= size
        return start

    def free(self, start: int) -> None:
        """Give a run back; it is merged with its buddy as often as that one is free as a whole."""
        size = self._sizes.pop(start)
        self.num_free_slots += size
        while start ^ size in self._free.get(size, ()):
            self._free[size].remove(start ^ size)
            start = min(start, start ^ size)
            size *= 2
        self._free.setdefault(size, set()).add(start)

    def runs(self) -> list[tuple[int, int]]:
        """(first slot, number of slots) of every reserved run, in order."""
        return sorted(self._sizes.items())


@dataclass(frozen=True, slots=True)
class Usage:
    """Slots summed over time, in slots times steps.

    Attributes:
        pool: all there are.
        reserved: given to a request, rounding of the allocator included.
        written: holding the state of a token.
    """

    pool: int
    reserved: int
    written: int


@dataclass(frozen=True, slots=True)
class Stay:
    """A request's time in memory: steps [start, end), the slots of its run, and its context at the start."""

    start: int
    end: int
    num_slots: int
    prompt_len: int

    def usage(self, first: int, last: int) -> tuple[int, int]:
        """Slots reserved and slots written, summed over those of its steps that lie in [first, last).

        Its context grows by one token a step.
        """
        first, last = max(first, self.start), min(last, self.end)
        num_steps = max(0, last - first)
        len_at_first = self.prompt_len + first - self.start
        return num_steps * self.num_slots, num_steps * len_at_first + num_steps * (num_steps - 1) // 2


def reserved_len(reservation: Reservation, prompt_len: int, output_len: int, max_context_len: int) -> int:
    """Slots that a request asks for."""
    if reservation == "max":
        return max_context_len
    if reservation == "pow2":
        return min(prompt_len + next_power_of_two(output_len), max_context_len)
    return prompt_len + output_len


def serve(lengths: Iterable[tuple[int, int]], reservation: Reservation, num_slots: int, max_context_len: int) -> Usage:
    """Serve requests of (prompt length, output length), all waiting from the start, first come first served.

    Each computes one token a step. Counted is the time under load: from a tenth of it on, when the requests are at all
    points of their lives, to the step in which the last one gets its slots.
    """
    allocator = BuddyAllocator(num_slots)
    running: list[tuple[int, int]] = []  # a heap of (step in which it is gone, first slot of its run)
    stays: list[Stay] = []
    step = 0
    for prompt_len, output_len in lengths:
        wanted = reserved_len(reservation, prompt_len, output_len, max_context_len)
        assert next_power_of_two(wanted) <= num_slots
        while (start := allocator.allocate(wanted)) is None:
            step, ended = heapq.heappop(running)
            allocator.free(ended)
        heapq.heappush(running, (step + output_len, start))
        stays.append(Stay(step, step + output_len, next_power_of_two(wanted), prompt_len))
    first = step // 10
    reserved, written = map(sum, zip(*(stay.usage(first, step) for stay in stays), strict=True))
    return Usage(pool=num_slots * (step - first), reserved=reserved, written=written)
