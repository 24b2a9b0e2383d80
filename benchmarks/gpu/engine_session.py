"""The engine over a GPU runner, driven step by step on this thread, so that a run can be ended in time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from benchmarks.cpu.workloads import Shape
from ramet.runtime.config import EngineConfig
from ramet.runtime.engine import Engine
from ramet.runtime.outputs import RequestOutput
from ramet.runtime.request import Request
from ramet.runtime.runner_spec import LoadedRunner
from ramet.sampling_params import SamplingParams

from .results import Deadline

FOREVER = Deadline(1e9)


class TimeIsUpError(RuntimeError):
    """A workload was ended before it was done."""


class NumberTokenizer:
    """Token i is spelled " i": text to detokenise, for models that have no vocabulary."""

    bos_token_id = None
    eos_token_ids = frozenset[int]()
    special_token_ids = frozenset[int]()
    strips_leading_space = False

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def token_bytes(self, token_id: int) -> bytes:
        return f" {token_id}".encode()

    def is_special(self, token_id: int) -> bool:
        return False

    def encode(self, text: str, *, is_text_start: bool = True) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return b"".join(map(self.token_bytes, token_ids)).decode()


class EngineSession:
    """See `benchmarks.cpu.workloads.Session`. Sessions over one runner are used one after another.

    Attributes:
        deadline: when to give up a workload; may be set anew.
    """

    primes_prefix = False

    def __init__(self, loaded: LoadedRunner, config: EngineConfig) -> None:
        tokenizer = NumberTokenizer(loaded.model_config.vocab_size)
        self.engine = Engine(config, loaded.runner, tokenizer, loaded.max_model_len, loaded.sampler)  # type: ignore[arg-type]
        self.deadline = FOREVER
        self._numbers = itertools.count()

    def begin(self, shape: Shape) -> None:
        self.engine.reset_prefix_cache()

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        """Continue the prompts. Raises TimeIsUpError when the deadline has passed."""
        params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        return [list(output.outputs[0].token_ids) for output in self.run(prompts, params)]

    def choose(self, prefix: list[int], questions: list[list[int]], choices: list[list[int]]) -> list[int]:
        raise NotImplementedError("no workload of a GPU asks for it")

    def run(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[RequestOutput]:
        """Outputs in order of the prompts.

        Raises:
            TimeIsUpError: the deadline has passed; nothing is left running.
            Exception: what failed a request.
        """
        ids = self.submit(prompts, params)
        outputs: dict[str, RequestOutput] = {}
        while self.engine.has_work:
            if self.deadline.is_over:
                self.abort(ids)
                raise TimeIsUpError(f"{len(outputs)} of {len(ids)} requests were done when time was up")
            outputs |= self.step()
        failed = [output.error for output in outputs.values() if output.error is not None]
        if failed:
            raise failed[0]
        return [outputs[request_id] for request_id in ids]

    def submit(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[str]:
        """Queue prompts. Returns the ids of their requests."""
        ids = [f"bench-{next(self._numbers)}" for _ in prompts]
        for request_id, prompt in zip(ids, prompts, strict=True):
            self.engine.add_request(
                Request(request_id=request_id, prompt_token_ids=tuple(prompt), sampling_params=params)
            )
        return ids

    def step(self) -> dict[str, RequestOutput]:
        """One step of the engine; the outputs that it completed."""
        return {chunk.request_id: chunk.output for chunk in self.engine.step() if chunk.output is not None}

    def abort(self, ids: Sequence[str]) -> None:
        """Let go of requests, those included that are in flight."""
        for request_id in ids:
            self.engine.abort_request(request_id)
        while self.engine.has_work:
            self.engine.step()

    def close(self) -> None:
        self.engine.reset_prefix_cache()
        self.engine.close()
