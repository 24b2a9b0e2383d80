"""OpenVINO GenAI's continuous batching with prefix caching.

Weights are int8 a row, made by NNCF from the dequantised ones; or the 4 bits of the GGUF file as OpenVINO reads them.
Prompts that arrive together compute a common prefix once each, so it is sent ahead (`primes_prefix`).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai

from ..workloads import Shape, UnsupportedError

CACHE_GIB = 2
TOKENS_PER_STEP = 512
"""The most that a step computes."""


class OpenVinoSession:
    """See `workloads.Session`."""

    primes_prefix = True

    def __init__(self, directory: str, num_threads: int) -> None:
        self._directory = directory
        self._num_threads = num_threads
        self._pipeline: Any = None

    def begin(self, shape: Shape) -> None:
        """A new pipeline, for the cache of one cannot be emptied, that has met steps of the sizes to come."""
        self._pipeline = None
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GIB
        scheduler.max_num_batched_tokens = TOKENS_PER_STEP
        scheduler.max_num_seqs = max(shape.num_sequences, 1)
        scheduler.enable_prefix_caching = True
        scheduler.dynamic_split_fuse = True
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            self._directory,
            openvino_genai.Tokenizer(self._directory),
            scheduler,
            "CPU",
            INFERENCE_NUM_THREADS=self._num_threads,
        )
        unlike = list(range(1, TOKENS_PER_STEP + 1))  # nothing of it is in any prompt
        self.generate([unlike], 2)
        self.generate([[token_id] for token_id in unlike[: shape.num_sequences]], 2)

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        tensors = [openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        results = self._pipeline.generate(tensors, [_greedy(num_tokens)] * len(prompts))
        return [list(result.m_generation_ids[0]) for result in results]

    def choose(self, prefix: list[int], questions: list[list[int]], choices: list[list[int]]) -> list[int]:
        raise UnsupportedError("no way to score given tokens behind a cached prefix")

    def close(self) -> None:
        self._pipeline = None


def _greedy(num_tokens: int) -> Any:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = num_tokens
    config.ignore_eos = True
    config.do_sample = False
    return config


def prepare(options: dict[str, Any]) -> dict[str, Any]:
    """A directory with the model in OpenVINO's form, made once and kept."""
    target = Path(options["cache"]) / f"openvino-{options['weights']}"
    if not target.exists():
        partial = target.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        source = options["gguf"] if options["weights"] == "u4" else options["fp16_gguf"]
        _convert(Path(source), partial, is_compressed=options["weights"] == "int8")
        partial.rename(target)
    return {"directory": str(target)}


def _convert(source: Path, target: Path, *, is_compressed: bool) -> None:
    """OpenVINO writes what it made of a GGUF file beside that file."""
    local = target / "model.gguf"
    local.symlink_to(source)
    openvino_genai.LLMPipeline(str(local), "CPU", enable_save_ov_model=True)
    local.unlink()
    if is_compressed:
        import nncf

        path = target / "openvino_model.xml"
        model = openvino.Core().read_model(path)
        compressed = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
        smaller = target / "compressed.xml"
        openvino.save_model(compressed, smaller)
        del model, compressed
        for suffix in (".xml", ".bin"):
            smaller.with_suffix(suffix).replace(path.with_suffix(suffix))


def open_session(options: dict[str, Any]) -> OpenVinoSession:
    return OpenVinoSession(prepare(options)["directory"], options["threads"])


def details(session: OpenVinoSession) -> str:
    return f"at most {TOKENS_PER_STEP} tokens a step"
