"""The options every command that loads a model has, and the loading."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from .interrupts import exit_on_interrupt

if TYPE_CHECKING:
    from ..frontend.backends.local import LocalBackend
    from ..runtime.llm import LLM

_FIELDS = (
    *("max_model_len", "kv_cache_memory", "max_num_seqs", "max_num_batched_tokens", "schedule_policy"),
    *("overlap_schedule", "dtype", "kv_cache_dtype", "gpu_memory_utilization", "captured_batch_sizes"),
    *("quantization", "tensor_parallel_size", "prefix_cache_dir", "prefix_cache_dir_size", "host_cache_memory"),
)


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model and engine")
    group.add_argument(
        "--model",
        type=model_name,
        help="smollm2 (bundled, the default), a .gguf file, a Hugging Face directory, or a hub id",
    )
    group.add_argument("--threads", type=positive_int, metavar="N", help="CPU threads (default: the cores available)")
    group.add_argument("--device", default="auto", help="auto (default: a GPU if there is one), cpu, cuda, cuda:1, ...")
    group.add_argument(
        "--kernels", metavar="NAME", help="what computes the model, such as torch (default: the fastest there is)"
    )
    group.add_argument("--max-model-len", type=positive_int, metavar="N", help="longest context in tokens")
    group.add_argument(
        "--kv-cache-memory", type=byte_count, metavar="SIZE", help="bytes for the cache, such as 512M or 2G"
    )
    group.add_argument("--max-num-seqs", type=positive_int, metavar="N", help="most sequences in one step")
    group.add_argument("--max-num-batched-tokens", type=positive_int, metavar="N", help="most tokens in one step")
    group.add_argument("--schedule-policy", metavar="NAME", help="order of waiting requests, such as lpm or fcfs")
    group.add_argument("--no-prefix-caching", action="store_true", help="compute every prompt anew, to compare")
    group.add_argument(
        "--overlap-schedule",
        action=argparse.BooleanOptionalAction,
        help="run the host's work beside the next step (default: on a GPU)",
    )
    group.add_argument(
        "--quantization", metavar="NAME", help="round linear layers on load, to int8 or int4 (kernels triton and torch)"
    )
    group.add_argument(
        "--tensor-parallel-size",
        type=positive_int,
        metavar="N",
        help="processes (on GPUs: devices) to split a model over",
    )
    group.add_argument(
        "--cache-dir",
        dest="prefix_cache_dir",
        metavar="DIR",
        help="keep finished prefixes in this directory, for later runs (default: keep none)",
    )
    group.add_argument(
        "--cache-dir-size",
        dest="prefix_cache_dir_size",
        type=byte_count,
        metavar="SIZE",
        help="most bytes to keep there (default: 4G)",
    )
    _add_gpu_arguments(parser.add_argument_group("on a GPU"))


def _add_gpu_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--dtype", metavar="NAME", help="of weights: bfloat16 (the default), float16 or float32")
    group.add_argument(
        "--kv-cache-dtype", metavar="NAME", help="of the cache: auto (that of the weights), fp8 or int8, half as large"
    )
    group.add_argument(
        "--gpu-memory-utilization", type=fraction, metavar="F", help="share of its memory to use (default: 0.9)"
    )
    group.add_argument(
        "--host-cache-memory",
        type=byte_count,
        metavar="SIZE",
        help="bytes of host memory for what the GPU's cache gives up (default: none)",
    )
    graphs = group.add_mutually_exclusive_group()
    graphs.add_argument(
        "--captured-batch-sizes", type=sizes, metavar="N,N,...", help="sizes of decoding batches that have a CUDA graph"
    )
    graphs.add_argument("--disable-cuda-graph", action="store_true", help="launch every kernel of every step")


def open_backend(args: argparse.Namespace) -> LocalBackend:
    """The model that `args` asks for, loaded, ready for programs. The caller closes it.

    Raises:
        ModelLoadError: it cannot be found or read.
        InvalidConfigError: an option is out of range.
    """
    with exit_on_interrupt():
        from ..frontend.backends.local import LocalBackend

        backend = LocalBackend(
            args.model, device=args.device, kernels=args.kernels, num_threads=args.threads, **engine_options(args)
        )
    warning = small_cache_warning(backend.llm, args)
    if warning is not None:
        print(f"ramet: {warning}", file=sys.stderr, flush=True)
    return backend


def small_cache_warning(llm: LLM, args: argparse.Namespace) -> str | None:
    """What to say of a cache that leaves less than half of the model's context, unless a context was asked for."""
    if args.max_model_len is not None or llm.max_context_len * 2 >= llm.max_model_len:
        return None
    return (
        f"warning: the cache holds {llm.max_context_len:,} tokens, and the model's context is {llm.max_model_len:,}: "
        f"no prompt with its answer can be longer than the cache; raise --kv-cache-memory, or give "
        f"--max-model-len {llm.max_context_len} if you want it so"
    )


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of EngineConfig that were given."""
    options: dict[str, Any] = {name: vars(args)[name] for name in _FIELDS if vars(args)[name] is not None}
    if args.disable_cuda_graph:
        options["captured_batch_sizes"] = ()
    if args.no_prefix_caching:
        options["enable_prefix_caching"] = False
    return options


def model_name(text: str) -> str:
    """An argument type: a name that is not blank."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} names no model; leave --model out for the default one")
    return text


def comma_separated(text: str) -> list[str]:
    """An argument type: texts with commas between them."""
    return [part.strip() for part in text.split(",")]


def positive_int(text: str) -> int:
    """An argument type: an integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be an integer of at least 1")
    return int(text)


def fraction(text: str) -> float:
    """An argument type: a number above 0 and at most 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0 and at most 1, such as 0.9")
    return value


def sizes(text: str) -> tuple[int, ...]:
    """An argument type: integers of at least 1 with commas between them."""
    return tuple(positive_int(part.strip()) for part in text.split(","))


def byte_count(text: str) -> int:
    """An argument type: a number of bytes, with K, M or G for powers of 1024."""
    from ..runtime.byte_sizes import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
