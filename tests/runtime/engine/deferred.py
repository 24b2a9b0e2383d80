"""A device that computes nothing before somebody waits for it, and a sampler on it: the longest that results can take.

What reads a tensor of it too early finds NaN, or a token that there is not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ramet.runtime.outputs import TokenLogprobs
from ramet.runtime.sampler import SampledToken, Sampler, SamplingRow

NO_TOKEN = 1 << 40


class DeferredDevice:
    """A stream: work is done in the order in which it was launched, when the last of it is waited for."""

    def __init__(self) -> None:
        self._launched: deque[Callable[[], None]] = deque()
        self._errors: list[tuple[Tensor, Exception]] = []

    @property
    def is_idle(self) -> bool:
        return not self._launched

    def launch(self, work: Callable[[], None]) -> Callable[[], None]:
        """Returns what waits for it."""
        self._launched.append(work)

        def wait() -> None:
            with torch.inference_mode():
                while work in self._launched:
                    self._launched.popleft()()

        return wait

    def launch_step(self, step: Callable[[], Tensor], num_rows: int, vocab_size: int) -> Tensor:
        """The logits that the step will have returned. If it raises, whoever samples them finds out."""
        logits = torch.full((num_rows, vocab_size), float("nan"))

        def work() -> None:
            try:
                logits.copy_(step())
            except Exception as error:
                self._errors.append((logits, error))

        self.launch(work)
        return logits

    def check(self, logits: Tensor) -> None:
        """Raise what the step that these are of raised."""
        for failed, error in self._errors:
            if failed is logits:
                raise error

    def synchronize(self) -> None:
        """What reading any tensor on the host comes to."""
        with torch.inference_mode():
            while self._launched:
                self._launched.popleft()()


class DeferredDraw:
    """See `Draw`."""

    def __init__(self, num_rows: int) -> None:
        self.token_ids = torch.full((num_rows,), NO_TOKEN)
        self.wait: Callable[[], None] = lambda: None
        self.results: list[SampledToken] = []
        self.error: Exception | None = None

    def finish(self) -> list[SampledToken]:
        self.wait()
        if self.error is not None:
            raise self.error
        return self.results


class DeferredSampler:
    """Another sampler, on a device that takes its time."""

    def __init__(self, inner: Sampler, device: DeferredDevice) -> None:
        self._inner = inner
        self._device = device

    def sample(self, logits: Tensor, rows: Sequence[SamplingRow]) -> list[SampledToken]:
        return self.begin(logits, rows, range(len(rows))).finish()

    def begin(self, logits: Tensor, rows: Sequence[SamplingRow], row_indices: Sequence[int]) -> DeferredDraw:
        kept = [
            replace(row, token_ids=list(row.token_ids), allowed=None if row.allowed is None else row.allowed.clone())
            for row in rows
        ]
        draw = DeferredDraw(len(kept))

        def work() -> None:
            try:
                self._device.check(logits)
                draw.results = self._inner.sample(logits[list(row_indices)], kept) if kept else []
                draw.token_ids.copy_(torch.tensor([max(0, result.token_id) for result in draw.results]))
            except Exception as error:
                draw.error = error

        draw.wait = self._device.launch(work)
        return draw

    def logprobs(self, logits: Tensor, token_ids: Sequence[int], top_n: int) -> list[TokenLogprobs]:
        self._device.synchronize()
        return self._inner.logprobs(logits, token_ids, top_n)

    def token_logprobs(self, logits: Tensor, row_indices: Sequence[int], token_ids: Sequence[int]) -> list[float]:
        self._device.synchronize()
        return self._inner.token_logprobs(logits, row_indices, token_ids)
