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
    from .chat_message import ChatTemplateError
    from .frontend.async_state import AsyncProgramState
    from .frontend.backends.anthropic_api import Anthropic
    from .frontend.backends.errors import BackendCallError, BackendClosedError, UnsupportedByBackendError
    from .frontend.backends.local import LocalBackend
    from .frontend.backends.local_runtime import Runtime
    from .frontend.backends.mock import MockBackend
    from .frontend.backends.openai_api import OpenAI
    from .frontend.backends.runtime_endpoint import RuntimeEndpoint
    from .frontend.batch_results import BatchError, BatchResults, BatchSummary
    from .frontend.capture.program_graph import GraphNode, ProgramGraph
    from .frontend.chat.overflow import Overflow
    from .frontend.chat.reply import PendingReply, Reply
    from .frontend.choices import (
        greedy_token_selection,
        sum_logprobs,
        token_length_normalized,
        unconditional_likelihood_normalized,
    )
    from .frontend.conversation import Conversation
    from .frontend.default_backend import flush_cache, get_default_backend, get_server_info, set_default_backend
    from .frontend.errors import (
        ContextOverflowError,
        ForkError,
        GenerationError,
        InvalidProgramError,
        ProgramCancelledError,
        ProgramError,
        ReadTimeoutError,
        ToolCallError,
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
        select,
        system,
        system_begin,
        system_end,
        tool,
        user,
        user_begin,
        user_end,
    )
    from .frontend.program import Program, function
    from .frontend.run_events import CallEnded, CallStarted, RunEnded, TextPiece
    from .frontend.separate_reasoning import separate_reasoning
    from .frontend.sglang_surface import global_config, image, video
    from .frontend.state import ProgramState
    from .frontend.trace.cache_tree import CacheNode, CacheTree
    from .frontend.trace.files import save_traces
    from .frontend.trace.program_trace import CallTrace, ErrorTrace, ProgramTrace
    from .frontend.trace.report import ProgramReport, report
    from .frontend.trace.trace_json import ProgramTraceFormatError
    from .frontend.typed_gens import gen_int, gen_string
    from .prompt_explanation import PromptExplanation, PromptPart
    from .radix.errors import CacheUsageError, InvariantViolation
    from .radix.retention import RetentionRange
    from .radix.snapshot import CachedRun, CacheSnapshot
    from .runtime.choice_prompts import ScoredChoice
    from .runtime.config import EngineConfig
    from .runtime.engine_loop import RequestHandle
    from .runtime.errors import (
        EngineStoppedError,
        InvalidConfigError,
        InvalidRequestError,
        PrefixesKeptError,
        RametError,
        RequestAbortedError,
        RequestFailedError,
        RequestUnmetError,
        TensorParallelError,
    )
    from .runtime.llm import LLM
    from .runtime.metrics import EngineMetrics
    from .runtime.models.errors import ModelLoadError
    from .runtime.offline_engine import Engine
    from .runtime.outputs import CompletionOutput, FinishReason, OutputChunk, RequestOutput
    from .runtime.request import Request
    from .runtime.request_program import RequestProgram
    from .runtime.runner_spec import RunnerUnavailableError
    from .runtime.trace.jsonl import TraceFormatError
    from .runtime.trace.trace import Trace
    from .sampling_params import InvalidSamplingParamsError, SamplingParams
    from .tool_formats import ToolCall

__version__ = "0.1.0"

_MODULE_OF = {
    "AsyncProgramState": ".frontend.async_state",
    "LocalBackend": ".frontend.backends.local",
    "Runtime": ".frontend.backends.local_runtime",
    "MockBackend": ".frontend.backends.mock",
    "RuntimeEndpoint": ".frontend.backends.runtime_endpoint",
    "OpenAI": ".frontend.backends.openai_api",
    "Anthropic": ".frontend.backends.anthropic_api",
    "BackendCallError": ".frontend.backends.errors",
    "BackendClosedError": ".frontend.backends.errors",
    "UnsupportedByBackendError": ".frontend.backends.errors",
    "Overflow": ".frontend.chat.overflow",
    "PendingReply": ".frontend.chat.reply",
    "Reply": ".frontend.chat.reply",
    "ToolCall": ".tool_formats",
    "Conversation": ".frontend.conversation",
    "BatchError": ".frontend.batch_results",
    "BatchResults": ".frontend.batch_results",
    "BatchSummary": ".frontend.batch_results",
    "flush_cache": ".frontend.default_backend",
    "get_server_info": ".frontend.default_backend",
    "get_default_backend": ".frontend.default_backend",
    "set_default_backend": ".frontend.default_backend",
    "ContextOverflowError": ".frontend.errors",
    "ForkError": ".frontend.errors",
    "GenerationError": ".frontend.errors",
    "InvalidProgramError": ".frontend.errors",
    "ProgramCancelledError": ".frontend.errors",
    "ProgramError": ".frontend.errors",
    "ReadTimeoutError": ".frontend.errors",
    "ToolCallError": ".frontend.errors",
    "UnknownVariableError": ".frontend.errors",
    "UnparsedTextError": ".frontend.errors",
    "ForkGroup": ".frontend.fork",
    "JournaledError": ".frontend.journal.restore",
    "assistant": ".frontend.primitives",
    "assistant_begin": ".frontend.primitives",
    "assistant_end": ".frontend.primitives",
    "gen": ".frontend.primitives",
    "gen_int": ".frontend.typed_gens",
    "gen_string": ".frontend.typed_gens",
    "select": ".frontend.primitives",
    "system": ".frontend.primitives",
    "system_begin": ".frontend.primitives",
    "system_end": ".frontend.primitives",
    "tool": ".frontend.primitives",
    "user": ".frontend.primitives",
    "user_begin": ".frontend.primitives",
    "user_end": ".frontend.primitives",
    "Program": ".frontend.program",
    "function": ".frontend.program",
    "CallEnded": ".frontend.run_events",
    "CallStarted": ".frontend.run_events",
    "RunEnded": ".frontend.run_events",
    "TextPiece": ".frontend.run_events",
    "GraphNode": ".frontend.capture.program_graph",
    "ProgramGraph": ".frontend.capture.program_graph",
    "ProgramState": ".frontend.state",
    "CacheNode": ".frontend.trace.cache_tree",
    "CacheTree": ".frontend.trace.cache_tree",
    "save_traces": ".frontend.trace.files",
    "greedy_token_selection": ".frontend.choices",
    "sum_logprobs": ".frontend.choices",
    "token_length_normalized": ".frontend.choices",
    "unconditional_likelihood_normalized": ".frontend.choices",
    "separate_reasoning": ".frontend.separate_reasoning",
    "global_config": ".frontend.sglang_surface",
    "image": ".frontend.sglang_surface",
    "video": ".frontend.sglang_surface",
    "CallTrace": ".frontend.trace.program_trace",
    "ErrorTrace": ".frontend.trace.program_trace",
    "ProgramTrace": ".frontend.trace.program_trace",
    "ProgramReport": ".frontend.trace.report",
    "report": ".frontend.trace.report",
    "ProgramTraceFormatError": ".frontend.trace.trace_json",
    "ScoredChoice": ".runtime.choice_prompts",
    "EngineConfig": ".runtime.config",
    "RequestHandle": ".runtime.engine_loop",
    "EngineStoppedError": ".runtime.errors",
    "InvalidConfigError": ".runtime.errors",
    "InvalidRequestError": ".runtime.errors",
    "PrefixesKeptError": ".runtime.errors",
    "RametError": ".runtime.errors",
    "RequestAbortedError": ".runtime.errors",
    "RequestFailedError": ".runtime.errors",
    "RequestUnmetError": ".runtime.errors",
    "TensorParallelError": ".runtime.errors",
    "LLM": ".runtime.llm",
    "Engine": ".runtime.offline_engine",
    "ModelLoadError": ".runtime.models.errors",
    "ChatTemplateError": ".chat_message",
    "EngineMetrics": ".runtime.metrics",
    "Request": ".runtime.request",
    "RequestProgram": ".runtime.request_program",
    "RunnerUnavailableError": ".runtime.runner_spec",
    "CompletionOutput": ".runtime.outputs",
    "FinishReason": ".runtime.outputs",
    "OutputChunk": ".runtime.outputs",
    "RequestOutput": ".runtime.outputs",
    "PromptExplanation": ".prompt_explanation",
    "PromptPart": ".prompt_explanation",
    "CacheUsageError": ".radix.errors",
    "InvariantViolation": ".radix.errors",
    "RetentionRange": ".radix.retention",
    "CachedRun": ".radix.snapshot",
    "CacheSnapshot": ".radix.snapshot",
    "Trace": ".runtime.trace.trace",
    "TraceFormatError": ".runtime.trace.jsonl",
    "InvalidSamplingParamsError": ".sampling_params",
    "SamplingParams": ".sampling_params",
}

__all__ = [  # noqa: RUF022 (in the order of the table above)
    "AsyncProgramState",
    "LocalBackend",
    "Runtime",
    "MockBackend",
    "RuntimeEndpoint",
    "OpenAI",
    "Anthropic",
    "BackendCallError",
    "BackendClosedError",
    "UnsupportedByBackendError",
    "Overflow",
    "PendingReply",
    "Reply",
    "ToolCall",
    "Conversation",
    "BatchError",
    "BatchResults",
    "BatchSummary",
    "flush_cache",
    "get_server_info",
    "get_default_backend",
    "set_default_backend",
    "ContextOverflowError",
    "ForkError",
    "GenerationError",
    "InvalidProgramError",
    "ProgramCancelledError",
    "ProgramError",
    "ReadTimeoutError",
    "ToolCallError",
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
    "tool",
    "user",
    "user_begin",
    "user_end",
    "Program",
    "function",
    "CallEnded",
    "CallStarted",
    "RunEnded",
    "TextPiece",
    "GraphNode",
    "ProgramGraph",
    "ProgramState",
    "CacheNode",
    "CacheTree",
    "save_traces",
    "greedy_token_selection",
    "sum_logprobs",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "separate_reasoning",
    "global_config",
    "image",
    "video",
    "CallTrace",
    "ErrorTrace",
    "ProgramTrace",
    "ProgramReport",
    "report",
    "ProgramTraceFormatError",
    "ScoredChoice",
    "EngineConfig",
    "RequestHandle",
    "EngineStoppedError",
    "InvalidConfigError",
    "InvalidRequestError",
    "PrefixesKeptError",
    "RametError",
    "RequestAbortedError",
    "RequestFailedError",
    "RequestUnmetError",
    "TensorParallelError",
    "LLM",
    "Engine",
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
    "PromptExplanation",
    "PromptPart",
    "CacheUsageError",
    "InvariantViolation",
    "RetentionRange",
    "CachedRun",
    "CacheSnapshot",
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
