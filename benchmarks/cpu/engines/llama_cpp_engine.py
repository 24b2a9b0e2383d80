"""llama.cpp with batches and sequence copies written by hand, as its fastest users do.

What sequences hold is remembered, and a prompt begins with the longest part of it that one of them has: in place for
the next turn of a chat, by a copy of cells where a prefix is shared. A prefix common to the prompts of a call is
computed once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..workloads import Shape
from .llama_cpp_context import LlamaContext, Piece, built_with, load_model, quantize
from .prefixes import common_prefix_len

MIN_SHARED_TOKENS = 16

Row = NDArray[np.float32]
Kept = TypeVar("Kept")


class LlamaCppSession:
    """See `workloads.Session`."""

    primes_prefix = False

    def __init__(self, model_path: str, num_threads: int) -> None:
        self._model = load_model(model_path)
        self._num_threads = num_threads
        self._context: LlamaContext | None = None
        self._can_copy = False  # part of a sequence, which needs one pool of cells for all of them
        self._held: list[list[int]] = []

    def begin(self, shape: Shape) -> None:
        self.close()
        self._context = LlamaContext(
            self._model,
            num_sequences=shape.num_sequences,
            num_cells=shape.num_tokens if shape.is_shared else shape.max_len,
            is_unified=shape.is_shared,
            num_threads=self._num_threads,
        )
        self._can_copy = shape.is_shared
        self._held = [[] for _ in range(shape.num_sequences)]

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        sequence_ids, newest = self._prefill(prompts, best_token)
        replies = [[token_id] for token_id in newest]
        for _ in range(num_tokens - 1):
            newest = self._extend(sequence_ids, [[token_id] for token_id in newest], best_token)
            for reply, token_id in zip(replies, newest, strict=True):
                reply.append(token_id)
        return replies

    def choose(self, prefix: list[int], questions: list[list[int]], choices: list[list[int]]) -> list[int]:
        """The questions are computed once; then each choice is appended to all of them and taken off again."""
        sequence_ids, first_rows = self._prefill([prefix + question for question in questions], np.copy)
        scores = np.zeros((len(questions), len(choices)))
        for choice_idx, choice in enumerate(choices):
            later_rows = self._try_out(sequence_ids, choice[:-1])
            for idx, (first, later) in enumerate(zip(first_rows, later_rows, strict=True)):
                scores[idx, choice_idx] = logprobs(np.stack([first, *later]), choice).mean()
        return [int(best) for best in scores.argmax(axis=1)]

    def _try_out(self, sequence_ids: list[int], token_ids: list[int]) -> list[list[Row]]:
        """The rows of logits after each of the tokens behind every sequence, which are left as they were."""
        if not token_ids:
            return [[] for _ in sequence_ids]
        starts = [len(self._held[sequence_id]) for sequence_id in sequence_ids]
        pieces = [
            Piece(sequence_id, start, token_ids, len(token_ids))
            for sequence_id, start in zip(sequence_ids, starts, strict=True)
        ]
        rows = self._open_context.compute(pieces, np.copy)
        for sequence_id, start in zip(sequence_ids, starts, strict=True):
            self._open_context.truncate(sequence_id, start)
        return rows

    def token_scores(self, token_ids: list[int]) -> tuple[list[float], list[int]]:
        """See `quality_job.ScoringSession`."""
        num_rows = len(token_ids) - 1
        self.begin(Shape(1, num_rows, num_rows, is_shared=False))
        (rows,) = self._open_context.compute([Piece(0, 0, token_ids[:-1], num_rows)], np.copy)
        logits = np.stack(rows)
        return (-logprobs(logits, token_ids[1:])).tolist(), logits.argmax(axis=1).tolist()

    def close(self) -> None:
        if self._context is not None:
            self._context.close()
            self._context = None

    @property
    def _open_context(self) -> LlamaContext:
        assert self._context is not None
        return self._context

    def _prefill(self, prompts: list[list[int]], keep: Callable[[Row], Kept]) -> tuple[list[int], list[Kept]]:
        """Give each prompt a sequence and compute what that does not hold yet; what to keep of the logits after it."""
        if len(prompts) > 1 and self._can_copy:
            self._compute_common_prefix(prompts)
        sequence_ids = self._assign(prompts)
        tails = [
            prompt[len(self._held[sequence_id]) :] for prompt, sequence_id in zip(prompts, sequence_ids, strict=True)
        ]
        return sequence_ids, self._extend(sequence_ids, tails, keep)

    def _compute_common_prefix(self, prompts: list[list[int]]) -> None:
        common = common_prefix_len(prompts)
        prefix = prompts[0][:common]
        if common < MIN_SHARED_TOKENS or any(held[:common] == prefix for held in self._held):
            return
        (sequence_id,) = self._assign([prefix])
        self._extend([sequence_id], [prefix[len(self._held[sequence_id]) :]], best_token)

    def _assign(self, prompts: list[list[int]]) -> list[int]:
        """A sequence for each prompt that holds as much of it as any does; at least its last token is left over.

        A sequence that a prompt continues in full is taken over; others are copied from.
        """
        owners: dict[int, int] = {}
        for idx, prompt in enumerate(prompts):
            for sequence_id, held in enumerate(self._held):
                if held and sequence_id not in owners and len(held) < len(prompt) and prompt[: len(held)] == held:
                    owners[sequence_id] = idx
                    break
        taken = {idx: sequence_id for sequence_id, idx in owners.items()}
        sources = {idx: self._best_source(prompt) for idx, prompt in enumerate(prompts) if idx not in taken}
        needed = {source_id for source_id, num_tokens in sources.values() if num_tokens}
        free = [sequence_id for sequence_id in range(len(self._held)) if sequence_id not in owners]
        free.sort(key=lambda sequence_id: sequence_id in needed)
        for idx, (source_id, num_tokens) in sources.items():
            target_id = free.pop(0)
            needed_later = {later_id for later, (later_id, num) in sources.items() if later > idx and num}
            assert target_id not in needed_later, "a sequence would be overwritten before it is copied"
            if num_tokens and target_id != source_id:
                self._open_context.copy(source_id, target_id, num_tokens)
            else:
                self._open_context.truncate(target_id, num_tokens)
            self._held[target_id] = prompts[idx][:num_tokens]
            taken[idx] = target_id
        for sequence_id in free:  # nobody's any more
            self._open_context.truncate(sequence_id, 0)
            self._held[sequence_id] = []
        return [taken[idx] for idx in range(len(prompts))]

    def _best_source(self, prompt: list[int]) -> tuple[int, int]:
        """The sequence that has the most of a prompt's beginning, and how many tokens that are."""
        if not self._can_copy:
            return 0, 0
        lengths = [min(common_prefix_len([held, prompt]), len(prompt) - 1) for held in self._held]
        longest = max(lengths)
        return lengths.index(longest), longest

    def _extend(self, sequence_ids: list[int], tails: list[list[int]], keep: Callable[[Row], Kept]) -> list[Kept]:
        """Compute more tokens of some sequences; what to keep of the logits after the last of each."""
        pieces = [
            Piece(sequence_id, len(self._held[sequence_id]), tail)
            for sequence_id, tail in zip(sequence_ids, tails, strict=True)
        ]
        kept = self._open_context.compute(pieces, keep)
        for sequence_id, tail in zip(sequence_ids, tails, strict=True):
            self._held[sequence_id] = self._held[sequence_id] + tail
        return [last for (last,) in kept]


def best_token(row: Row) -> int:
    return int(row.argmax())


def logprobs(logits: Row, token_ids: list[int]) -> Row:
    """Log-probabilities of tokens under the rows [tokens, vocab] that predict them."""
    highest = logits.max(axis=1)
    log_sums = highest + np.log(np.exp(logits - highest[:, None]).sum(axis=1))
    return logits[np.arange(len(token_ids)), token_ids] - log_sums


def prepare(options: dict[str, Any]) -> dict[str, Any]:
    """The model file of the wanted type, made once and kept."""
    source, type_name = options["gguf"], options.get("type")
    if type_name is None:
        return {"model": source}
    target = Path(options["cache"]) / f"{type_name.lower()}.gguf"
    if not target.exists():
        partial = target.with_suffix(".partial")
        quantize(source, str(partial), type_name)
        partial.rename(target)
    return {"model": str(target)}


def open_session(options: dict[str, Any]) -> LlamaCppSession:
    return LlamaCppSession(prepare(options)["model"], options["threads"])


def details(session: LlamaCppSession) -> str:
    return built_with()
