"""Group: the ranks that compute a step together, and what they tell each other in it.

Ranks enter the same collectives in the same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from ..gpu.step_graphs import StepGraphs

LOOPBACK = "127.0.0.1"
"""All ranks are on one machine, and nobody else's."""


class Group(Protocol):
    """Attributes:
    rank, size: this process, from 0, among how many.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, partial: Tensor) -> Tensor:
        """The sum of all ranks' tensors, on every rank. May overwrite `partial`."""
        ...

    def gather_columns(self, part: Tensor, widths: list[int]) -> Tensor:
        """[R, sum(widths)] on rank 0: the ranks' [R, widths[rank]] side by side. The others get their own part back."""
        ...

    def smallest(self, number: int) -> int:
        """The smallest number that a rank gave. Waits for the device."""
        ...

    def counted(self, graphs: StepGraphs) -> StepGraphs:
        """The graphs, each run of one counted as a collective: all ranks enter it, or none."""
        ...


class OneRank:
    """The group of a process that computes alone."""

    rank = 0
    size = 1

    def all_reduce(self, partial: Tensor) -> Tensor:
        return partial

    def gather_columns(self, part: Tensor, widths: list[int]) -> Tensor:
        return part

    def smallest(self, number: int) -> int:
        return number

    def counted(self, graphs: StepGraphs) -> StepGraphs:
        return graphs


ALONE = OneRank()
