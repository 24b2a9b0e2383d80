"""Weights on their way from a checkpoint into a model: checked, stacked and converted without a second copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ...kernels.interface import Kernels, LinearWeight
from .errors import ModelLoadError

ProgressCallback = Callable[[int, int], None]


class TensorSource(Protocol):
    """Named tensors of a checkpoint, under their Hugging Face names."""

    @property
    def path(self) -> Path: ...

    def tensor_names(self) -> Sequence[str]:
        """Names of all tensors the checkpoint holds."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor that is in `tensor_names`."""
        ...

    def read_into(self, name: str, out: Tensor) -> None:
        """Fill the contiguous CPU tensor `out`, of the tensor's shape, converting to its dtype. Mutates `out`.

        Raises ModelLoadError when the data cannot be read."""
        ...


class LinearReader(Protocol):
    """Reads matrices that only `linear` uses in a form of its own."""

    def read(
        self, parameters: ParameterReader, names: Sequence[str], shapes: Sequence[tuple[int, ...]]
    ) -> LinearWeight | None:
        """Matrices of these names and shapes, which were checked, stacked along the outputs; None leaves them to be
        read plain. Raises ModelLoadError when they cannot be read."""
        ...


class ParameterReader:
    """Reads parameters one by one in the order a model asks for them.

    Args:
        on_progress: called with (tensors read, tensors in the checkpoint) after each tensor.
        linear_reader: reads linear layers where they are not to be plain.
    """

    def __init__(
        self,
        source: TensorSource,
        dtype: torch.dtype,
        device: torch.device,
        on_progress: ProgressCallback | None = None,
        linear_reader: LinearReader | None = None,
    ) -> None:
        self.dtype = dtype
        self.device = device
        self._source = source
        self._names = frozenset(source.tensor_names())
        self._on_progress = on_progress
        self._linear_reader = linear_reader
        self._num_read = 0

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor of exactly this shape. Raises ModelLoadError when it is missing or of another shape."""
        return self.read_stacked([name], [shape])

    def read_stacked(self, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> Tensor:
        """Several tensors as one, stacked along the first dimension; they agree in the others.

        Every name and shape is checked before anything is allocated. Raises ModelLoadError as `read` does."""
        for name, shape in zip(names, shapes, strict=True):
            self.check(name, shape)
        stacked = torch.empty((sum(shape[0] for shape in shapes), *shapes[0][1:]), dtype=self.dtype)
        start = 0
        for name, shape in zip(names, shapes, strict=True):
            self._source.read_into(name, stacked[start : start + shape[0]])
            start += shape[0]
            self.advance()
        return stacked.to(self.device)

    def read_linear(self, kernels: Kernels, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> LinearWeight:
        """Matrices [outputs, inputs] that only `linear` uses, stacked along the outputs, in the form of `kernels` or
        of the `linear_reader`. Raises ModelLoadError as `read` does."""
        for name, shape in zip(names, shapes, strict=True):
            self.check(name, shape)
        weight = None if self._linear_reader is None else self._linear_reader.read(self, names, shapes)
        return kernels.prepare_weight(self.read_stacked(names, shapes)) if weight is None else weight

    def finish(self) -> None:
        """Report completion; a checkpoint may hold tensors no model asks for."""
        if self._on_progress is not None:
            self._on_progress(len(self._names), len(self._names))

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        if name not in self._names:
            raise ModelLoadError(f"{self._source.path}: tensor {name!r} of shape {list(shape)} is missing")
        found = self._source.shape(name)
        if found != shape:
            raise ModelLoadError(
                f"{self._source.path}: tensor {name!r} has shape {list(found)}, "
                f"the configuration asks for {list(shape)}"
            )

    def advance(self) -> None:
        self._num_read += 1
        if self._on_progress is not None:
            self._on_progress(min(self._num_read, len(self._names)), len(self._names))
