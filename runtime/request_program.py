"""RequestProgram: which run of which program a request comes from."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

Path = tuple[int, ...]
"""Names a branch of a run: () for the program itself, (1, 0) for branch 0 of branch 1."""


@dataclass(frozen=True, slots=True)
class RequestProgram:
    """The program that a request comes from.

    Attributes:
        run_id: of this run of it; any hashable value that no other run has.
        name: for display.
        branch: which branch of the run.
    """

    run_id: Hashable
    name: str = ""
    branch: Path = ()
