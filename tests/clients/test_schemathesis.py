"""What the OpenAPI document says of every endpoint is what the endpoint does, on requests that fit it and on others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ramet import LLM
from ramet.runtime.server.config import ServerConfig
from ramet.runtime.server.listener import BackgroundServer

from .conftest import Client

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
"""Left out: that a request outside of the document is refused, for unknown fields are accepted on purpose; and that one
inside of it is answered, for a document cannot say how long a prompt may be."""


@pytest.mark.timeout(600)
def test_the_document_is_right(client: Client, tmp_path: Path) -> None:
    """With a short context, as a request that gives no max_tokens may fill it."""
    client("schemathesis")
    with LLM("smollm2", max_model_len=96) as llm, BackgroundServer(llm, ServerConfig(port=0)) as server:
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"]
        command += ["--checks", ",".join(CHECKS), "--phases", "coverage,fuzzing", "--max-examples", "12", "--seed", "1"]
        command += [
            "--max-time",
            "120",
            "--request-timeout",
            "20",
            "--no-shrink",
            "--continue-on-failure",
            "--no-color",
        ]
        command += ["--suppress-health-check", "all"]
        result = subprocess.run(
            command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=500, check=False
        )
        assert result.returncode == 0, result.stdout[-20000:] + result.stderr[-2000:]
