"""What can go wrong between the C++ sources and a loaded library. Each message says what to do about it."""

from __future__ import annotations


class CpuLibraryError(RuntimeError):
    """Base: the C++ library of the CPU kernels cannot be had here."""


class UnsupportedIsaError(CpuLibraryError, ValueError):
    """The instruction set asked for is unknown, or this processor lacks it."""


class CompilerNotFoundError(CpuLibraryError):
    """There is no C++ compiler, or the one named cannot be run."""


class BuildFailedError(CpuLibraryError):
    """The compiler refused the flags or the sources. The message ends with its last lines."""


class CacheUnusableError(CpuLibraryError):
    """A directory cannot hold compiled code: it is not writable, not executable, or somebody else's."""


class LoadFailedError(CpuLibraryError):
    """A library was found or built, and the system would not load it."""
