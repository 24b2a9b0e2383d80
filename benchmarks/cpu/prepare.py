"""Job: the token ids of the workloads, and the model in the forms the peers read.

Derived files are kept in ramet's cache directory, by the identity of the model file. They hold the dequantised weights:
in fp32 as a Hugging Face directory, and in fp16 as a GGUF file.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from ramet.runtime.config import cache_dir
from ramet.runtime.tokenizer import load_tokenizer
from ramet.runtime.weights.gguf_file import GGUFCheckpoint
from ramet.runtime.weights.gguf_header import read_gguf_header
from ramet.runtime.weights.resolve import resolve_model

from .inputs import FULL, QUICK, make_inputs
from .passages import make_windows
from .text import whole_words


class UnsuitableModelError(ValueError):
    """The peers cannot be given this model."""


def run(options: dict[str, Any]) -> dict[str, Any]:
    """Options: `model`, `is_quick`, `needs` (keys of FILES), `inputs` and `windows` (files to write)."""
    checkpoint = resolve_model(options["model"])
    if not isinstance(checkpoint, GGUFCheckpoint):
        raise UnsuitableModelError(f"{options['model']} is no GGUF file; the peers read nothing else alike")
    tokenizer = load_tokenizer(checkpoint.tokenizer_source)
    bos_token_id = tokenizer.bos_token_id if tokenizer.adds_bos else None
    words = whole_words(lambda text: tokenizer.encode(text, add_special_tokens=False))
    make_inputs(words, QUICK if options["is_quick"] else FULL, bos_token_id).save(Path(options["inputs"]))
    windows = make_windows(tokenizer.encode)
    Path(options["windows"]).write_text(json.dumps(windows), encoding="utf-8")
    folder = cache_dir() / "benchmarks" / hashlib.sha256(checkpoint.identity.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: str(_made_once(folder / FILES[name][0], FILES[name][1], checkpoint)) for name in options["needs"]}
    return {"gguf": str(checkpoint.path), "cache": str(folder), **_sizes(checkpoint.path), **files}


def _sizes(path: Path) -> dict[str, Any]:
    """Bytes of all weights; how many are multiplied for every token (`body`) and for every row of logits (`head`)."""
    tensors = read_gguf_header(path).tensors
    bytes_by_type: Counter[str] = Counter()
    for tensor in tensors.values():
        bytes_by_type[tensor.type.name] += tensor.num_bytes
    head = tensors.get("output.weight", tensors["token_embd.weight"])
    ends = {"output.weight", "token_embd.weight"}
    body = [tensor for name, tensor in tensors.items() if len(tensor.shape) > 1 and name not in ends]
    return {
        "weight_bytes": sum(bytes_by_type.values()),
        "weight_bytes_by_type": dict(bytes_by_type),
        "num_body_weights": sum(math.prod(tensor.shape) for tensor in body),
        "num_head_weights": math.prod(head.shape),
    }


def _made_once(target: Path, make: Callable[[GGUFCheckpoint, Path], None], checkpoint: GGUFCheckpoint) -> Path:
    if not target.exists():
        partial = target.with_name(f"{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.unlink(missing_ok=True)
        make(checkpoint, partial)
        partial.rename(target)
    return target


def _write_fp32(checkpoint: GGUFCheckpoint, target: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(checkpoint.metadata["general.architecture"], **checkpoint.config)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    state = {name: torch.empty(checkpoint.shape(name)) for name in checkpoint.tensor_names()}
    for name, tensor in state.items():
        checkpoint.read_into(name, tensor)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight"}, missing
    assert not unexpected, unexpected
    model.tie_weights()
    model.save_pretrained(target)


def _write_fp16_gguf(checkpoint: GGUFCheckpoint, target: Path) -> None:
    reader = gguf.GGUFReader(checkpoint.path)
    writer = gguf.GGUFWriter(target, checkpoint.metadata["general.architecture"])
    own = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")
    for field in reader.fields.values():
        if not field.name.startswith(own):
            sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=sub_type)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, values.astype(np.float16 if values.ndim > 1 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


FILES: dict[str, tuple[str, Callable[[GGUFCheckpoint, Path], None]]] = {
    "fp32": ("fp32", _write_fp32),
    "fp16_gguf": ("fp16.gguf", _write_fp16_gguf),
}
