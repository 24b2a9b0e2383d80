"""Prompt and output lengths as the papers measured them, and Poisson arrivals."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from .simulation import VOCAB_SIZE

MAX_CONTEXT_LEN = 2048
"""Longest prompt and output together in tokens: what the PagedAttention paper's models take."""


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """Log-normal lengths in tokens with the means that the PagedAttention paper reports (section 6.1).

    Attributes:
        sigma: of the logarithm; the paper gives histograms only, and 1.0 has their long tails.
    """

    name: str
    mean_prompt_len: float
    mean_output_len: float
    sigma: float = 1.0

    def sample(self, rng: random.Random) -> tuple[int, int]:
        """A prompt length and an output length, together at most MAX_CONTEXT_LEN."""
        while True:
            prompt_len, output_len = (self._length(mean, rng) for mean in (self.mean_prompt_len, self.mean_output_len))
            if prompt_len + output_len <= MAX_CONTEXT_LEN:
                return prompt_len, output_len

    def _length(self, mean: float, rng: random.Random) -> int:
        return max(1, round(rng.lognormvariate(math.log(mean) - self.sigma**2 / 2, self.sigma)))


SHAREGPT = LengthDistribution("ShareGPT-like", 161.31, 337.99)
ALPACA = LengthDistribution("Alpaca-like", 19.31, 58.45)


def random_prompt(length: int, rng: random.Random) -> list[int]:
    """Token ids that share no prefix with anybody's."""
    return [rng.randrange(VOCAB_SIZE) for _ in range(length)]


def poisson_times(rate_per_s: float, rng: random.Random) -> Iterator[float]:
    """Arrival times in seconds, for ever."""
    time_s = 0.0
    while True:
        time_s += rng.expovariate(rate_per_s)
        yield time_s
