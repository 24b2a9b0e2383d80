"""The C++ sampler as Python calls it. What is promised of a row is in src/sampling.h."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

_ROW = struct.Struct("=Qqqdddqq")
_CHANGES = struct.Struct("=QQqqqqqqddd")
"""Fields of ramet_sampling_row and ramet_sampling_changes, in order; neither has gaps."""

_INT, _POINTER, _INT32 = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32


class SamplingStatus(IntEnum):
    """What became of a row; ramet_sampling_status."""

    SAMPLED = 0
    NOT_FINITE = 1
    NOTHING_LEFT = 2
    OUT_OF_RANGE = 3


class PackedRows:
    """How each row of a call is sampled, packed for C++. Add the rows in order.

    Attributes:
        num_rows: rows added so far.
    """

    def __init__(self) -> None:
        self.num_rows = 0
        self.rows = bytearray()
        self.changes = bytearray()
        self.ids = array("i")
        self.biases = array("f")
        self.masks: list[Tensor] = []
        self._num_changes = 0

    def add(
        self,
        seed: int,
        sample_idx: int,
        position: int,
        temperature: float,
        top_p: float = 1.0,
        min_p: float = 0.0,
        top_k: int = 0,
        *,
        is_changed: bool = False,
    ) -> None:
        """One more row.

        Args:
            seed: in [0, 2**64).
            position: of the new token in its sequence.
            temperature: 0 is greedy.
            top_k: 0 keeps all.
            is_changed: the changes added last apply to its logits.
        """
        changes_idx = self._num_changes - 1 if is_changed else -1
        self.rows += _ROW.pack(seed, sample_idx, position, temperature, top_p, min_p, top_k, changes_idx)
        self.num_rows += 1

    def add_changes(
        self,
        *,
        allowed: Tensor | None = None,
        banned_ids: Iterable[int] = (),
        biased_ids: Iterable[int] = (),
        biases: Iterable[float] = (),
        sequence_ids: Sequence[int] = (),
        num_prompt_ids: int = 0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        vocab_size: int,
    ) -> None:
        """What the next rows change before temperature, in the order of the arguments.

        Args:
            allowed: bool [vocab], or int32 [ceil(vocab / 32)] with token i in bit i % 32 of word i // 32; on the CPU.
            banned_ids: those the vocabulary does not have are ignored.
            biased_ids, biases: one bias for each id.
            sequence_ids: prompt and output, where there are penalties.
        """
        ids_start, biases_start = len(self.ids), len(self.biases)
        self.ids.extend(banned_ids)
        num_banned = len(self.ids) - ids_start
        self.ids.extend(biased_ids)
        num_biased = len(self.ids) - ids_start - num_banned
        self.ids.extend(sequence_ids)
        self.biases.extend(biases)
        mask, mask_bits = self._mask_addresses(allowed, vocab_size)
        self.changes += _CHANGES.pack(
            mask,
            mask_bits,
            ids_start,
            num_banned,
            num_biased,
            len(sequence_ids),
            min(num_prompt_ids, len(sequence_ids)),
            biases_start,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
        )
        self._num_changes += 1

    def _mask_addresses(self, allowed: Tensor | None, vocab_size: int) -> tuple[int, int]:
        """Of a mask of bytes and of a mask of bits; 0 for the one it is not. The mask is kept until the call."""
        if allowed is None:
            return 0, 0
        assert allowed.device.type == "cpu"
        mask = allowed.contiguous()
        self.masks.append(mask)
        if mask.dtype == torch.bool:
            assert mask.shape == (vocab_size,)
            return mask.data_ptr(), 0
        assert mask.dtype == torch.int32
        assert mask.shape == (-(-vocab_size // 32),)
        return 0, mask.data_ptr()


@dataclass(frozen=True, slots=True)
class SampledRows:
    """One entry per row.

    Attributes:
        token_ids: -1 where the status is not SAMPLED.
        statuses: values of SamplingStatus.
        peaks: the largest logit as the model made it, NaN if there is a NaN.
    """

    token_ids: list[int]
    statuses: list[int]
    peaks: list[float]


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """Logprobs of one row.

    Attributes:
        own_logprob: of the token asked for; NaN if the row's logits are not finite.
        own_rank: 1 for the most likely; of equals the lower id comes first.
        listed: (token id, logprob) of the most likely tokens, in order.
    """

    own_logprob: float
    own_rank: int
    listed: list[tuple[int, float]]


class SamplingKernels:
    """`ramet_sample` and `ramet_logprobs` of a loaded library. Calls release the GIL; safe to use from several threads.

    Args:
        library: the loaded C++ library.
        num_threads: OpenMP threads of a call; results do not depend on it.
    """

    def __init__(self, library: ctypes.CDLL, num_threads: int) -> None:
        assert num_threads >= 1
        self._num_threads = num_threads
        self._sample = library["ramet_sample"]
        self._sample.argtypes = [_POINTER, _INT, _INT, _INT, *[_POINTER] * 7, _INT32]
        self._sample.restype = None
        self._logprobs = library["ramet_logprobs"]
        self._logprobs.argtypes = [_POINTER, _INT, _INT, _INT, *[_POINTER] * 3, _INT, *[_POINTER] * 5, _INT32]
        self._logprobs.restype = None

    def sample(self, logits: Tensor, packed: PackedRows) -> SampledRows:
        """One token per row.

        Args:
            logits: fp32 [R, vocab] on the CPU, each row packed in memory; not changed.
            packed: R rows.

        Cost: one pass over a greedy row; two or three, one of them an exponential per logit, over a sampled one; a
        hash per token that top-k, top-p and min-p leave.
        """
        num_rows, vocab_size = _checked_shape(logits)
        assert packed.num_rows == num_rows
        if num_rows == 0:
            return SampledRows([], [], [])
        token_ids, statuses, peaks = array("i", [0]) * num_rows, array("i", [0]) * num_rows, array("f", [0]) * num_rows
        self._sample(
            logits.data_ptr(),
            logits.stride(0),
            vocab_size,
            num_rows,
            _address_of(packed.rows),
            _address_of(packed.changes),
            _address_of(packed.ids),
            _address_of(packed.biases),
            _address_of(token_ids),
            _address_of(statuses),
            _address_of(peaks),
            self._num_threads,
        )
        return SampledRows(token_ids.tolist(), statuses.tolist(), peaks.tolist())

    def logprobs(
        self, logits: Tensor, row_indices: Sequence[int], token_ids: Sequence[int], top_ns: Sequence[int]
    ) -> list[RowLogprobs]:
        """Logprobs of rows `row_indices` of logits [R, vocab] under the model's own distribution.

        Args:
            logits: fp32 on the CPU, each row packed in memory.
            token_ids: the token of each row whose logprob is wanted.
            top_ns: how many of the most likely tokens to list of each row; more than the vocabulary counts as all.

        Cost: an exponential per logit, and a selection over the vocabulary where tokens are listed.
        """
        vocab_size = _checked_shape(logits)[1]
        num_rows = len(row_indices)
        if num_rows == 0:
            return []
        width = min(max(top_ns), vocab_size)
        own_logprobs, own_ranks, num_listed = (
            array("d", [0]) * num_rows,
            array("i", [0]) * num_rows,
            array("i", [0]) * num_rows,
        )
        listed_ids = array("i", [0]) * (num_rows * width)
        listed_logprobs = array("d", [0]) * (num_rows * width)
        inputs = [array("i", row_indices), array("i", token_ids), array("i", [min(n, vocab_size) for n in top_ns])]
        self._logprobs(
            logits.data_ptr(),
            logits.stride(0),
            vocab_size,
            num_rows,
            *[_address_of(values) for values in inputs],
            width,
            *[_address_of(values) for values in (own_logprobs, own_ranks, num_listed, listed_ids, listed_logprobs)],
            self._num_threads,
        )
        results = []
        for idx in range(num_rows):
            listed = slice(idx * width, idx * width + num_listed[idx])
            pairs = list(zip(listed_ids[listed], listed_logprobs[listed], strict=True))
            results.append(RowLogprobs(own_logprobs[idx], own_ranks[idx], pairs))
        return results


def _checked_shape(logits: Tensor) -> tuple[int, int]:
    assert logits.dtype == torch.float32
    assert logits.device.type == "cpu"
    assert logits.ndim == 2
    assert logits.stride(1) == 1 or logits.shape[1] == 1
    return logits.shape[0], logits.shape[1]


def _address_of(values: bytearray | array[int] | array[float]) -> int | None:
    """Where the values lie in memory; valid while they are neither resized nor dropped."""
    if isinstance(values, array):
        return values.buffer_info()[0]
    return ctypes.addressof(ctypes.c_char.from_buffer(values)) if values else None
