"""guidellm loads the server with streamed requests that share prefixes; its report says what the server says.

It is installed without its dependencies: requirements/clients.txt says how.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ramet.runtime.server.listener import BackgroundServer

from .conftest import Client

NUM_REQUESTS = 20
NUM_STREAMS = 4
NUM_PREFIXES = 2
PREFIX_LEN = 64
PROMPT_LEN = 24
OUTPUT_LEN = 6


@pytest.fixture(scope="module")
def tokenizer_folder(server: BackgroundServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's tokenizer as transformers reads it: guidellm makes prompts of a given length with it."""
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "tokenizer.json").write_text(server.service.llm.tokenizer.to_json(), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}', encoding="utf-8")
    return folder


def load(server: BackgroundServer, tokenizer_folder: Path, folder: Path, path: str) -> tuple[Any, list[Any]]:
    """Run the command line and return what it reports: its metrics, and the requests that succeeded."""
    report = folder / "report.json"
    options = {
        "--backend": f"kind=openai_http,target={server.url},model=smollm2,request_format={path}",
        "--tokenizer": f"kind=huggingface_auto,model={tokenizer_folder}",
        "--data": f"kind=synthetic_text,prompt_tokens={PROMPT_LEN},output_tokens={OUTPUT_LEN},"
        f"prefix_count={NUM_PREFIXES},prefix_tokens={PREFIX_LEN}",
        "--profile": f"kind=concurrent,streams={NUM_STREAMS}",
        "--constraint": f"kind=max_requests,count={NUM_REQUESTS}",
        "--output": f"kind=json,path={report}",
    }
    command = [sys.executable, "-m", "guidellm", "run", "--disable-console"]
    command += [word for option in options.items() for word in option]
    environment = {**os.environ, "HF_HOME": str(folder / "hf"), "GUIDELLM__MAX_WORKER_PROCESSES": "1"}
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-6000:]
    (benchmark,) = json.loads(report.read_text(encoding="utf-8"))["benchmarks"]
    return benchmark["metrics"], benchmark["requests"]["successful"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("path", "num_extra"),
    [
        pytest.param("/v1/completions", 1, id="completions"),  # what joins the prefix and the rest
        pytest.param("/v1/chat/completions", 14, id="chat"),  # the template's tokens around both
    ],
)
def test_every_request_succeeds_and_is_counted_right(
    client: Client, server: BackgroundServer, tokenizer_folder: Path, tmp_path: Path, path: str, num_extra: int
) -> None:
    client("guidellm")
    llm = server.service.llm
    llm.reset_prefix_cache()
    before = llm.metrics()
    metrics, requests = load(server, tokenizer_folder, tmp_path, path)
    after = llm.metrics()

    totals = metrics["request_totals"]
    assert (totals["successful"], totals["errored"], totals["incomplete"]) == (NUM_REQUESTS, 0, 0)
    assert len(requests) == NUM_REQUESTS
    for request in requests:
        assert json.loads(request["request_args"])["body"]["stream"]
        assert request["prompt_tokens"] == PREFIX_LEN + PROMPT_LEN + num_extra
        assert request["output_tokens"] == OUTPUT_LEN
        assert 0 < request["time_to_first_token_ms"] <= 1000 * request["request_latency"]
        assert request["inter_token_latency_ms"] > 0
    for name in ("time_to_first_token_ms", "inter_token_latency_ms"):
        assert math.isfinite(metrics[name]["successful"]["mean"])

    # What it was told adds up to what the engine did.
    cached = [request["cached_tokens"] or 0 for request in requests]
    assert sum(request["prompt_tokens"] for request in requests) == after.num_prompt_tokens - before.num_prompt_tokens
    assert sum(request["output_tokens"] for request in requests) == (
        after.num_generated_tokens - before.num_generated_tokens
    )
    assert sum(cached) == after.num_cached_tokens - before.num_cached_tokens
    # Of each prefix, those that run beside the first one may miss it; a boundary may cost the prefix a token.
    num_sure = NUM_REQUESTS - NUM_PREFIXES * NUM_STREAMS
    assert sum(num_cached >= PREFIX_LEN - 2 for num_cached in cached) >= num_sure, cached
