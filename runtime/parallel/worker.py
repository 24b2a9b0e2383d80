"""What the process of a rank other than 0 runs: load a part of the model, then compute the same steps as rank 0.

    python -m ramet.runtime.parallel.worker FD PARENT_ID RANK

It answers a failing step with what was raised, and runs nothing more until it is asked to settle: only rank 0 knows
whether the same has happened everywhere. It ends when its channel is closed or its parent is gone.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ..config import EngineConfig
from ..runner_factory import RUNNERS
from ..runner_spec import RunnerSpec
from ..weights.resolve import resolve_model
from .channel import Channel, ChannelClosedError, Kind
from .distributed import STEP_SECONDS, DistributedGroup, connect, find_store
from .messages import Failure, pack_id, unpack_id, unpack_step
from .runner import FlatRunner

_PARENT_CHECK_SECONDS = 0.5
NOT_IN_STEP = -1
"""The answer of a rank whose group is broken, instead of a number of collectives."""


def main(descriptor: int, parent_id: int, rank: int) -> None:
    """Serve rank 0 to the end. Does not return."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(parent_id,), daemon=True).start()
    logging.getLogger("ramet").setLevel(logging.ERROR)  # rank 0 has said it
    with suppress(ChannelClosedError):
        _serve(Channel(socket.socket(fileno=descriptor)), rank)
    # Not by the interpreter's end: threads of the group may be waiting for ranks that are gone.
    os._exit(0)


def _end_with_parent(parent_id: int) -> None:
    while os.getppid() == parent_id:
        time.sleep(_PARENT_CHECK_SECONDS)
    os._exit(1)


def _serve(channel: Channel, rank: int) -> None:
    try:
        task = json.loads(_expect(channel, Kind.LOAD))
        channel.send(Kind.HELLO)
        _expect(channel, Kind.CONNECT)
        store = find_store(task["port"], task["size"])
        group = connect(store, rank, task["size"], torch.device(task["device"]))
    except ChannelClosedError:
        raise
    except BaseException as error:
        channel.send(Kind.FAILED, Failure.of(error).pack())
        raise
    try:
        runner = _load(task, group)
    except BaseException as error:
        if not group.is_broken:
            channel.send(Kind.FAILED, Failure.of(error).pack())
        # Where another rank is the cause, rank 0 is told by that one, or notices its end.
        while True:
            channel.receive()
    group.timeout = STEP_SECONDS
    channel.send(Kind.READY)
    _Steps(channel, group, runner).run()


def _load(task: dict[str, Any], group: DistributedGroup) -> FlatRunner:
    torch.set_num_threads(task["num_threads"])
    spec = RunnerSpec(
        checkpoint=resolve_model(Path(task["model"])),
        config=EngineConfig(**task["config"]),
        device=task["device"],
        num_threads=task["num_threads"],
        group=group,
    )
    runner: Any = RUNNERS[task["kernels"]].load(spec).runner
    return runner  # type: ignore[no-any-return]


def _expect(channel: Channel, kind: Kind) -> bytes:
    found, payload = channel.receive()
    assert found is kind
    return payload


class _Steps:
    """The steps of a loaded rank."""

    def __init__(self, channel: Channel, group: DistributedGroup, runner: FlatRunner) -> None:
        self._channel = channel
        self._group = group
        self._runner = runner
        self._prepared: dict[int, Callable[[], object]] = {}
        self._has_failed = False

    def run(self) -> None:
        """Until the channel is closed."""
        while True:
            kind, payload = self._channel.receive()
            if kind is Kind.STEP:
                self._attempt(unpack_id(payload), lambda payload=payload: self._prepare(payload))  # type: ignore[misc]
            elif kind is Kind.RUN:
                step_id = unpack_id(payload)
                step = self._prepared.pop(step_id, None)
                self._prepared = {other: kept for other, kept in self._prepared.items() if other > step_id}
                if step is not None and not self._has_failed:
                    self._attempt(step_id, step)
            else:
                assert kind is Kind.SETTLE
                self._settle()

    def _prepare(self, payload: bytes) -> None:
        step_id, flat, block_copies = unpack_step(payload)
        self._prepared[step_id] = self._runner.prepare_flat(flat, block_copies)

    def _attempt(self, step_id: int, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            self._has_failed = True
            if not self._group.is_broken:  # or the cause is elsewhere
                self._channel.send(Kind.FAILED, Failure.of(error, step_id, self._group.num_started).pack())

    def _settle(self) -> None:
        if not self._group.is_broken:
            self._group.wait(lambda: None)
            self._has_failed = False
        self._channel.send(Kind.SETTLED, pack_id(NOT_IN_STEP if self._group.is_broken else self._group.num_started))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
