"""A process that is interrupted as by Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def interrupted(
    arguments: Sequence[str], said: str = "ready\n", cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Run Python with these arguments, and interrupt it once it has said so.

    Returns:
        Its exit status, what it printed from then on, and what it wrote to the standard error.
    """
    command = [sys.executable, *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd, env=env
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == said
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    return process.returncode, output, errors
