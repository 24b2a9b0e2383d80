"""transformers in fp32: `generate` over batches of prompts of one length, with its caches reused by hand.

A conversation goes on in the cache it was made in; a prefix common to the prompts of a call is computed once and its
cache repeated for each; one that was seen before is not computed again.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from ..workloads import Shape
from .prefixes import common_prefix_len

MIN_SHARED_TOKENS = 16


class TransformersSession:
    """See `workloads.Session`."""

    primes_prefix = False

    def __init__(self, directory: str, num_threads: int) -> None:
        torch.set_num_threads(num_threads)
        model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, local_files_only=True)
        self.model = model.eval()
        self._forget()

    def _forget(self) -> None:
        self._rows: list[list[int]] = []
        self._rows_cache = DynamicCache(config=self.model.config)
        self._prefix: list[int] = []
        self._prefix_cache = DynamicCache(config=self.model.config)

    def begin(self, shape: Shape) -> None:
        self._forget()

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        token_ids = torch.tensor(prompts)
        cache = self._cache_for(prompts)
        sequences = self.model.generate(
            token_ids,
            attention_mask=torch.ones_like(token_ids),
            past_key_values=cache,
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
        self._rows = sequences[:, :-1].tolist()  # the last token is not in the cache
        self._rows_cache = cache
        return sequences[:, token_ids.shape[1] :].tolist()

    @torch.inference_mode()
    def choose(self, prefix: list[int], questions: list[list[int]], choices: list[list[int]]) -> list[int]:
        """The questions are computed once; each choice is then appended to all of them and cropped off again."""
        prompts = [prefix + question for question in questions]
        cache = self._cache_for(prompts)
        start = cache.get_seq_length()
        output = self.model(torch.tensor(prompts)[:, start:], past_key_values=cache, logits_to_keep=1)
        first_rows = output.logits
        scores = []
        for choice in choices:
            rows = first_rows
            if len(choice) > 1:
                tokens = torch.tensor([choice[:-1]] * len(questions))
                rows = torch.cat([rows, self.model(tokens, past_key_values=cache).logits], dim=1)
                cache.crop(-(len(choice) - 1))
            logprobs = rows.log_softmax(-1).gather(-1, torch.tensor(choice).expand(len(questions), -1)[..., None])
            scores.append(logprobs[..., 0].mean(-1))
        return torch.stack(scores, dim=1).argmax(-1).tolist()

    @torch.inference_mode()
    def token_scores(self, token_ids: list[int]) -> tuple[list[float], list[int]]:
        """See `quality_job.ScoringSession`."""
        rows = self.model(torch.tensor([token_ids[:-1]])).logits[0]
        nll = torch.nn.functional.cross_entropy(rows, torch.tensor(token_ids[1:]), reduction="none")
        return nll.tolist(), rows.argmax(-1).tolist()

    def close(self) -> None:
        self._forget()

    def _cache_for(self, prompts: list[list[int]]) -> DynamicCache:
        """A cache whose rows are the beginnings of the prompts, as long as can be had; mutated by its user."""
        if len(self._rows) == len(prompts) and all(
            len(row) < len(prompt) and prompt[: len(row)] == row
            for row, prompt in zip(self._rows, prompts, strict=True)
        ):
            return self._rows_cache
        if len(prompts) > 1:
            self._compute_prefix(prompts)
        length = len(self._prefix)
        cache = DynamicCache(config=self.model.config)
        if length and all(len(prompt) > length and prompt[:length] == self._prefix for prompt in prompts):
            cache = copy.deepcopy(self._prefix_cache)
            cache.batch_repeat_interleave(len(prompts))
        return cache

    def _compute_prefix(self, prompts: list[list[int]]) -> None:
        common = min(common_prefix_len(prompts), len(prompts[0]) - 1)
        if common < MIN_SHARED_TOKENS or prompts[0][:common] == self._prefix:
            return
        self._prefix = prompts[0][:common]
        self._prefix_cache = DynamicCache(config=self.model.config)
        self.model(torch.tensor([self._prefix]), past_key_values=self._prefix_cache, logits_to_keep=1)


def open_session(options: dict[str, Any]) -> TransformersSession:
    return TransformersSession(options["fp32"], options["threads"])


def details(session: TransformersSession) -> str:
    return str(session.model.config._attn_implementation)
