"""Starting the other ranks, where that goes wrong."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ramet.runtime.errors import TensorParallelError
from ramet.runtime.parallel import workers as workers_module
from ramet.runtime.parallel.distributed import open_store
from ramet.runtime.parallel.loading import _check_files
from ramet.runtime.parallel.workers import WorkerPool, _import_path, _start_process


def test_a_rank_that_ends_before_it_is_told_anything_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it is told is too long to be sent to nobody."""
    monkeypatch.setattr(workers_module, "MODULE", "ramet.nothing")
    with pytest.raises(TensorParallelError, match="rank 1 of the model ended with exit code 1"):
        WorkerPool([bytes(1 << 25)])


def test_ranks_look_where_imports_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    odd: list[Any] = [tmp_path, b"bytes", "nul\0", None, 7, "\ud800"]
    monkeypatch.setattr(sys, "path", ["/first", "", *odd, "relative", "/last"])
    monkeypatch.chdir(tmp_path)
    assert _import_path() == ["/first", str(tmp_path), "relative", "/last"]

    def no_directory() -> str:
        raise FileNotFoundError

    monkeypatch.setattr(os, "getcwd", no_directory)
    assert _import_path() == ["/first", "relative", "/last"]


@pytest.mark.parametrize("is_gone", [False, True])
def test_ranks_start_somewhere_when_the_working_directory_is_gone(
    is_gone: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """MKL ends a process that has none."""
    started: list[dict[str, Any]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: started.append(options))
    directory = tmp_path / "directory"
    directory.mkdir()
    monkeypatch.chdir(directory)
    if is_gone:
        directory.rmdir()
    _start_process(3, 1)
    assert [options["cwd"] for options in started] == ["/" if is_gone else None]


@pytest.fixture
def no_files() -> Iterator[None]:
    """No file can be opened."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_too_few_files_are_said_at_once(no_files: None) -> None:
    with pytest.raises(TensorParallelError, match=r"need 40 more files .* Too many open files.*ulimit -n"):
        _check_files(40)
    with pytest.raises(TensorParallelError, match=r"cannot be given a port .*Too many open files"):
        open_store(2)
    with pytest.raises(TensorParallelError, match=r"rank 1 of the model cannot be started: .*Too many open files"):
        WorkerPool([b"{}"])
