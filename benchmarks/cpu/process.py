"""Runs a job in a fresh process of a given Python, and says why when it fails."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent
MAX_REASON = 160


class JobError(Exception):
    """The job did not end well. The message is one line, for the table."""


def run_job(
    python: str,
    module: str,
    options: Mapping[str, Any],
    *,
    timeout: float,
    environment: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> Any:
    """Run `module` of this package in `python` and return its result.

    The package is found as `cpu` by its folder, and the process starts elsewhere: the repository itself is not on the
    path, where its `kernels` and `radix` would be taken for packages of those names.

    Args:
        environment: added to this process's own.
        log: what it prints is appended here.

    Raises:
        JobError: there is no such Python, it ended with an error, or it took longer than `timeout` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="ramet-bench-") as folder:
        options_path, result_path = Path(folder, "options.json"), Path(folder, "result.json")
        options_path.write_text(json.dumps(dict(options)), encoding="utf-8")
        command = [python, "-m", f"{PACKAGE.name}.worker", module, str(options_path), str(result_path)]
        env = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "HF_HUB_OFFLINE": "1", **(environment or {})}
        output = _run(command, folder, env, timeout)
        if log is not None:
            with log.open("a", encoding="utf-8") as file:
                file.write(f"==== {module} {options.get('name', '')}\n{output.text}\n")
        if output.reason is not None:
            raise JobError(output.reason)
        if not result_path.exists():
            raise JobError(_last_line(output.text) or "it wrote no result")
        return json.loads(result_path.read_text(encoding="utf-8"))


class _Output:
    def __init__(self, text: str, reason: str | None) -> None:
        self.text = text
        self.reason = reason


def _run(command: list[str], folder: str, env: Mapping[str, str], timeout: float) -> _Output:
    """Standard output and error go to a file: a pipe would stay open as long as a child of the child lives."""
    with open(Path(folder, "output"), "w+b") as file:
        try:
            process = subprocess.Popen(
                command, cwd=folder, env=env, stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            return _Output("", f"cannot start {command[0]}: {error.strerror}")
        status: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            try:
                status = process.wait(timeout)
            finally:
                _end_group(process)
        file.seek(0)
        text = file.read().decode("utf-8", errors="replace")
        return _Output(text, _reason(status, text, timeout))


def _reason(status: int | None, text: str, timeout: float) -> str | None:
    """Why the process with this exit status failed; None if it did not. No status is one that had to be ended."""
    if status is None:
        return f"took longer than {timeout:.0f} s"
    if status < 0:
        return f"ended by signal {signal.Signals(-status).name}"
    return (_last_line(text) or f"exit status {status}") if status else None


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """The job and whatever it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:MAX_REASON] if lines else ""
