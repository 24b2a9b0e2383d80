"""ramet: a prefix-caching LLM runtime with a structured-program frontend.

    from ramet import function, gen, select, system, user, assistant

    @function
    def ask(s, question):
        s += user(question)
        with s.assistant():
            s += gen("answer", max_tokens=40)

    print(ask.run(question="What is a ramet?")["answer"])

Every name is loaded on first use: `import ramet` costs next to nothing and needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .frontend.backends.local import BackendClosedError, LocalBackend
    from .frontend.backends.mock import MockBackend
    from .frontend.default_backend import get_default_backend, set_default_backend
    from .frontend.errors import (
        ForkError,
        GenerationError,
        InvalidProgramError,
        ProgramCancelledError,
        ProgramError,
        ReadTimeoutError,
        UnknownVariableError,
        UnparsedTextError,
    )
    from .frontend.fork import ForkGroup
    from .frontend.primitives import (
        assistant,
        assistant_begin,
        assistant_end,
        gen,
        gen_int,
        gen_string,
        select,
        system,
        system_begin,
        system_end,
        user,
        user_begin,
        user_end,
    )
    from .frontend.program import Program, function
    from .frontend.program_graph import GraphNode, ProgramGraph
    from .frontend.state import ProgramState
    from .radix.errors import CacheUsageError, InvariantViolation
    from .radix.retention import RetentionRange
    from .runtime.chat_message import ChatTemplateError
    from .runtime.choice_prompts import ScoredChoice
    from .runtime.config import EngineConfig
    from .runtime.engine_loop import RequestHandle
    from .runtime.errors import (
        EngineStoppedError,
        InvalidConfigError,
        InvalidRequestError,
        RametError,
        RequestAbortedError,
        RequestFailedError,
    )
    from .runtime.llm import LLM
    from .runtime.metrics import EngineMetrics
    from .runtime.models.errors import ModelLoadError
    from .runtime.outputs import CompletionOutput, FinishReason, OutputChunk, RequestOutput
    from .runtime.request import Request
    from .runtime.request_program import RequestProgram
    from .runtime.runner_spec import RunnerUnavailableError
    from .runtime.trace.jsonl import TraceFormatError
    from .runtime.trace.trace import Trace
    from .sampling_params import InvalidSamplingParamsError, SamplingParams

__version__ = "0.1.0"

_MODULE_OF = {
    "LocalBackend": ".frontend.backends.local",
    "BackendClosedError": ".frontend.backends.local",
    "MockBackend": ".frontend.backends.mock",
    "get_default_backend": ".frontend.default_backend",
    "set_default_backend": ".frontend.default_backend",
    "ForkError": ".frontend.errors",
    "GenerationError": ".frontend.errors",
    "InvalidProgramError": ".frontend.errors",
    "ProgramCancelledError": ".frontend.errors",
    "ProgramError": ".frontend.errors",
    "ReadTimeoutError": ".frontend.errors",
    "UnknownVariableError": ".frontend.errors",
    "UnparsedTextError": ".frontend.errors",
    "ForkGroup": ".frontend.fork",
    "assistant": ".frontend.primitives",
    "assistant_begin": ".frontend.primitives",
    "assistant_end": ".frontend.primitives",
    "gen": ".frontend.primitives",
    "gen_int": ".frontend.primitives",
    "gen_string": ".frontend.primitives",
    "select": ".frontend.primitives",
    "system": ".frontend.primitives",
    "system_begin": ".frontend.primitives",
    "system_end": ".frontend.primitives",
    "user": ".frontend.primitives",
    "user_begin": ".frontend.primitives",
    "user_end": ".frontend.primitives",
    "Program": ".frontend.program",
    "function": ".frontend.program",
    "GraphNode": ".frontend.program_graph",
    "ProgramGraph": ".frontend.program_graph",
    "ProgramState": ".frontend.state",
    "ScoredChoice": ".runtime.choice_prompts",
    "EngineConfig": ".runtime.config",
    "RequestHandle": ".runtime.engine_loop",
    "EngineStoppedError": ".runtime.errors",
    "InvalidConfigError": ".runtime.errors",
    "InvalidRequestError": ".runtime.errors",
    "RametError": ".runtime.errors",
    "RequestAbortedError": ".runtime.errors",
    "RequestFailedError": ".runtime.errors",
    "LLM": ".runtime.llm",
    "ModelLoadError": ".runtime.models.errors",
    "ChatTemplateError": ".runtime.chat_message",
    "EngineMetrics": ".runtime.metrics",
    "Request": ".runtime.request",
    "RequestProgram": ".runtime.request_program",
    "RunnerUnavailableError": ".runtime.runner_spec",
    "CompletionOutput": ".runtime.outputs",
    "FinishReason": ".runtime.outputs",
    "OutputChunk": ".runtime.outputs",
    "RequestOutput": ".runtime.outputs",
    "CacheUsageError": ".radix.errors",
    "InvariantViolation": ".radix.errors",
    "RetentionRange": ".radix.retention",
    "Trace": ".runtime.trace.trace",
    "TraceFormatError": ".runtime.trace.jsonl",
    "InvalidSamplingParamsError": ".sampling_params",
    "SamplingParams": ".sampling_params",
}

__all__ = [  # noqa: RUF022 (in the order of the table above)
    "LocalBackend",
    "BackendClosedError",
    "MockBackend",
    "get_default_backend",
    "set_default_backend",
    "ForkError",
    "GenerationError",
    "InvalidProgramError",
    "ProgramCancelledError",
    "ProgramError",
    "ReadTimeoutError",
    "UnknownVariableError",
    "UnparsedTextError",
    "ForkGroup",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "gen",
    "gen_int",
    "gen_string",
    "select",
    "system",
    "system_begin",
    "system_end",
    "user",
    "user_begin",
    "user_end",
    "Program",
    "function",
    "GraphNode",
    "ProgramGraph",
    "ProgramState",
    "ScoredChoice",
    "EngineConfig",
    "RequestHandle",
    "EngineStoppedError",
    "InvalidConfigError",
    "InvalidRequestError",
    "RametError",
    "RequestAbortedError",
    "RequestFailedError",
    "LLM",
    "ModelLoadError",
    "ChatTemplateError",
    "EngineMetrics",
    "Request",
    "RequestProgram",
    "RunnerUnavailableError",
    "CompletionOutput",
    "FinishReason",
    "OutputChunk",
    "RequestOutput",
    "CacheUsageError",
    "InvariantViolation",
    "RetentionRange",
    "Trace",
    "TraceFormatError",
    "InvalidSamplingParamsError",
    "SamplingParams",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'ramet' has no attribute {name!r}")
    value: object = vars(importlib.import_module(_MODULE_OF[name], __name__))[name]
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({"__version__", *__all__})
