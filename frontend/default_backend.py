"""The backend that programs run on when none is given: the one the user set, else the local engine."""

from __future__ import annotations

import threading

from .backend import Backend


class DefaultBackend:
    """Holds the process-wide choice. The local engine is started by the first program that needs it, once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._backend: Backend | None = None

    def set(self, backend: Backend | None) -> None:
        with self._lock:
            self._backend = backend

    def get(self) -> Backend:
        """The backend that was set; without one, a LocalBackend on the default model, made now and kept."""
        with self._lock:
            if self._backend is None:
                from .backends.local import LocalBackend

                self._backend = LocalBackend()
            return self._backend


_default = DefaultBackend()


def set_default_backend(backend: Backend | None) -> None:
    """Run programs on `backend` from now on, unless a call of `run` gives its own. None: back to the local engine."""
    _default.set(backend)


def get_default_backend() -> Backend:
    """The backend that programs run on when none is given. Loads the default model if there is no other."""
    return _default.get()
