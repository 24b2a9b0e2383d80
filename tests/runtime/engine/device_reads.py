"""Finds reads of a device's results by the host, on a CPU, where both are the same memory.

Whatever is uploaded, and whatever is computed from that, is taken to be on the device. To copy its values to the host,
or to let a size or a branch depend on them, would wait for all that is in flight there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

READING_OPS = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "_unique2"}
INDEXING_OPS = {"index", "index_put_"}
READING_METHODS = ("tolist", "numpy", "item", "cpu", "__bool__", "__int__", "__float__", "__index__")


class DeviceReads(TorchDispatchMode):
    """Attributes:
    reads: names of the operations that read, while `watching`.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.reads: list[str] = []
        self.is_watching = False
        self._is_launching = False
        self._on_device: dict[int, Any] = {}  # storages, kept alive so that no other gets their address
        for name in READING_METHODS:
            monkeypatch.setattr(Tensor, name, self._watched(name, getattr(Tensor, name)))

    def put(self, *tensors: Any) -> None:
        """These are on the device."""
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self._on_device[storage._cdata] = storage

    def has(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata in self._on_device

    @contextmanager
    def watching(self, *, is_watching: bool = True) -> Iterator[None]:
        before, self.is_watching = self.is_watching, is_watching
        yield
        self.is_watching = before

    def launching(self, launch: Callable[..., None]) -> Callable[..., None]:
        """`KernelCall.run`: the interpreter reads what a GPU would, and all that a kernel may write is the device's."""

        def run(call: Any) -> None:
            self._is_launching = True
            launch(call)
            self._is_launching = False
            if any(map(self.has, call.args)):
                self.put(*call.args)

        return run

    def uploading(self, upload: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
        def run(*args: Any) -> list[Tensor]:
            tensors = upload(*args)
            self.put(*tensors)
            return tensors

        return run

    def _watched(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if self._counts and self.has(tensor):
                self.reads.append(name)
            return method(tensor, *args, **kwargs)

        return read

    @property
    def _counts(self) -> bool:
        return self.is_watching and not self._is_launching

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(map(self.has, tree_flatten((args, kwargs))[0])):
            name = func.overloadpacket.__name__
            indices = [each for each in tree_flatten(args[1:])[0] if isinstance(each, Tensor)]
            is_indexed_from_host = name in INDEXING_OPS and not all(map(self.has, indices))  # which uploads, and waits
            if self._counts and (name in READING_OPS or is_indexed_from_host):
                self.reads.append(name)
            self.put(*tree_flatten(result)[0])
        return result
