"""The C++ library's surface for Python: `src/c_api.h`, declared for ctypes.

Structures have the names and fields of the header without its prefix. A call releases the GIL while it runs. Pointers
are borrowed: whoever builds a structure keeps the memory behind it alive (`packed_matrix.py` and `MemoryArena` do).
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float, c_int32, c_int64, c_void_p

from .errors import CpuLibraryError

ABI_VERSION = 2
NUM_PHASES = 6
PHASES = ("pointwise", "linear", "attention", "head", "plan")


class Matrix(ctypes.Structure):
    """A packed matrix: `src/layout.h`."""

    _fields_ = (
        ("num_outputs", c_int32),
        ("num_inputs", c_int32),
        ("format", c_int32),
        ("is_planes", c_int32),
        ("data", c_void_p),
    )


class Linear(ctypes.Structure):
    """Up to three matrices side by side, and a bias over all their outputs or null."""

    _fields_ = (("num_parts", c_int32), ("parts", Matrix * 3), ("bias", c_void_p))


class Layer(ctypes.Structure):
    """One transformer layer."""

    _fields_ = (
        ("input_norm", c_void_p),
        ("post_attention_norm", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("sliding_window", c_int32),
        ("qkv", Linear),
        ("output", Linear),
        ("gate_up", Linear),
        ("down", Linear),
    )


class Config(ctypes.Structure):
    """A model: sizes, tables, layers and where its KV cache is."""

    _fields_ = (
        ("num_layers", c_int32),
        ("hidden_size", c_int32),
        ("intermediate_size", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("vocab_size", c_int32),
        ("rotary_dim", c_int32),
        ("norm_eps", c_float),
        ("final_norm", c_void_p),
        ("embedding", Matrix),
        ("lm_head", Matrix),
        ("layers", POINTER(Layer)),
        ("kv_data", c_void_p),
        ("kv_block_stride", c_int64),
    )


class Step(ctypes.Structure):
    """The input of one step."""

    _fields_ = (
        ("num_tokens", c_int32),
        ("num_sequences", c_int32),
        ("num_logit_rows", c_int32),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("query_starts", c_void_p),
        ("block_tables", c_void_p),
        ("block_table_starts", c_void_p),
        ("logit_rows", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("logits", c_void_p),
        ("num_threads", c_int32),
        ("is_sharing", c_int32),
    )


_FUNCTIONS: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "ramet_abi_version": (c_int32, ()),
    "ramet_has_openmp": (c_int32, ()),
    "ramet_uses_amx": (c_int32, ()),
    "ramet_map_region": (c_void_p, (c_int64,)),
    "ramet_unmap_region": (None, (c_void_p, c_int64)),
    "ramet_model_new": (c_void_p, (POINTER(Config),)),
    "ramet_model_free": (None, (c_void_p,)),
    "ramet_model_step": (c_int32, (c_void_p, POINTER(Step))),
    "ramet_model_times": (None, (c_void_p, c_void_p)),
    "ramet_copy_blocks": (c_int32, (c_void_p, c_int64, c_void_p, c_void_p, c_int32)),
    "ramet_matrix_bytes": (c_int64, (c_int32, c_int32, c_int32, c_int32)),
    "ramet_source_format": (c_int32, (c_int32,)),
    "ramet_pack_rows": (c_int32, (POINTER(Matrix), c_int32, c_void_p, c_void_p, c_int32, c_int32, POINTER(c_int32))),
    "ramet_finish_matrix": (c_int32, (POINTER(Matrix), POINTER(Matrix), c_int32)),
    "ramet_unpack_rows": (None, (POINTER(Matrix), c_void_p, c_int32, c_void_p)),
    "ramet_multiply": (c_int32, (POINTER(Matrix), c_void_p, c_int32, c_void_p, c_int32)),
    "ramet_quantize": (c_int32, (c_void_p, c_int32, c_int32, c_void_p)),
    "ramet_rms_norm": (None, (c_void_p, c_void_p, c_int32, c_int32, c_float, c_void_p)),
    "ramet_rotate": (None, (c_void_p, c_int32, c_int32, c_void_p, c_void_p, c_int32)),
    "ramet_silu_mul": (None, (c_void_p, c_void_p, c_int32, c_void_p)),
    "ramet_attention": (
        c_int32,
        (
            POINTER(Step),
            c_void_p,
            c_void_p,
            c_void_p,
            c_int32,
            c_int32,
            c_int32,
            c_int32,
            c_void_p,
            c_int64,
            c_void_p,
        ),
    ),
}


def declare(library: ctypes.CDLL) -> None:
    """Give every function of the library its types. Mutates `library`.

    Raises:
        CpuLibraryError: it is another version's library.
    """
    for name, (result, arguments) in _FUNCTIONS.items():
        try:
            function = library[name]
        except AttributeError as error:
            raise CpuLibraryError(
                f"{library._name} has no function {name}: it is not this version's library"
            ) from error
        function.restype = result
        function.argtypes = arguments
        setattr(library, name, function)
    found = library.ramet_abi_version()
    if found != ABI_VERSION:
        raise CpuLibraryError(f"{library._name} has ABI version {found}, this package needs {ABI_VERSION}")
