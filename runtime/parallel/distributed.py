"""DistributedGroup: a `Group` over torch.distributed, gloo on CPUs and NCCL on GPUs.

`all_reduce` has the same bits on every rank, so hidden states never drift apart. With gloo it adds in the order of
ranks, whatever the shape: a row's bits do not depend on the batch. NCCL chooses its own order, for speed.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from ..errors import TensorParallelError
from ..gpu.step_graphs import StepGraphs
from .group import LOOPBACK

START_SECONDS = 300.0
"""To start Python and import torch, on whatever disk it is."""
CONNECT_SECONDS = 60.0
LOAD_SECONDS = 1800.0
"""Longest wait for another rank while weights are read: disks differ, and caches of them."""
STEP_SECONDS = 120.0
"""The same in a step, where all ranks compute as much. A rank that is gone is noticed at once."""
_POLL_SECONDS = 5e-5
_NCCL_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_ABORT_ONLY = "2"
_dist: Any = torch.distributed  # the checkers see only a part of it
_c10d: Any = _dist.distributed_c10d
_environment_lock = threading.Lock()


class DistributedGroup:
    """A `Group` over a backend of torch.distributed of its own: it is no default group, and needs none.

    Args:
        backend: connected.
        device: where the tensors are.

    Attributes:
        num_started: collectives this rank has entered, those of captured steps included. Ranks with the same number
            are at the same place of a step.
        is_broken: one of them has failed: no more can be done together.
        timeout: seconds that a collective waits for other ranks; with NCCL, that a step takes.
    """

    def __init__(self, backend: Any, rank: int, size: int, device: torch.device) -> None:
        self.rank = rank
        self.size = size
        self.num_started = 0
        self.is_broken = False
        self.timeout = LOAD_SECONDS
        self._backend = backend
        self._device = device
        self._is_nccl = device.type == "cuda"

    def all_reduce(self, partial: Tensor) -> Tensor:
        """See `Group.all_reduce`."""
        partial = partial.contiguous()
        if self._is_nccl:
            self._run(lambda options: self._backend.allreduce([partial], options), _c10d.AllreduceOptions())
            return partial
        parts = self._all_gather(partial)
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def gather_columns(self, part: Tensor, widths: list[int]) -> Tensor:
        """See `Group.gather_columns`. Ranks send as much as the widest."""
        assert part.shape[1] == widths[self.rank]
        width = max(widths)
        sent = torch.nn.functional.pad(part, (0, width - part.shape[1])).contiguous()
        options = _c10d.GatherOptions()
        options.rootRank = 0
        if self.rank != 0:
            self._run(lambda options: self._backend.gather([], [sent], options), options)
            return part
        parts = [torch.empty_like(sent) for _ in widths]
        self._run(lambda options: self._backend.gather([parts], [sent], options), options)
        return torch.cat([each[:, :own] for each, own in zip(parts, widths, strict=True)], dim=1)

    def smallest(self, number: int) -> int:
        """See `Group.smallest`. Numbers beyond int64 count as its largest."""
        number = min(number, torch.iinfo(torch.int64).max)
        return int(self._all_gather(torch.tensor([number], dtype=torch.int64, device=self._device)).min())

    def counted(self, graphs: StepGraphs) -> StepGraphs:
        """See `Group.counted`."""
        return _CountedGraphs(graphs, self)

    def wait(self, check: Callable[[], None]) -> None:
        """Wait until the device has done what this rank has entered. With gloo it has.

        Args:
            check: called again and again; what it raises ends the wait.

        Raises:
            TimeoutError: a collective takes longer than `timeout`.
        """
        if not self._is_nccl:
            return
        done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(torch.cuda.current_stream(self._device))
        deadline = time.monotonic() + self.timeout
        while not done.query():
            check()
            if time.monotonic() > deadline:
                self.is_broken = True
                raise TimeoutError(f"a step of all ranks took more than {self.timeout:.0f} seconds")
            time.sleep(_POLL_SECONDS)
        check()

    def abort(self) -> None:
        """Let go of whoever waits for another rank: a kernel of NCCL would wait for ever. With gloo there is nothing to
        do, for it ends with the other ranks' processes. Idempotent."""
        self.is_broken = True
        backend = self._backend
        if self._is_nccl and backend is not None:
            backend.abort()

    def close(self) -> None:
        """`abort`, and let go of the sockets and threads. A collective that runs keeps them until it has ended; another
        one raises. Idempotent."""
        self.abort()
        self._backend = None

    def _all_gather(self, part: Tensor) -> Tensor:
        """[size, *shape], in order of ranks. Bytes are sent, whatever the dtype."""
        gathered = torch.empty((self.size, *part.shape), dtype=part.dtype, device=part.device)
        sent, received = part.reshape(-1).view(torch.uint8), gathered.view(-1).view(torch.uint8)
        self._run(lambda options: self._backend._allgather_base(received, sent, options), _c10d.AllgatherOptions())
        return gathered

    def _run(self, collective: Callable[[Any], Any], options: Any) -> None:
        options.timeout = timedelta(seconds=self.timeout)
        options.asyncOp = False
        self.num_started += 1
        work: Any = None
        try:
            if self._backend is None:
                raise ConnectionError("the group is closed")
            work = collective(options)
            if work is not None:
                work.wait()
        except BaseException:
            self.is_broken = True
            raise
        finally:
            work = None  # the traceback of an error must not keep the sockets open


class _CountedGraphs:
    def __init__(self, graphs: StepGraphs, group: DistributedGroup) -> None:
        self._graphs = graphs
        self._group = group

    def capture(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        replay = self._graphs.capture(step)

        def counted_replay() -> Tensor:
            self._group.num_started += 1
            return replay()

        return counted_replay


def open_store(size: int) -> tuple[Any, int]:
    """Where ranks find each other, and its port: a free one, which only this machine can reach.

    Raises:
        TensorParallelError: the system does not let it be opened.
    """
    timeout = timedelta(seconds=START_SECONDS)
    try:
        listener = socket.create_server((LOOPBACK, 0))
        port = int(listener.getsockname()[1])
        return _dist.TCPStore(LOOPBACK, port, size, True, timeout, False, False, listener.detach()), port
    except (OSError, RuntimeError) as error:
        raise TensorParallelError(
            f"the processes of the model cannot be given a port of {LOOPBACK} to meet at: {error} (a process may have "
            "too many files open: see `ulimit -n`)"
        ) from error


def find_store(port: int, size: int) -> Any:
    """The store that rank 0 has opened."""
    return _dist.TCPStore(LOOPBACK, port, size, False, timedelta(seconds=CONNECT_SECONDS), False)


def connect(store: Any, rank: int, size: int, device: torch.device) -> DistributedGroup:
    """Meet the other ranks: NCCL on CUDA devices, gloo over the loopback device else. Blocks until all are there.

    Raises:
        RuntimeError: one did not come within CONNECT_SECONDS.
    """
    backend = _nccl(store, rank, size) if device.type == "cuda" else _gloo(store, rank, size)
    return DistributedGroup(backend, rank, size, device)


def _gloo(store: Any, rank: int, size: int) -> Any:
    kind = _dist.ProcessGroupGloo
    options = kind._Options()
    # Where the user has named an interface, it is theirs; otherwise nobody outside this host can connect.
    is_named = bool(os.environ.get("GLOO_SOCKET_IFNAME"))
    options._devices = [kind.create_default_device() if is_named else kind.create_device(hostname=LOOPBACK)]
    options._timeout = timedelta(seconds=CONNECT_SECONDS)
    return kind(store, rank, size, options)


def _nccl(store: Any, rank: int, size: int) -> Any:
    kind = _dist.ProcessGroupNCCL
    options = kind.Options()
    options._timeout = timedelta(seconds=LOAD_SECONDS)
    # By default NCCL's watchdog ends the process after a timeout. Rank 0 is the user's: there, only the group may end.
    with _environment_lock:
        asked = os.environ.get(_NCCL_ERRORS)
        if rank == 0 and asked is None:
            os.environ[_NCCL_ERRORS] = _ABORT_ONLY
        try:
            return kind(store, rank, size, options)
        finally:
            if rank == 0 and asked is None:
                del os.environ[_NCCL_ERRORS]
