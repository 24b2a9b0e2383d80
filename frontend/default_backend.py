"""The backend that programs run on: the one a run names, else the one the user set, else the local engine."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from .backend import Backend
from .backends.registry import BACKENDS
from .errors import InvalidProgramError

if TYPE_CHECKING:
    from .backends.local import LLM, LocalBackend

    BackendLike = Backend | LLM | str
    """A backend, or what a LocalBackend is made of: an LLM or a model name."""


class DefaultBackend:
    """Holds the process-wide choice, and the local engines that were started without one of them being asked for by
    object: each once, by the first program that needs it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._backend: Backend | None = None
        self._local_backends: dict[LLM | str, LocalBackend] = {}

    def set(self, backend: Backend | None) -> None:
        with self._lock:
            self._backend = backend

    def get(self) -> Backend:
        """The backend that was set; without one, a LocalBackend on the default model."""
        with self._lock:
            return self._backend if self._backend is not None else self._local(None)

    def get_if_set(self) -> Backend | None:
        with self._lock:
            return self._backend

    def resolve(self, backend: BackendLike) -> Backend:
        if isinstance(backend, Backend) and not isinstance(backend, type):
            return backend
        with self._lock:
            return self._local(_checked_model(backend))

    def _local(self, model: LLM | str | None) -> LocalBackend:
        """The local backend on this model: the one there is, unless it was closed."""
        from .backends.local import LocalBackend, default_model

        key = default_model() if model is None else model
        self._local_backends = {name: kept for name, kept in self._local_backends.items() if not kept.is_closed}
        if key not in self._local_backends:
            self._local_backends[key] = LocalBackend(key)
        return self._local_backends[key]


def _checked_model(value: object) -> LLM | str:
    from .backends.local import LLM

    if isinstance(value, LLM) or (isinstance(value, str) and value.strip()):
        return value
    raise InvalidProgramError(
        f"programs cannot run on {value!r}: give a backend object ({', '.join(BACKENDS)} or your own), an LLM, or the "
        "name of a model such as 'smollm2'"
    )


_default = DefaultBackend()


def as_backend(backend: BackendLike) -> Backend:
    """The backend itself; for an LLM or a model name a LocalBackend on it, which is opened once and then kept.

    Raises:
        InvalidProgramError: it is none of these.
        ModelLoadError: the model cannot be found or read.
    """
    return _default.resolve(backend)


def set_default_backend(backend: BackendLike | None) -> None:
    """Run programs on `backend` from now on, unless a call of `run` gives its own. None: back to the local engine.

    Takes and raises what `as_backend` does; a model that is named is loaded now.
    """
    _default.set(None if backend is None else as_backend(backend))


def flush_cache(backend: BackendLike | None = None, empty_cache: bool = True) -> None:
    """Forget the cached prefixes that are not in use, of a backend or the default one. Raises as `as_backend` does.

    `empty_cache`, which has SGLang give memory of the GPU back, is taken and plays no part: the blocks stay allocated.
    """
    _given_or_default(backend).flush_cache()


def get_server_info(backend: BackendLike | None = None) -> dict[str, object]:
    """What a backend says of itself, or the default one: `backend`, `model`, and keys of its own. Raises as
    `as_backend` does."""
    return dict(_given_or_default(backend).info())


def _given_or_default(backend: BackendLike | None) -> Backend:
    return get_default_backend() if backend is None else as_backend(backend)


def default_backend_if_set() -> Backend | None:
    """The backend that the user set, if any. Loads nothing."""
    return _default.get_if_set()


def get_default_backend() -> Backend:
    """The backend that programs run on when none is given. Loads the default model if there is no other."""
    return _default.get()
