"""Bench: what the parts of a run share: the device, sizes, clocks, ceilings, and models that are loaded once."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .models import ModelStore
from .settings import Settings
from .timing import Timer


@dataclass
class Ceilings:
    """What the device does at most, as measured by the part of that name.

    Attributes:
        copy: bytes a second, read and written ones added.
        matmul: operations a second in bf16; a multiplication and an addition are two.
    """

    copy: float | None = None
    matmul: float | None = None


@dataclass
class Bench:
    """Attributes:
    dtype: of weights and caches where speed is measured.
    """

    device: torch.device
    dtype: torch.dtype
    settings: Settings
    timer: Timer
    models: ModelStore
    ceilings: Ceilings = field(default_factory=Ceilings)

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    def generator(self, seed: int) -> torch.Generator:
        """A stream of random numbers on the device; the same for the same seed."""
        return torch.Generator(self.device).manual_seed(seed)

    def randn(self, *shape: int, seed: int = 0, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Normal numbers on the device, by default in the dtype that is measured."""
        return torch.randn(shape, generator=self.generator(seed), device=self.device, dtype=dtype or self.dtype)

    def free_memory(self) -> None:
        """Give what tensors no longer hold back to the device."""
        if self.is_cuda:
            torch.cuda.empty_cache()
