"""Job: what an engine reads, made from the model file, in the engine's own Python."""

from __future__ import annotations

import importlib
from typing import Any


def run(options: dict[str, Any]) -> Any:
    """Options: `module`, and those of the engine's `open_session`."""
    return importlib.import_module(f".engines.{options['module']}", __package__).prepare(options)
