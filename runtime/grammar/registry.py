"""Every grammar backend by name. Adding one is a file and a line here."""

from __future__ import annotations

from .backend import BackendFactory
from .llguidance_backend import LlguidanceBackend
from .outlines_backend import OutlinesBackend

DEFAULT_BACKEND = "llguidance"

GRAMMAR_BACKENDS: dict[str, BackendFactory] = {
    "llguidance": LlguidanceBackend,
    "outlines": OutlinesBackend,
}
