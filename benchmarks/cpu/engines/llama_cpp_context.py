"""A llama.cpp context as plain calls: sequences, batches of tokens, rows of logits. Through its C interface."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import llama_cpp
import numpy as np
from numpy.typing import NDArray

BATCH_TOKENS = 2048
MICRO_BATCH_TOKENS = 512
CELLS_MULTIPLE = 256

Kept = TypeVar("Kept")


@dataclass(frozen=True)
class Piece:
    """Tokens to compute at the end of one sequence.

    Attributes:
        num_logit_rows: logits are wanted for this many of the last tokens.
    """

    sequence_id: int
    start: int
    token_ids: list[int]
    num_logit_rows: int = 1


class LlamaContext:
    """KV cells for some sequences of one model.

    Args:
        num_cells: tokens held in all if `is_unified`, of the longest sequence otherwise.
        is_unified: the sequences share their cells, so that a common prefix is held once. Each then looks at the
            cells of all, which is slow where little is shared.
    """

    def __init__(self, model: Any, *, num_sequences: int, num_cells: int, is_unified: bool, num_threads: int) -> None:
        params = llama_cpp.llama_context_default_params()
        cells = -(-num_cells // CELLS_MULTIPLE) * CELLS_MULTIPLE
        params.n_ctx = cells if is_unified else cells * num_sequences
        params.n_batch = BATCH_TOKENS
        params.n_ubatch = MICRO_BATCH_TOKENS
        params.n_seq_max = num_sequences
        params.n_threads = params.n_threads_batch = num_threads
        params.kv_unified = is_unified
        params.no_perf = True
        self._context = llama_cpp.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp made no context of {num_sequences} sequences and {params.n_ctx} cells")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)

    def copy(self, source_id: int, target_id: int, num_tokens: int) -> None:
        """Let a sequence begin with the first tokens of another one; what it held is dropped."""
        self.truncate(target_id, 0)
        llama_cpp.llama_memory_seq_cp(self._memory, source_id, target_id, 0, num_tokens)

    def truncate(self, sequence_id: int, num_tokens: int) -> None:
        llama_cpp.llama_memory_seq_rm(self._memory, sequence_id, num_tokens, -1)

    def compute(self, pieces: list[Piece], keep: Callable[[NDArray[np.float32]], Kept]) -> list[list[Kept]]:
        """Compute all pieces, in as few batches as they fit.

        Args:
            keep: what is wanted of a row of logits [vocab], which is only there during the call.
        """
        kept: list[list[Kept]] = [[] for _ in pieces]
        waiting = [(idx, offset) for idx, piece in enumerate(pieces) for offset in range(len(piece.token_ids))]
        for start in range(0, len(waiting), BATCH_TOKENS):
            part = waiting[start : start + BATCH_TOKENS]
            wanted = [self._fill(row, pieces[idx], offset) for row, (idx, offset) in enumerate(part)]
            self._batch.n_tokens = len(part)
            status = llama_cpp.llama_decode(self._context, self._batch)
            if status != 0:
                raise RuntimeError(f"llama_decode failed with status {status}")
            for row, (idx, _) in enumerate(part):
                if wanted[row]:
                    kept[idx].append(keep(self._logits(row)))
        return kept

    def _fill(self, row: int, piece: Piece, offset: int) -> bool:
        batch = self._batch
        is_wanted = offset >= len(piece.token_ids) - piece.num_logit_rows
        batch.token[row] = piece.token_ids[offset]
        batch.pos[row] = piece.start + offset
        batch.n_seq_id[row] = 1
        batch.seq_id[row][0] = piece.sequence_id
        batch.logits[row] = is_wanted
        return is_wanted

    def _logits(self, row: int) -> NDArray[np.float32]:
        pointer = llama_cpp.llama_get_logits_ith(self._context, row)
        return np.ctypeslib.as_array(pointer, (self._vocab_size,))

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)


def load_model(path: str) -> Any:
    llama_cpp.llama_backend_init()
    llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))
    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    if not model:
        raise RuntimeError(f"llama.cpp could not load {path}")
    return model


def quantize(source: str, target: str, type_name: str) -> None:
    """Write a GGUF file as another one of the type "Q4_0" or "Q8_0", quantised tensors included."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = {"Q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0, "Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0}[type_name]
    params.allow_requantize = True
    llama_cpp.llama_backend_init()
    llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))
    status = llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params))
    if status != 0:
        raise RuntimeError(f"llama_model_quantize to {type_name} failed with status {status}")


@llama_cpp.llama_log_callback
def _silent(level: int, text: bytes, user_data: Any) -> None:
    """llama.cpp writes hundreds of lines otherwise."""


def built_with() -> str:
    """The instruction sets and features that llama.cpp was built with."""
    return " ".join(re.findall(r"(\w+) = 1", llama_cpp.llama_print_system_info().decode()))
