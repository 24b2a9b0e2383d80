"""A runner without a model, which knows exactly what every KV slot must hold, and an engine around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from ramet.radix.block_table import BlockCopy
from ramet.runtime.batch import Batch, ScheduledSequence
from ramet.runtime.config import EngineConfig
from ramet.runtime.engine import Engine
from ramet.runtime.outputs import RequestOutput
from ramet.runtime.request import Request
from ramet.runtime.runner_spec import LoadedRunner
from ramet.runtime.sampler import Sampler
from ramet.runtime.sampler_numpy import NumpySampler
from ramet.runtime.tiers.base import KVTier
from ramet.runtime.tiers.prefix_tiers import TieredStorage
from ramet.sampling_params import SamplingParams

from .deferred import DeferredDevice, DeferredSampler

VOCAB_SIZE = 101
EOS = 100


class FakeTokenizer:
    """Token i is the character chr(33 + i); the last one is end-of-sequence."""

    eos_token_ids = frozenset({EOS})
    bos_token_id = None
    vocab_size = VOCAB_SIZE
    special_token_ids = frozenset({EOS})

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id == EOS else chr(33 + token_id).encode()

    def is_special(self, token_id: int) -> bool:
        return token_id == EOS

    def encode(self, text: str, *, is_text_start: bool = True) -> list[int]:
        """Characters that no token spells are left out, as byte-level tokenizers do with bytes they lack."""
        return [ord(char) - 33 for char in text if 33 <= ord(char) < 33 + EOS]

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        return "".join(self.token_bytes(token_id).decode() for token_id in token_ids)


class StepPart:
    """What one sequence brings to a step, as it was when the step was prepared. Its last token may be pending."""

    def __init__(self, part: ScheduledSequence, drawn_token_ids: Tensor | None) -> None:
        table = part.sequence.block_table
        assert table is not None
        assert part.start == table.num_computed_tokens + part.sequence.num_in_flight_tokens
        assert table.num_committed_tokens <= part.start
        self.request_id = part.sequence.request.request_id
        self.start, self.end = part.start, part.end
        self.token_ids = part.sequence.token_ids[: part.end]
        self.block_ids = table.block_ids.copy()
        self.num_logit_rows = part.num_logit_rows
        self._row, self._drawn_token_ids = part.sequence.pending_row, drawn_token_ids

    def resolve(self) -> None:
        """The device has drawn the pending token."""
        if len(self.token_ids) < self.end:
            assert len(self.token_ids) == self.end - 1
            assert self._drawn_token_ids is not None
            self.token_ids.append(int(self._drawn_token_ids[self._row]))


class FakeRunner:
    """Keeps in every slot the history (token after token) that its key and value would encode.

    Each step it checks that a sequence's whole context reads back as its own history, that no slot is written twice,
    and that no block of the tree is ever written. Its logits are a function of the history alone.

    Args:
        device: computes by itself. A part may then turn out void: if it reads what is not there, its logits are NaN.
    """

    vocab_size = VOCAB_SIZE
    captured_batch_sizes: tuple[int, ...] = ()

    def __init__(
        self, num_blocks: int, block_size: int = 16, eos_bias: float = 0.0, device: DeferredDevice | None = None
    ) -> None:
        self.device = device
        self.can_run_ahead = device is not None
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.eos_bias = eos_bias
        self.slots: list[tuple[int, ...] | int | None] = [None] * (num_blocks * block_size)
        self.num_computed_tokens = 0
        self.num_copied_blocks = 0
        self.batches: list[list[tuple[str, int, int]]] = []
        self.fail_next: Exception | None = None
        self._failures: dict[str, tuple[int, str]] = {}
        self.num_failed_steps = 0
        self.nan_for: set[str] = set()
        self.nan_at: set[tuple[str, int]] = set()  # request and position

    def fail(self, request_id: str, num_times: int, place: str = "step") -> None:
        """Fail the next steps that this request is in: when they are prepared ("prepare"), before they compute anything
        ("step"), or at their end, with rubbish in all slots that they wrote ("end")."""
        self._failures[request_id] = num_times, place

    def _fail_for(self, parts: list[StepPart], place: str) -> Exception | None:
        for part in parts:
            num_left, failing_place = self._failures.get(part.request_id, (0, ""))
            if num_left > 0 and failing_place == place:
                self._failures[part.request_id] = num_left - 1, place
                self.num_failed_steps += 1
                return RuntimeError(f"poisoned by {part.request_id}")
        return None

    def forward(self, batch: Batch) -> Tensor:
        return self.prepare(batch)()

    def prepare(self, batch: Batch) -> Callable[[], Tensor]:
        parts = [StepPart(part, batch.drawn_token_ids) for part in batch.scheduled]
        if (error := self._fail_for(parts, "prepare")) is not None:
            raise error
        device, num_rows = self.device, sum(part.num_logit_rows for part in parts)
        if device is None:
            return lambda: self._run(list(batch.block_copies), parts)
        return lambda: device.launch_step(lambda: self._run(list(batch.block_copies), parts), num_rows, VOCAB_SIZE)

    def _run(self, block_copies: list[BlockCopy], parts: list[StepPart]) -> Tensor:
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        if (error := self._fail_for(parts, "step")) is not None:
            raise error
        self._copy(block_copies)
        written: set[int] = set()
        rows: list[Tensor] = []
        for part in parts:
            rows += self._compute(part, written)
            self.num_computed_tokens += part.end - part.start
        if (error := self._fail_for(parts, "end")) is not None:
            for slot in (*written, *self._slots_of(block_copies)):
                self.slots[slot] = -1
            raise error
        self.batches.append([(part.request_id, part.start, part.end - part.start) for part in parts])
        return torch.stack(rows) if rows else torch.empty(0, VOCAB_SIZE)

    def _compute(self, part: StepPart, written: set[int]) -> list[Tensor]:
        part.resolve()
        rows: list[Tensor] = []
        history = 0
        for position in range(part.end):
            slot = part.block_ids[position // self.block_size] * self.block_size + position % self.block_size
            history = hash((history, part.token_ids[position]))
            if position < part.start:
                if self.device is not None and self.slots[slot] != history:
                    return [torch.full((VOCAB_SIZE,), float("nan"))] * part.num_logit_rows
                assert self.slots[slot] == history, f"{part.request_id} reads a stale slot at {position}"
            else:
                assert slot not in written, f"slot {slot} is written twice in one step"
                written.add(slot)
                self.slots[slot] = history
                if part.end - position <= part.num_logit_rows:
                    is_bad = part.request_id in self.nan_for or (part.request_id, position) in self.nan_at
                    rows.append(torch.full((VOCAB_SIZE,), float("nan")) if is_bad else self._logits(history))
        return rows

    def _copy(self, block_copies: list[BlockCopy]) -> None:
        size = self.block_size
        contents = [
            self.slots[copy.src_block_id * size : copy.src_block_id * size + copy.num_tokens] for copy in block_copies
        ]
        for copy, content in zip(block_copies, contents, strict=True):
            start = copy.dst_block_id * size
            self.slots[start : start + size] = content + [None] * (size - copy.num_tokens)
            self.num_copied_blocks += 1

    def _slots_of(self, block_copies: list[BlockCopy]) -> Iterator[int]:
        for copy in block_copies:
            yield from range(copy.dst_block_id * self.block_size, (copy.dst_block_id + 1) * self.block_size)

    def _logits(self, history: int) -> Tensor:
        generator = torch.Generator().manual_seed(history & 0x7FFFFFFFFFFFFFFF)
        logits = torch.randn(VOCAB_SIZE, generator=generator)
        logits[EOS] += self.eos_bias
        return logits


class FakeBlocks:
    """The memory of a FakeRunner as tiers see it. What a device does, it does in its turn."""

    device = torch.device("cpu")

    def __init__(self, runner: FakeRunner) -> None:
        self._runner = runner
        self.bytes_per_block = 8 * runner.block_size

    def read_blocks(self, block_ids: Sequence[int]) -> Tensor:
        runner, size = self._runner, self._runner.block_size
        if runner.device is not None:
            runner.device.synchronize()
        slots = [runner.slots[block_id * size : (block_id + 1) * size] for block_id in block_ids]
        assert all(isinstance(slot, int) for block in slots for slot in block), "a block is kept that is not whole"
        return torch.tensor(slots, dtype=torch.int64).reshape(len(slots), size).view(torch.uint8)

    def write_blocks(self, block_ids: Sequence[int], data: Tensor) -> None:
        runner, size = self._runner, self._runner.block_size
        assert len(set(block_ids)) == len(block_ids) == len(data)

        def write() -> None:
            for block_id, row in zip(block_ids, data.view(torch.int64).tolist(), strict=True):
                runner.slots[block_id * size : (block_id + 1) * size] = row

        if runner.device is None:
            write()
        else:
            runner.device.launch(write)


def run_to_end(engine: Engine, max_steps: int = 10_000) -> dict[str, RequestOutput]:
    """Step until nothing is left; the outputs by request id."""
    outputs = {}
    for _ in range(max_steps):
        if not engine.has_work:
            return outputs
        for chunk in engine.step():
            if chunk.output is not None:
                outputs[chunk.request_id] = chunk.output
    raise AssertionError(f"not finished after {max_steps} steps")


def make_request(request_id: str, prompt: list[int], **fields: Any) -> Request:
    """A request; keyword arguments that are fields of Request go there, the others to SamplingParams."""
    own = {"priority", "cache_namespace", "shared_prefix_len", "prompt_logprobs_start", "num_healable_tokens"}
    params = {"temperature": 0.0, "max_tokens": 8} | {key: value for key, value in fields.items() if key not in own}
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        sampling_params=SamplingParams(**params),
        **{key: value for key, value in fields.items() if key in own},
    )


@pytest.fixture(scope="session")
def make_engine() -> Callable[..., Engine]:
    """Build an engine over a FakeRunner; invariants are checked after every step.

    `tiers` is called with the memory of the runner and returns those behind it.
    overlap_schedule="pipelined" is True on a device that computes by itself, as late as it can.
    """

    def build(
        num_blocks: int = 64,
        eos_bias: float = 0.0,
        max_model_len: int = 4096,
        sampler: Sampler | None = None,
        tiers: Callable[[FakeBlocks], tuple[KVTier, ...]] | None = None,
        **options: Any,
    ) -> Engine:
        device = None
        if options.get("overlap_schedule") == "pipelined":
            options["overlap_schedule"] = True
            device = DeferredDevice()
            sampler = DeferredSampler(sampler or NumpySampler(), device)
        config = EngineConfig(seed=0, check_invariants=True, num_blocks=num_blocks, **options)
        runner = FakeRunner(num_blocks, config.block_size, eos_bias, device)
        blocks = FakeBlocks(runner)
        storage = None if tiers is None else TieredStorage(blocks, tiers(blocks))
        return Engine(config, runner, FakeTokenizer(), max_model_len, sampler, storage)  # type: ignore[arg-type]

    return build


@pytest.fixture(scope="session")
def engine_over() -> Callable[..., Engine]:
    """engine_over(loaded, tiers=(), **options): an engine over a runner with a vocabulary of VOCAB_SIZE tokens."""

    def build(loaded: LoadedRunner, tiers: tuple[KVTier, ...] = (), **options: Any) -> Engine:
        config = EngineConfig(seed=0, check_invariants=True, **options)
        storage = None
        if tiers:
            assert loaded.blocks is not None
            storage = TieredStorage(loaded.blocks, tiers)
        return Engine(config, loaded.runner, FakeTokenizer(), loaded.max_model_len, loaded.sampler, storage)  # type: ignore[arg-type]

    return build


@pytest.fixture(scope="session")
def run() -> Callable[..., dict[str, RequestOutput]]:
    return run_to_end


@pytest.fixture(scope="session")
def request_of() -> Callable[..., Request]:
    return make_request
