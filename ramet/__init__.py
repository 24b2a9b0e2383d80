"""ramet: a prefix-caching LLM runtime with a structured-program frontend.

Names are loaded on first use, so `import ramet` costs next to nothing and needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .frontend import *  # noqa: F403
    from .runtime.errors import (
        EngineStoppedError,
        GenerationError,
        InvalidConfigError,
        InvalidRequestError,
        RametError,
        RequestAbortedError,
    )
    from .runtime.llm import LLM
    from .runtime.outputs import CompletionOutput, FinishReason, RequestOutput
    from .sampling_params import InvalidSamplingParams, SamplingParams

__version__ = "0.1.0"
