"""Weights on their way from a checkpoint into a model: checked, stacked and converted without a second copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ...kernels.interface import Kernels, LinearWeight
from .errors import ModelLoadError

ProgressCallback = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a tensor: indices start .. stop - 1 of dimension `dim` (0: rows, 1: columns), all of the others."""

    dim: int
    start: int
    stop: int

    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The part's shape, of a tensor of this shape."""
        return (*shape[: self.dim], self.stop - self.start, *shape[self.dim + 1 :])

    def is_all_of(self, shape: tuple[int, ...]) -> bool:
        return (self.start, self.stop) == (0, shape[self.dim])


def rows(indices: range) -> Piece:
    """The rows of a matrix, or the elements of a vector, of these consecutive indices."""
    return Piece(0, indices.start, indices.stop)


def columns(indices: range) -> Piece:
    """The columns of a matrix of these consecutive indices."""
    return Piece(1, indices.start, indices.stop)


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

    def read_into(self, name: str, out: Tensor, piece: Piece | None = None) -> None:
        """Fill the contiguous CPU tensor `out`, of the tensor's or the piece's shape, converting to its dtype. Mutates
        `out`.

        Raises ModelLoadError when the data cannot be read."""
        ...


class LinearReader(Protocol):
    """Reads matrices that only `linear` uses in a form of its own."""

    def read(
        self,
        parameters: ParameterReader,
        names: Sequence[str],
        shapes: Sequence[tuple[int, ...]],
        pieces: Sequence[Piece | None],
    ) -> LinearWeight | None:
        """Matrices of these names and shapes, which were checked, or pieces of them, stacked along the outputs; None
        leaves them to be read plain. Raises ModelLoadError when they cannot be read."""
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

    def read(self, name: str, shape: tuple[int, ...], piece: Piece | None = None) -> Tensor:
        """One tensor of exactly this shape, or a piece of it. Raises ModelLoadError when the tensor is missing or of
        another shape."""
        return self.read_stacked([name], [shape], [piece])

    def read_stacked(
        self,
        names: Sequence[str],
        shapes: Sequence[tuple[int, ...]],
        pieces: Sequence[Piece | None] | None = None,
    ) -> Tensor:
        """Several tensors as one, stacked along the first dimension; they agree in the others.

        Args:
            shapes: of the tensors in the checkpoint.
            pieces: what to take of each; None takes all.

        Every name and shape is checked before anything is allocated. Raises ModelLoadError as `read` does."""
        parts: list[tuple[str, Piece | None, tuple[int, ...]]] = []
        for name, shape, piece in zip(names, shapes, pieces or [None] * len(names), strict=True):
            self.check(name, shape)
            if piece is None or piece.is_all_of(shape):
                parts.append((name, None, shape))
            else:
                parts.append((name, piece, piece.shape_of(shape)))
        stacked = torch.empty((sum(shape[0] for *_, shape in parts), *parts[0][2][1:]), dtype=self.dtype)
        start = 0
        for name, piece, shape in parts:
            self._source.read_into(name, stacked[start : start + shape[0]], piece)
            start += shape[0]
            self.advance()
        return stacked.to(self.device)

    def read_linear(
        self,
        kernels: Kernels,
        names: Sequence[str],
        shapes: Sequence[tuple[int, ...]],
        pieces: Sequence[Piece | None],
    ) -> LinearWeight:
        """Matrices [outputs, inputs] that only `linear` uses, or pieces of them, stacked along the outputs, in the form
        of `kernels` or of the `linear_reader`. Raises ModelLoadError as `read` does."""
        for name, shape in zip(names, shapes, strict=True):
            self.check(name, shape)
        weight = None if self._linear_reader is None else self._linear_reader.read(self, names, shapes, pieces)
        return kernels.prepare_weight(self.read_stacked(names, shapes, pieces)) if weight is None else weight

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
