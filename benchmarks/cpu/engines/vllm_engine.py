"""vLLM's CPU build with its defaults: compiled model, prefix caching, all prompts of a call submitted together."""

from __future__ import annotations

import os
from typing import Any

from ..workloads import Shape

CACHE_GIB = 4
FORCED = "forced_token_ids"


class VllmSession:
    """See `workloads.Session`."""

    primes_prefix = False

    def __init__(self, directory: str, num_threads: int, dtype: str) -> None:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # no process between the caller and the engine
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(CACHE_GIB))
        cores = sorted(os.sched_getaffinity(0))[:num_threads]
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores)))
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        import vllm

        from .vllm_forcing import ForcedTokens

        self._vllm = vllm
        self._llm: Any = vllm.LLM(
            model=directory,
            dtype=dtype,
            skip_tokenizer_init=True,
            enable_prefix_caching=True,
            max_model_len=2048,
            disable_log_stats=True,
            logits_processors=[ForcedTokens],
        )

    def begin(self, shape: Shape) -> None:
        self._llm.reset_prefix_cache()

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        params = self._vllm.SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        outputs = self._llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    def choose(self, prefix: list[int], questions: list[list[int]], choices: list[list[int]]) -> list[int]:
        """One request a choice, made to generate just that; the log-probabilities reported are the model's own.

        (Those of a prompt's tokens would do as well, but for them vLLM computes the whole prompt, prefix included.)
        """
        prompts = [{"prompt_token_ids": prefix + question} for question in questions for _ in choices]
        params = [self._forced(choice) for choice in choices] * len(questions)
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        means = [_mean_logprob(output.outputs[0], choices[idx % len(choices)]) for idx, output in enumerate(outputs)]
        rows = [means[start : start + len(choices)] for start in range(0, len(means), len(choices))]
        return [row.index(max(row)) for row in rows]

    def _forced(self, choice: list[int]) -> Any:
        return self._vllm.SamplingParams(
            temperature=0.0,
            max_tokens=len(choice),
            ignore_eos=True,
            detokenize=False,
            logprobs=0,
            extra_args={FORCED: choice},
        )

    def close(self) -> None:
        self._llm = None


def _mean_logprob(completion: Any, choice: list[int]) -> float:
    assert list(completion.token_ids) == choice
    logprobs = [entry[token_id].logprob for entry, token_id in zip(completion.logprobs, choice, strict=True)]
    return sum(logprobs) / len(logprobs)


def open_session(options: dict[str, Any]) -> VllmSession:
    return VllmSession(options["fp32"], options["threads"], options["dtype"])


def details(session: VllmSession) -> str:
    return f"{CACHE_GIB} GiB of cache"
