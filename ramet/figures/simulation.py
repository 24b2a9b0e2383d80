"""Simulation: the product's engine, scheduler and cache in virtual time, over a runner that computes nothing.

A figure about scheduling needs tens of thousands of steps and a model whose steps take what they take on some machine.
CostModelRunner stands in for the model: it adds up what each step would have cost. All else is the real thing.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from ..runtime.batch import Batch
from ..runtime.config import EngineConfig
from ..runtime.engine import Engine
from ..runtime.outputs import RequestOutput, TokenLogprobs
from ..runtime.request import Request
from ..runtime.sampler import FinishedDraw, SampledToken, SamplingRow, draw_now
from ..runtime.tokenizer import Tokenizer
from ..sampling_params import SamplingParams
from .cost_model import CostModel

VOCAB_SIZE = 32_000
MAX_MODEL_LEN = 1 << 20
END_TOKEN_ID = VOCAB_SIZE - 1
END_TEXT = "."
"""Generated where a request ends before its max_tokens, and nowhere else."""


@dataclass(frozen=True, slots=True)
class StepPart:
    """One sequence's part of a simulated step; `is_decode` if it computed one generated token."""

    request_id: str
    sample_idx: int
    num_new_tokens: int
    is_decode: bool


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """One step: when it ran in virtual seconds, and for whom."""

    start_s: float
    end_s: float
    parts: tuple[StepPart, ...]
    num_preempted: int

    @property
    def num_tokens(self) -> int:
        return sum(part.num_new_tokens for part in self.parts)

    @property
    def num_decodes(self) -> int:
        return sum(part.is_decode for part in self.parts)


class CostModelRunner:
    """A Runner without a model. Its clock advances by what the cost model says of each step.

    Attributes:
        now_s: virtual time in seconds.
        steps: all steps so far.
    """

    vocab_size = VOCAB_SIZE
    captured_batch_sizes: tuple[int, ...] = ()
    can_run_ahead = False

    def __init__(self, cost_model: CostModel, num_blocks: int, block_size: int) -> None:
        self.cost_model = cost_model
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.now_s = 0.0
        self.steps: list[SimulatedStep] = []
        self._row = torch.zeros(1, 1)

    def prepare(self, batch: Batch) -> Callable[[], Tensor]:
        """See `Runner.prepare`."""
        parts = tuple(
            StepPart(
                part.sequence.request.request_id,
                part.sequence.sample_idx,
                part.num_new_tokens,
                part.num_new_tokens == 1 and part.sequence.num_output_tokens > 0,
            )
            for part in batch.scheduled
        )
        num_context_tokens = sum(part.end for part in batch.scheduled)
        num_rows = sum(part.num_logit_rows for part in batch.scheduled)
        num_preempted = len(batch.preempted)
        return lambda: self._run(parts, num_context_tokens, num_rows, num_preempted)

    def forward(self, batch: Batch) -> Tensor:
        """See `Runner.forward`. All logits are 0."""
        return self.prepare(batch)()

    def _run(self, parts: tuple[StepPart, ...], num_context_tokens: int, num_rows: int, num_preempted: int) -> Tensor:
        start_s = self.now_s
        num_decodes = sum(part.is_decode for part in parts)
        num_prefill_tokens = sum(part.num_new_tokens for part in parts) - num_decodes
        self.now_s += self.cost_model.step_seconds(num_prefill_tokens, num_decodes, num_context_tokens)
        self.steps.append(SimulatedStep(start_s, self.now_s, parts, num_preempted))
        return self._row.expand(num_rows, self.vocab_size)  # one number in memory, whatever the shape


class ScatterSampler:
    """Chooses tokens without looking at logits: a function of seed, sample and position, so that samples differ.

    A row that may stop stops.
    """

    def sample(self, logits: Tensor, rows: Sequence[SamplingRow]) -> list[SampledToken]:
        """See `Sampler.sample`."""
        return [SampledToken(self._token_id(row)) for row in rows]

    @staticmethod
    def _token_id(row: SamplingRow) -> int:
        params, num_tokens = row.params, len(row.token_ids)
        if (params.stop_ids or params.stop) and num_tokens - row.num_prompt_tokens >= params.min_tokens:
            return END_TOKEN_ID
        return (row.seed + row.sample_idx * 7_919 + num_tokens * 104_729) % END_TOKEN_ID

    def begin(self, logits: Tensor, rows: Sequence[SamplingRow], row_indices: Sequence[int]) -> FinishedDraw:
        """See `Sampler.begin`."""
        return draw_now(self, logits, rows, row_indices)

    def logprobs(self, logits: Tensor, token_ids: Sequence[int], top_n: int) -> list[TokenLogprobs]:
        """See `Sampler.logprobs`."""
        raise NotImplementedError("a simulated model has no logprobs")

    def token_logprobs(self, logits: Tensor, row_indices: Sequence[int], token_ids: Sequence[int]) -> list[float]:
        """See `Sampler.token_logprobs`."""
        raise NotImplementedError("a simulated model has no logprobs")


class ByteTokenizer:
    """Every token is one letter, END_TOKEN_ID is END_TEXT, and the model itself ends no sequence."""

    eos_token_ids: frozenset[int] = frozenset()
    special_token_ids: frozenset[int] = frozenset()
    bos_token_id = None
    vocab_size = VOCAB_SIZE

    def token_bytes(self, token_id: int) -> bytes:
        return END_TEXT.encode() if token_id == END_TOKEN_ID else b"x"

    def is_special(self, token_id: int) -> bool:
        return False

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return b"".join(map(self.token_bytes, token_ids)).decode()


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request and the virtual second at which it is submitted."""

    time_s: float
    request: Request


def simulated_request(
    request_id: str,
    prompt_token_ids: Iterable[int],
    output_len: int,
    *,
    allowed_len: int | None = None,
    n: int = 1,
    **request_fields: Any,
) -> Request:
    """A request that generates exactly `output_len` tokens a sample.

    Args:
        allowed_len: its max_tokens; it ends by a stop token that nobody foresees. None lets max_tokens end it.
        request_fields: those of Request.
    """
    if allowed_len is None:
        params = SamplingParams(n=n, max_tokens=output_len, ignore_eos=True)
    else:
        params = SamplingParams(n=n, max_tokens=allowed_len, min_tokens=output_len - 1, stop_token_ids=(END_TOKEN_ID,))
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt_token_ids),
        sampling_params=params,
        **request_fields,
    )


@dataclass(slots=True)
class RequestRecord:
    """What became of a request, in virtual seconds. With n > 1 the tokens of all samples are in one list.

    Attributes:
        token_times_s: when each generated token was there.
        output: set when it has ended.
    """

    request: Request
    arrival_s: float
    token_times_s: list[float] = field(default_factory=list)
    output: RequestOutput | None = None

    @property
    def time_to_first_token_s(self) -> float:
        return self.token_times_s[0] - self.arrival_s

    @property
    def latency_s(self) -> float:
        return self.token_times_s[-1] - self.arrival_s

    @property
    def latency_per_token_s(self) -> float:
        """The papers' normalised latency: from arrival to the end, over the number of generated tokens."""
        return self.latency_s / len(self.token_times_s)

    @property
    def times_between_tokens_s(self) -> list[float]:
        return [later - earlier for earlier, later in itertools.pairwise(self.token_times_s)]


class Simulation:
    """An Engine over a CostModelRunner, fed with arrivals in virtual time.

    Args:
        num_blocks: blocks in the pool.
        engine_options: any other field of EngineConfig.

    Attributes:
        engine: the real engine; its metrics, scheduler and cache may be read at any time.
        records: by request id.

    Raises:
        InvalidConfigError: an option is unknown or out of range.

    Cost: that of the real engine without a model, about 2 us a sequence and step.
    """

    def __init__(self, cost_model: CostModel, *, num_blocks: int, **engine_options: Any) -> None:
        config = EngineConfig(seed=0, num_blocks=num_blocks, overlap_schedule=False, **engine_options)
        self.runner = CostModelRunner(cost_model, num_blocks, config.block_size)
        tokenizer = cast(Tokenizer, ByteTokenizer())  # has all that the engine asks of one
        self.engine = Engine(config, self.runner, tokenizer, MAX_MODEL_LEN, ScatterSampler())
        self.records: dict[str, RequestRecord] = {}

    @property
    def now_s(self) -> float:
        return self.runner.now_s

    @property
    def steps(self) -> list[SimulatedStep]:
        return self.runner.steps

    def run(
        self,
        arrivals: Iterable[Arrival],
        *,
        on_step: Callable[[Engine], None] | None = None,
        on_output: Callable[[RequestRecord], Iterable[Arrival]] | None = None,
    ) -> list[RequestRecord]:
        """Run until everything has ended; the records in order of arrival. May be called again: time goes on.

        Args:
            on_step: called after every step, to look at the engine.
            on_output: called with each ended request; returns what arrives because of it, such as the next turn of a
                conversation. Times in the past mean now.

        Raises:
            InvalidRequestError: a request can never be served.
            RuntimeError: the engine has work and makes no progress, or a request failed.
        """
        order = itertools.count()
        queue = [(arrival.time_s, next(order), arrival.request) for arrival in arrivals]
        heapq.heapify(queue)
        num_idle_steps = 0
        with quiet_engine():
            while queue or self.engine.has_work:
                self._submit_due(queue)
                num_steps = len(self.steps)
                for record in self._step():
                    for arrival in on_output(record) if on_output else ():
                        heapq.heappush(queue, (max(arrival.time_s, self.now_s), next(order), arrival.request))
                num_idle_steps = num_idle_steps + 1 if len(self.steps) == num_steps else 0
                if num_idle_steps > 100:
                    raise RuntimeError(f"the engine computes nothing although it has work: {self.engine.scheduler}")
                if on_step is not None:
                    on_step(self.engine)
        return list(self.records.values())

    def _submit_due(self, queue: list[tuple[float, int, Request]]) -> None:
        if not self.engine.has_work and queue[0][0] > self.now_s:
            self.runner.now_s = queue[0][0]
        while queue and queue[0][0] <= self.now_s:
            time_s, _, request = heapq.heappop(queue)
            self.engine.add_request(request)
            self.records[request.request_id] = RequestRecord(request, time_s)

    def _step(self) -> Iterator[RequestRecord]:
        """One step of the engine; the records of the requests that it ended."""
        for chunk in self.engine.step():
            record = self.records[chunk.request_id]
            record.token_times_s += [self.now_s] * len(chunk.token_ids)
            if chunk.output is not None:
                if chunk.output.error is not None:
                    raise RuntimeError(f"request {chunk.request_id} failed") from chunk.output.error
                record.output = chunk.output
                yield record


@contextmanager
def quiet_engine() -> Iterator[None]:
    """No warnings of the engine meanwhile: a figure about preemption would print thousands."""
    engine_logger = logging.getLogger(Engine.__module__.rpartition(".")[0])
    level = engine_logger.level
    engine_logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        engine_logger.setLevel(level)
