"""EngineConfig: every option of the engine, checked when it is built. The environment is read nowhere else.

`RAMET_MODEL`, `RAMET_KERNELS`, `RAMET_NUM_THREADS` and `RAMET_KV_CACHE_MEMORY` give defaults; `RAMET_CACHE_DIR` is
where converted tokenizers and compiled kernels are kept; `RAMET_CPU_ISA` and `CXX` say which build of the CPU kernels
is taken and what compiles them; `RAMET_API_KEY` is a key of the server, which should not stand in a command line.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..radix.eviction import EVICTION_POLICIES
from ..radix.eviction.steps import StepsToExecutionPolicy
from .byte_sizes import parse_bytes
from .errors import InvalidConfigError
from .policies.program import LeastAttainedService
from .policies.registry import SCHEDULE_POLICIES
from .quantization.registry import SCHEMES

GIB = 1 << 30
_SWITCHES = (
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "jump_forward",
    "keep_open_programs",
    "check_invariants",
)
_COUNTS = (
    *("block_size", "max_num_batched_tokens", "max_num_seqs", "max_num_logit_rows", "tensor_parallel_size"),
    "prefix_cache_dir_size",
)
_SIZES = ("kv_cache_memory", "prefix_cache_dir_size", "host_cache_memory")
BATCHING = ("continuous", "prefill-first", "request-level")
RESERVE = ("estimate", "max", "none")
DTYPES = ("auto", "float32", "float16", "bfloat16")
DTYPE_NAMES = {"float": "float32", "fp32": "float32", "half": "float16", "fp16": "float16", "bf16": "bfloat16"}
"""Other names of dtypes, those of vLLM and SGLang among them."""
KV_CACHE_DTYPES = ("auto", "fp8", "fp8_e4m3", "int8")
DEFAULT_KV_CACHE_MEMORY = 2 * GIB
MAX_THREADS = 1024
"""More than any machine has; OpenMP crashes on absurd numbers."""


def cache_dir() -> Path:
    """Directory for derived files that can be rebuilt at any time: RAMET_CACHE_DIR, or the user's cache directory."""
    explicit = os.environ.get("RAMET_CACHE_DIR")
    if explicit:
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "ramet"
    try:
        return Path.home() / ".cache" / "ramet"
    except RuntimeError:  # a user without a home, as in some containers
        return Path(tempfile.gettempdir()) / f"ramet-cache-{os.getuid()}"


def default_model() -> str:
    """RAMET_MODEL, or the bundled model."""
    return os.environ.get("RAMET_MODEL", "smollm2")


def default_kernels() -> str | None:
    """RAMET_KERNELS, or None: the fastest there is."""
    return os.environ.get("RAMET_KERNELS") or None


def default_cpu_isa() -> str | None:
    """RAMET_CPU_ISA, or None: the best that the processor has."""
    return os.environ.get("RAMET_CPU_ISA") or None


def default_compiler() -> str | None:
    """CXX, the usual name of the C++ compiler's variable, or None: the first that the system has."""
    return os.environ.get("CXX") or None


def default_num_threads() -> int:
    """RAMET_NUM_THREADS, or the cores this process may use."""
    value = _env_int("RAMET_NUM_THREADS")
    if value is not None:
        return value
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def checked_num_threads(num_threads: int | None) -> int:
    """That number, or the default.

    Raises:
        InvalidConfigError: it is out of range.
    """
    if num_threads is None:
        num_threads = default_num_threads()
    if isinstance(num_threads, bool) or not isinstance(num_threads, int) or not 1 <= num_threads <= MAX_THREADS:
        raise InvalidConfigError(f"num_threads={num_threads!r} must be an integer from 1 to {MAX_THREADS}, or None")
    return num_threads


def api_keys_from_env() -> tuple[str, ...]:
    """The keys in RAMET_API_KEY, with commas between them; () if there are none."""
    return tuple(key.strip() for key in os.environ.get("RAMET_API_KEY", "").split(",") if key.strip())


def kv_cache_memory_from_env() -> int | None:
    """RAMET_KV_CACHE_MEMORY in bytes, or None."""
    text = os.environ.get("RAMET_KV_CACHE_MEMORY")
    if not text:
        return None
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise InvalidConfigError(f"environment variable RAMET_KV_CACHE_MEMORY={error}") from error


def default_kv_cache_memory() -> int:
    """RAMET_KV_CACHE_MEMORY in bytes, or 2 GiB but at most a quarter of the machine's memory."""
    return kv_cache_memory_from_env() or min(DEFAULT_KV_CACHE_MEMORY, _physical_memory() // 4)


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not a POSIX system
        return 8 * GIB


def _env_int(name: str) -> int | None:
    text = os.environ.get(name)
    if not text:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise InvalidConfigError(f"environment variable {name}={text!r} must be a positive integer")
    return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Options of the engine. Names are vLLM's and SGLang's where those exist.

    Attributes:
        max_model_len: longest context in tokens; None takes the model's own limit.
        block_size: token slots in a block.
        num_blocks: blocks in the pool; None sizes the pool from kv_cache_memory.
        kv_cache_memory: bytes for the pool when num_blocks is None; a text such as "2G" is taken too, and turned into
            bytes. On a CPU pages are touched only as blocks are used.
        gpu_memory_utilization: fraction of a GPU's memory that weights, activations, graphs and the pool may take, when
            neither num_blocks nor kv_cache_memory says how large the pool is; what others use counts too.
        kv_cache_dtype: of the KV cache on a GPU: "auto" is that of the weights; "fp8" (e4m3, also called "fp8_e4m3")
            and "int8" keep a scale for each token and head beside their codes and hold nearly twice the tokens. What
            the model says changes a little. fp8 needs an NVIDIA card of compute capability 8.9.
        dtype: of weights, hidden states and the KV cache on a GPU; "auto" is bfloat16 there. The names of DTYPE_NAMES,
            such as "half", are turned into these. The CPU's kernels have their own and take only "auto".
        quantization: how linear layers are rounded while the model is loaded: "int8", "int4", or None, as they are in
            the checkpoint. For kernels "triton" and "torch" (see runtime/quantization).
        max_num_batched_tokens: most tokens computed in one step; an LLM on a GPU takes 4,096 where it is not given.
        max_num_seqs: most sequences in one step.
        max_num_logit_rows: most rows of logits in one step, of which each sequence takes one; bounds the memory that
            prompt logprobs take.
        enable_chunked_prefill: let a prompt be computed over several steps.
        long_prefill_token_threshold: most prompt tokens of one sequence in a step while others run; 0 is off.
        schedule_policy: order of the waiting queue (see runtime/policies).
        batching: "continuous", or what servers did before, to compare with: "prefill-first" pauses decodes while a
            whole prompt is computed, "request-level" takes in nobody until the whole batch has ended.
        reserve: what a sequence must find room for before it starts: "estimate" its expected length, "max" its longest
            outcome, so that nothing is ever preempted (Orca; TensorRT-LLM's guaranteed no-evict), "none" its next
            step only (TensorRT-LLM's max-utilisation).
        schedule_conservativeness: scales the expected number of new tokens; higher preempts less.
        overlap_schedule: let the host work of one step run while the next one is computed; None does so where it pays:
            on a device that computes by itself, and not on a CPU. On such a device Triton's runner is given each step
            before the tokens of the last one are known, so that the device never waits for the host.
        jump_forward: append the tokens that a grammar forces without sampling them; their keys and values are computed
            together with those of the next token that is chosen. Off, each takes a step of its own.
        captured_batch_sizes: decoding batches are padded up to the next of these sizes, for each of which a GPU has a
            graph; at most max_num_seqs and max_num_batched_tokens; empty pads nothing. None: a row of sizes up to these
            on a GPU, none elsewhere.
        enable_prefix_caching: keep finished blocks in the radix tree and reuse them.
        eviction_policy: which unlocked blocks go first (see radix/eviction). With "steps-to-execution" it is those that
            ended programs have left, then the least recently used, then those that are known to be used latest.
        keep_open_programs: whatever the eviction policy, evict what a program that goes on has left in the cache after
            all else. A preference: nothing is locked, and what is not used while the cache is replaced a few times
            counts no more.
        prefix_cache_dir: a directory where finished prefixes are kept, for this and later processes, in a folder that
            is this user's alone; None keeps none. Each model, and each version of what computes it, has its own files.
        prefix_cache_dir_size: bytes of all that is kept there, or a text such as "4G".
        host_cache_memory: bytes of host memory for what a GPU's pool gives up, or a text such as "8G"; pinned where
            there is a GPU. None takes none.
        seed: base of the seeds of requests that bring none; None draws it from the system.
        tensor_parallel_size: processes that compute the model together, each with a part of its weights and of the
            cache, and on CUDA with a device of its own; `kv_cache_memory` is what each has. It must divide the model's
            heads.
        check_invariants: check the cache after every step (slow; for tests and debugging).
    """

    max_model_len: int | None = None
    block_size: int = 16
    num_blocks: int | None = None
    kv_cache_memory: int | None = None
    gpu_memory_utilization: float = 0.9
    kv_cache_dtype: Literal["auto", "fp8", "fp8_e4m3", "int8"] = "auto"
    dtype: Literal["auto", "float32", "float16", "bfloat16", "float", "fp32", "half", "fp16", "bf16"] = "auto"
    quantization: str | None = None
    max_num_batched_tokens: int = 512
    max_num_seqs: int = 256
    max_num_logit_rows: int = 512
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    schedule_policy: str = "lpm"
    batching: Literal["continuous", "prefill-first", "request-level"] = "continuous"
    reserve: Literal["estimate", "max", "none"] = "estimate"
    schedule_conservativeness: float = 1.0
    overlap_schedule: bool | None = None
    jump_forward: bool = True
    captured_batch_sizes: tuple[int, ...] | None = None
    enable_prefix_caching: bool = True
    eviction_policy: str = "lru"
    keep_open_programs: bool = False
    prefix_cache_dir: str | None = None
    prefix_cache_dir_size: int = 4 * GIB
    host_cache_memory: int | None = None
    seed: int | None = None
    tensor_parallel_size: int = 1
    check_invariants: bool = False

    def __post_init__(self) -> None:
        self._use_own_spelling()
        for name in _COUNTS:
            self._check_positive(name, getattr(self, name))
        for name in ("max_model_len", "num_blocks", "kv_cache_memory", "host_cache_memory"):
            value = getattr(self, name)
            if value is not None:
                self._check_positive(name, value)
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise InvalidConfigError(f"{name}={getattr(self, name)!r} must be True or False")
        threshold = self.long_prefill_token_threshold
        if isinstance(threshold, bool) or not isinstance(threshold, int) or threshold < 0:
            raise InvalidConfigError(
                f"long_prefill_token_threshold={self.long_prefill_token_threshold} must be 0 (off) or more"
            )
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise InvalidConfigError(f"seed={self.seed!r} must be an integer, or None to draw it from the system")
        if self.long_prefill_token_threshold and not self.enable_chunked_prefill:
            raise InvalidConfigError(
                f"long_prefill_token_threshold={self.long_prefill_token_threshold} cuts long prompts into chunks, and "
                "enable_chunked_prefill is off: turn it on, or leave the threshold at 0"
            )
        self._check_name("batching", self.batching, BATCHING)
        self._check_name("reserve", self.reserve, RESERVE)
        share = self.schedule_conservativeness
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0.0 <= share <= 100.0:
            raise InvalidConfigError(
                f"schedule_conservativeness={self.schedule_conservativeness!r} must lie in [0, 100]"
            )
        if self.overlap_schedule is not None and not isinstance(self.overlap_schedule, bool):
            raise InvalidConfigError(
                f"overlap_schedule={self.overlap_schedule!r} must be True, False or None (automatic)"
            )
        self._check_captured_batch_sizes()
        self._check_name("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
        self._check_name("dtype", self.dtype, DTYPES)
        if self.quantization is not None:
            self._check_name("quantization", self.quantization, SCHEMES)
        fraction = self.gpu_memory_utilization
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0.0 < fraction <= 1.0:
            raise InvalidConfigError(f"gpu_memory_utilization={fraction!r} must lie in (0, 1]")
        self._check_tiers()
        self._check_name("schedule_policy", self.schedule_policy, SCHEDULE_POLICIES)
        self._check_name("eviction_policy", self.eviction_policy, EVICTION_POLICIES)

    @property
    def keeps_program_prefixes(self) -> bool:
        """Whether the cache is told what programs will use again."""
        return self.keep_open_programs or self.eviction_policy == StepsToExecutionPolicy.name

    @property
    def is_program_aware(self) -> bool:
        """Whether the engine keeps track of programs; if not, there is no use in telling it of them."""
        return self.keeps_program_prefixes or self.schedule_policy == LeastAttainedService.name

    def _use_own_spelling(self) -> None:
        """Sizes with a unit become bytes, other names of dtypes ours."""
        for name in _SIZES:
            memory: object = getattr(self, name)
            if isinstance(memory, str):
                try:
                    object.__setattr__(self, name, parse_bytes(memory))
                except ValueError as error:
                    raise InvalidConfigError(f"{name}={error}") from error
        if isinstance(self.prefix_cache_dir, Path):
            object.__setattr__(self, "prefix_cache_dir", str(self.prefix_cache_dir))
        if isinstance(self.dtype, str):
            object.__setattr__(self, "dtype", DTYPE_NAMES.get(self.dtype, self.dtype))

    def _check_tiers(self) -> None:
        if self.prefix_cache_dir is not None and (
            not isinstance(self.prefix_cache_dir, str) or not self.prefix_cache_dir.strip()
        ):
            raise InvalidConfigError(
                f"prefix_cache_dir={self.prefix_cache_dir!r} must be the path of a directory, or None"
            )
        for name in ("prefix_cache_dir", "host_cache_memory"):
            if getattr(self, name) is None:
                continue
            if not self.enable_prefix_caching:
                raise InvalidConfigError(
                    f"{name} keeps cached prefixes, and enable_prefix_caching=False keeps none: leave one of them out"
                )
            if self.tensor_parallel_size > 1:
                raise InvalidConfigError(
                    f"{name} does not go with tensor_parallel_size={self.tensor_parallel_size}: leave one of them out"
                )

    def _check_captured_batch_sizes(self) -> None:
        if self.captured_batch_sizes is None:
            return
        if not isinstance(self.captured_batch_sizes, tuple | list):
            raise InvalidConfigError(f"captured_batch_sizes={self.captured_batch_sizes!r} must be a tuple of sizes")
        for size in self.captured_batch_sizes:
            self._check_positive("captured_batch_sizes", size)
        largest = max(self.captured_batch_sizes, default=0)
        if largest > min(self.max_num_seqs, self.max_num_batched_tokens):
            raise InvalidConfigError(
                f"captured_batch_sizes={largest} is more than a step ever decodes: max_num_seqs={self.max_num_seqs} "
                f"and max_num_batched_tokens={self.max_num_batched_tokens}; leave it out, or raise them"
            )
        object.__setattr__(self, "captured_batch_sizes", tuple(sorted(set(self.captured_batch_sizes))))

    @staticmethod
    def _check_name(name: str, value: object, known: Collection[str]) -> None:
        if not isinstance(value, str) or value not in known:  # in this order: a list has no hash to look it up by
            raise InvalidConfigError(f"{name}={value!r} is unknown; choose one of {sorted(known)}")

    @staticmethod
    def _check_positive(name: str, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidConfigError(f"{name}={value!r} must be a positive integer")
