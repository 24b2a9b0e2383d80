"""ParallelRunner: a step of all ranks. Implements `runner.Runner` on rank 0.

    rank 0     prepare | STEP -->          RUN -->  run: the same collectives in the same order   --> logits
    rank r                prepare, meanwhile   |    run: the same                                     (thrown away)

What may go wrong, and how it ends:

    a rank's process ends         its listener notices; its collectives raise; every request fails, naming the rank
    a rank does not come          collectives run out of time; the rank that does not answer is named
    all raise at the same place   (out of memory, say) the step fails, its requests with it; the ranks stay in step
    one raises, or elsewhere      as if its process had ended: nobody knows what the caches hold

Ranks are at the same place when they have entered the same number of collectives.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from torch import Tensor

from ...radix.block_table import BlockCopy
from ..batch import Batch, FlatBatch
from .channel import Kind
from .distributed import DistributedGroup
from .messages import Failure, pack_id, pack_step, unpack_id
from .workers import WorkerPool

_SETTLE_SECONDS = 10.0
_JUDGE_SECONDS = 0.02


class FlatRunner(Protocol):
    """A `Runner` of one rank's part, which also takes a batch as flat lists."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def block_size(self) -> int: ...

    @property
    def captured_batch_sizes(self) -> tuple[int, ...]: ...

    def prepare_flat(self, flat: FlatBatch, block_copies: list[BlockCopy]) -> Callable[[], Tensor]:
        """`Runner.prepare` from lists. Mutates `flat`."""
        ...


class ParallelRunner:
    """Runs steps on this rank and has the others run them too.

    Args:
        runner: of rank 0's part.
        pool: of ranks whose runners are loaded.

    Attributes:
        can_run_ahead: False: tokens are drawn on rank 0, and the others are told them.
    """

    can_run_ahead = False

    def __init__(self, runner: FlatRunner, group: DistributedGroup, pool: WorkerPool) -> None:
        self.runner = runner
        self.group = group
        self.pool = pool
        self.captured_batch_sizes = runner.captured_batch_sizes
        self._step_ids = itertools.count()
        self._last_end = (-1, True)  # id, and whether it succeeded
        pool.on_step_failure = self._judge

    @property
    def vocab_size(self) -> int:
        return self.runner.vocab_size

    @property
    def num_blocks(self) -> int:
        return self.runner.num_blocks

    @property
    def block_size(self) -> int:
        return self.runner.block_size

    def prepare(self, batch: Batch) -> Callable[[], Tensor]:
        """See `Runner.prepare`. The other ranks prepare it too, at once.

        Raises:
            TensorParallelError: a rank is gone; so does the step.
        """
        assert not batch.is_empty
        self.pool.check()
        step_id, flat = next(self._step_ids), FlatBatch(batch)
        message = pack_step(step_id, flat, batch.block_copies)
        step = self.runner.prepare_flat(flat, batch.block_copies)
        self.pool.send(Kind.STEP, message)
        return partial(self._run, step_id, step)

    def forward(self, batch: Batch) -> Tensor:
        """See `Runner.forward`. Raises as `prepare`."""
        return self.prepare(batch)()

    def close(self) -> None:
        """End the other ranks, and close what is open to them. Idempotent; nothing happens in a forked process, whose
        parent they belong to."""
        if self.pool.is_owner:
            self.pool.close()
            self.group.close()

    def _run(self, step_id: int, step: Callable[[], Tensor]) -> Tensor:
        self.pool.check()
        self.pool.send(Kind.RUN, pack_id(step_id))
        try:
            logits = step()
            # Aborted collectives leave rubbish behind: nothing may be read before it is known that there were none.
            self.group.wait(self.pool.check)
        except BaseException as error:
            self._last_end = step_id, False
            self._settle(error)
            raise
        self._last_end = step_id, True
        return logits

    def _settle(self, error: BaseException) -> None:
        """Return if all ranks are where this one was when it raised; raise TensorParallelError if not."""
        pool, group = self.pool, self.group
        pool.check()
        pool.send(Kind.SETTLE)
        answers = pool.answers(Kind.SETTLED, _SETTLE_SECONDS)
        others = {rank: unpack_id(answer) for rank, answer in answers.items()}
        if silent := pool.silent_ranks(answers):
            pool.fail(f"rank {silent[0]} of the model does not answer, after rank 0 raised {error!r}")
        elif group.is_broken:
            pool.fail(f"the ranks of the model lost one another: rank 0 raised {error!r}")
        elif apart := [rank for rank, count in others.items() if count != group.num_started]:
            pool.fail(f"rank 0 of the model raised {error!r}, and rank {apart[0]} did not at the same place")
        else:
            group.wait(pool.check)
        pool.check()

    def _judge(self, rank: int, failure: Failure) -> None:
        """A step of another rank has failed. Wait until this rank's has too, when `_settle` compares the places, or
        goes on without it, which is the end."""
        while not self.pool.has_ended:
            ended_id, has_succeeded = self._last_end
            if ended_id == failure.step_id and not has_succeeded:
                return
            if ended_id >= failure.step_id or self.group.num_started > failure.num_started:
                cause = f"{failure.error_name}: {failure.message}"
                self.pool.fail(f"a step failed on rank {rank} of the model and not on rank 0: {cause}")
                return
            time.sleep(_JUDGE_SECONDS)
