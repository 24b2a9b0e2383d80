"""Converts tokenizers this package cannot build itself, through transformers, and keeps the result.

transformers is imported only here, and only when nothing usable is in the cache directory: importing it and converting
takes some ten seconds of CPU.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from .config import cache_dir
from .tokenizer_meta import Notice, TokenizerLoadError

CACHE_FORMAT = 1
_SLOW_FILES = ("tokenizer.model", "vocab.json", "merges.txt", "vocab.txt", "spiece.model", "tokenizer_config.json")


def convert_directory(path: Path, on_notice: Notice | None) -> str:
    """The tokenizer.json of a Hugging Face directory that has only older files.

    Raises:
        TokenizerLoadError: the directory has no tokenizer files, or transformers cannot convert them.
    """
    files = [path / name for name in _SLOW_FILES if (path / name).is_file()]
    if not files or files == [path / "tokenizer_config.json"]:
        raise TokenizerLoadError(
            f"{path} holds no tokenizer: none of tokenizer.json, {', '.join(_SLOW_FILES[:-1])} is there; "
            "save one beside the weights with tokenizer.save_pretrained(directory)"
        )
    return _cached(files, lambda: _convert(path, None, on_notice))


def convert_gguf(path: Path, on_notice: Notice | None) -> str:
    """The tokenizer.json of a GGUF file whose kind of vocabulary is not built here.

    Raises:
        TokenizerLoadError: transformers cannot convert it.
    """
    return _cached([path], lambda: _convert(path.parent, path.name, on_notice))


def _convert(directory: Path, gguf_file: str | None, on_notice: Notice | None) -> str:
    if on_notice is not None:
        on_notice(f"Converting the tokenizer of {gguf_file or directory} through transformers; this is done once")
    from transformers import AutoTokenizer
    from transformers.utils import logging

    was_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    options = {} if gguf_file is None else {"gguf_file": gguf_file}
    try:
        converted = AutoTokenizer.from_pretrained(
            str(directory), local_files_only=True, trust_remote_code=False, **options
        )
        text = converted.backend_tokenizer.to_str()
    except Exception as error:
        name = directory / gguf_file if gguf_file else directory
        raise TokenizerLoadError(f"transformers cannot convert the tokenizer of {name}: {error}") from error
    finally:
        if was_shown:
            logging.enable_progress_bar()
    assert isinstance(text, str)
    return text


def _cached(files: list[Path], build: Callable[[], str]) -> str:
    """What `build` made of these files before, or what it makes now. A cache that cannot be written is no error."""
    key = [CACHE_FORMAT, *(_fingerprint(file) for file in files)]
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    target = cache_dir() / "tokenizers" / f"{name}.json"
    try:
        text = target.read_text(encoding="utf-8")
        json.loads(text)
    except (OSError, ValueError):
        text = build()
        _write(target, text)
    return text


def _fingerprint(file: Path) -> list[str | int]:
    status = file.stat()
    return [str(file.resolve()), status.st_size, status.st_mtime_ns]


def _write(target: Path, text: str) -> None:
    """Write a file so that readers see the old one or the whole new one."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.stem)
    except OSError:
        return
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, target)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
