"""lm-evaluation-harness over /v1/completions with the server's tokenizer: what it reads is what the model says.

Its log-likelihoods are compared with those of an engine without a prefix cache, bit by bit, while the server's cache is
cold, when it is hot, and with requests that run at the same time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ramet import LLM, SamplingParams
from ramet.runtime.server.listener import BackgroundServer

from .conftest import Client

TASKS = Path(__file__).parent / "tasks"
NUM_ITEMS = 4


@pytest.fixture(scope="module")
def uncached() -> Iterator[LLM]:
    with LLM("smollm2", enable_prefix_caching=False) as llm:
        yield llm


@pytest.fixture
def folder(data: Path, tmp_path: Path) -> Path:
    """Some items of each data set, where the tasks look for them."""
    bbh = json.loads((data / "bbh" / "boolean_expressions.json").read_text(encoding="utf-8"))["examples"]
    gsm8k = [json.loads(line) for line in (data / "gsm8k" / "test.jsonl").read_text(encoding="utf-8").splitlines()[:9]]
    for name, items in (("bbh", bbh), ("gsm8k", gsm8k)):
        _write(tmp_path / f"{name}_shots.jsonl", items[:3])
        _write(tmp_path / f"{name}_test.jsonl", items[3 : 3 + NUM_ITEMS])
    return tmp_path


def _write(path: Path, items: list[Any]) -> None:
    path.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")


def evaluate(server: BackgroundServer, folder: Path, task: str, *, num_concurrent: int, batch_size: int) -> list[Any]:
    """Run the command line and return its samples, in the order of the items."""
    target = folder / f"out-{num_concurrent}-{batch_size}-{len(list(folder.iterdir()))}"
    model_args = {
        "model": "smollm2",
        "base_url": f"{server.url}/v1/completions",
        "tokenizer_backend": "remote",
        "num_concurrent": num_concurrent,
        "max_retries": 1,
        "max_length": 2048,
    }
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--tasks", task]
    command += ["--model_args", ",".join(f"{name}={value}" for name, value in model_args.items())]
    command += ["--include_path", str(TASKS), "--batch_size", str(batch_size), "--log_samples"]
    command += ["--output_path", str(target)]
    environment = {**os.environ, "OPENAI_API_KEY": "none", "HF_HOME": str(folder / "hf")}
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=250, check=False
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-6000:]
    (samples,) = target.rglob("samples_*.jsonl")
    rows = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == NUM_ITEMS
    return sorted(rows, key=lambda row: int(row["doc_id"]))


def direct(llm: LLM, context: str, continuation: str) -> tuple[float, bool]:
    """The log-likelihood of a continuation, and whether the model would have written it by itself."""
    context_len = len(llm.tokenizer.encode(context))
    token_ids = llm.tokenizer.encode(context + continuation)
    (output,) = llm.generate(
        {"prompt_token_ids": token_ids}, SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1)
    )
    assert output.prompt_logprobs is not None
    entries = [entry for entry in output.prompt_logprobs[context_len:] if entry is not None]
    logprobs = [entry[token_id].logprob for entry, token_id in zip(entries, token_ids[context_len:], strict=True)]
    is_greedy = all(
        logprob == max(other.logprob for other in entry.values())
        for logprob, entry in zip(logprobs, entries, strict=True)
    )
    return sum(logprobs), is_greedy


def test_log_likelihoods_are_those_of_the_model_whatever_the_cache_holds(
    client: Client, server: BackgroundServer, folder: Path, uncached: LLM
) -> None:
    client("lm_eval")
    server.service.llm.reset_prefix_cache()
    cold = evaluate(server, folder, "ramet_bbh_boolean", num_concurrent=1, batch_size=1)
    before = server.service.llm.metrics()
    hot = evaluate(server, folder, "ramet_bbh_boolean", num_concurrent=3, batch_size=2)
    after = server.service.llm.metrics()
    assert after.num_cached_tokens > before.num_cached_tokens
    seen = set()
    for rows in (cold, hot):
        for row in rows:
            for idx, answers in enumerate(row["resps"]):
                arguments = row["arguments"][f"gen_args_{idx}"]
                expected = direct(uncached, arguments["arg_0"], arguments["arg_1"])
                (answer,) = answers
                assert (float(answer[0]), str(answer[1])) == (expected[0], str(expected[1]))
                seen.add(expected[1])
    assert seen == {True, False}, "the items must show both a greedy continuation and another"


def test_generated_answers_are_those_of_the_model(
    client: Client, server: BackgroundServer, folder: Path, uncached: LLM
) -> None:
    client("lm_eval")
    rows = evaluate(server, folder, "ramet_gsm8k", num_concurrent=2, batch_size=1)
    for row in rows:
        arguments = row["arguments"]["gen_args_0"]
        until = arguments["arg_1"]["until"]
        assert arguments["arg_0"].count("Question:") == 3
        params = SamplingParams(max_tokens=24, temperature=0.0, stop=until)
        prompt = {"prompt_token_ids": uncached.tokenizer.encode(arguments["arg_0"])}
        (output,) = uncached.generate(prompt, params)
        assert row["resps"] == [[output.outputs[0].text]]
