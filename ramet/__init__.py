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
    from .frontend.async_state import AsyncProgramState
    from .frontend.backends.local import BackendClosedError, LocalBackend
    from .frontend.backends.mock import MockBackend
    from .frontend.batch_results import BatchError, BatchResults, BatchSummary
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
    from .frontend.journal.restore import JournaledError
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
    from .frontend.run_events import CallEnded, CallStarted, RunEnded, TextPiece
    from .frontend.state import ProgramState
    from .frontend.trace.program_trace import CallTrace, ErrorTrace, ProgramTrace
    from .frontend.trace.trace_json import ProgramTraceFormatError
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
    from .runtime.runner_spec import RunnerUnavailableError
    from .runtime.trace.jsonl import TraceFormatError
    from .runtime.trace.trace import Trace
    from .sampling_params import InvalidSamplingParamsError, SamplingParams

__version__ = "0.1.0"

_MODULE_OF = {
    "AsyncProgramState": ".frontend.async_state",
    "LocalBackend": ".frontend.backends.local",
    "BackendClosedError": ".frontend.backends.local",
    "MockBackend": ".frontend.backends.mock",
    "BatchError": ".frontend.batch_results",
    "BatchResults": ".frontend.batch_results",
    "BatchSummary": ".frontend.batch_results",
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
    "JournaledError": ".frontend.journal.restore",
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
    "CallEnded": ".frontend.run_events",
    "CallStarted": ".frontend.run_events",
    "RunEnded": ".frontend.run_events",
    "TextPiece": ".frontend.run_events",
    "ProgramState": ".frontend.state",
    "CallTrace": ".frontend.trace.program_trace",
    "ErrorTrace": ".frontend.trace.program_trace",
    "ProgramTrace": ".frontend.trace.program_trace",
    "ProgramTraceFormatError": ".frontend.trace.trace_json",
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
    "AsyncProgramState",
    "LocalBackend",
    "BackendClosedError",
    "MockBackend",
    "BatchError",
    "BatchResults",
    "BatchSummary",
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
    "JournaledError",
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
    "CallEnded",
    "CallStarted",
    "RunEnded",
    "TextPiece",
    "ProgramState",
    "CallTrace",
    "ErrorTrace",
    "ProgramTrace",
    "ProgramTraceFormatError",
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
