"""What can go wrong while a model is found, read and built."""

from __future__ import annotations

from ..errors import RametError


class ModelLoadError(RametError, ValueError):
    """A model cannot be loaded. The message names the file, the reason and, where there is one, the remedy."""


class UnknownArchitectureError(ModelLoadError):
    """The checkpoint's architecture is not one this engine has. The message lists those it has."""
