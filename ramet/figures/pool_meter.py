"""PoolMeter: how a running engine uses its KV pool, summed over its steps."""

from __future__ import annotations

import random

from ..runtime.engine import Engine
from .cost_model import UNIT_STEPS
from .lengths import LengthDistribution, random_prompt
from .simulation import Arrival, Simulation, simulated_request

SAMPLE_EVERY = 4
"""Steps from one look at the pool to the next; contexts grow by one token a step, so little happens between."""


class PoolMeter:
    """Looks at the real block tables after every fourth step; give it as `on_step` to `Simulation.run`.

    Args:
        needs_waiting: look only while somebody waits, so that the pool is under load.

    Attributes:
        pool, allocated: slots there are, and slots of the blocks that are not free.
        written: slots of running sequences that hold a token, shared ones as often as they are used.
        num_table_blocks, num_distinct_blocks: entries of the running sequences' tables, and how many blocks those are.
    """

    def __init__(self, *, needs_waiting: bool = True) -> None:
        self._needs_waiting = needs_waiting
        self._num_steps = 0
        self.pool = self.allocated = self.written = 0
        self.num_table_blocks = self.num_distinct_blocks = 0

    def __call__(self, engine: Engine) -> None:
        self._num_steps += 1
        if self._num_steps % SAMPLE_EVERY or (self._needs_waiting and not engine.scheduler.waiting):
            return
        cache = engine.cache
        tables = [sequence.block_table for sequence in engine.scheduler.running if sequence.block_table is not None]
        self.pool += cache.num_blocks * cache.block_size
        self.allocated += (cache.num_blocks - cache.num_free_blocks) * cache.block_size
        self.written += sum(table.num_computed_tokens for table in tables)
        self.num_table_blocks += sum(len(table.block_ids) for table in tables)
        self.num_distinct_blocks += len({block_id for table in tables for block_id in table.block_ids})

    @property
    def waste(self) -> float:
        """Share of the allocated slots that hold no token, where no block is shared."""
        return 1 - self.written / self.allocated

    @property
    def saved_by_sharing(self) -> float:
        """Share of the block table entries that cost no block, because another table has the block too."""
        return 1 - self.num_distinct_blocks / self.num_table_blocks


def meter_requests(
    lengths: LengthDistribution, num_output_tokens: int, *, num_slots: int, block_size: int = 16, n: int = 1
) -> PoolMeter:
    """Serve requests of random prompts, all waiting from the start, and look at the pool while some still wait.

    Requests start as soon as their first step fits, and are preempted when the pool is full, as the paper's system does
    it. Without samples to share with, what has ended leaves the cache, so that only running requests count.

    Args:
        num_output_tokens: about how many tokens all of them generate, which is what it costs.
        n: samples a request.
    """
    rng = random.Random(0)
    simulation = Simulation(
        UNIT_STEPS,
        num_blocks=num_slots // block_size,
        block_size=block_size,
        max_num_batched_tokens=8192,
        max_num_seqs=1024,
        max_num_logit_rows=8192,
        schedule_policy="fcfs",
        reserve="none",
        enable_prefix_caching=n > 1,
    )
    meter = PoolMeter()
    arrivals = []
    for idx in range(round(num_output_tokens / n / lengths.mean_output_len)):
        prompt_len, output_len = lengths.sample(rng)
        arrivals.append(Arrival(0.0, simulated_request(f"{idx}", random_prompt(prompt_len, rng), output_len, n=n)))
    simulation.run(arrivals, on_step=meter)
    return meter
