"""Reads the tokenizer of a Hugging Face model directory.

`tokenizer.json` is read as it is. A directory with older files only is converted once through transformers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers

from .tokenizer_conversion import convert_directory
from .tokenizer_meta import Notice, TokenizerLoadError, TokenizerMeta, all_eos_token_ids


def read_directory(path: Path, on_notice: Notice | None) -> tuple[tokenizers.Tokenizer, TokenizerMeta]:
    """The tokenizer of a directory and what its configuration files declare.

    Raises:
        TokenizerLoadError: there is no tokenizer in it, or a file is malformed.
    """
    source = path / "tokenizer.json"
    text = source.read_text(encoding="utf-8") if source.is_file() else convert_directory(path, on_notice)
    backend = parse_tokenizer(source, text)
    config = _read_json(path / "tokenizer_config.json")
    names = _special_names(path, config)
    bos_token_id = _id_of(backend, names.get("bos_token"))
    declared = _declared_eos(path, backend, names)
    return backend, TokenizerMeta(
        bos_token_id=bos_token_id,
        eos_token_id=declared[-1] if declared else None,
        eos_token_ids=all_eos_token_ids(backend, declared),
        adds_bos=bos_token_id is not None and _adds_bos(backend, config, bos_token_id),
        chat_template=_chat_template(path, config),
    )


def parse_tokenizer(source: Path, text: str) -> tokenizers.Tokenizer:
    """A tokenizer from the text of a tokenizer.json, without truncation and padding.

    Raises:
        TokenizerLoadError: the text is not one.
    """
    try:
        backend = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the package raises bare Exception
        raise TokenizerLoadError(f"{source} is not a readable tokenizer.json: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerLoadError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerLoadError(f"{path} holds a {type(value).__name__}, not an object")
    return value


def _special_names(path: Path, config: dict[str, Any]) -> dict[str, str]:
    """The text of bos_token and eos_token; tokenizer_config.json goes before special_tokens_map.json."""
    names: dict[str, str] = {}
    for source in (_read_json(path / "special_tokens_map.json"), config):
        for name in ("bos_token", "eos_token"):
            value = source.get(name)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                names[name] = text
    return names


def _id_of(backend: tokenizers.Tokenizer, token: str | None) -> int | None:
    return None if token is None else backend.token_to_id(token)


def _declared_eos(path: Path, backend: tokenizers.Tokenizer, names: dict[str, str]) -> list[int]:
    """Every id the files name; the tokenizer's own eos_token, where it has one, is the last."""
    declared: list[int] = []
    for file in ("generation_config.json", "config.json"):
        value = _read_json(path / file).get("eos_token_id")
        declared += [value] if isinstance(value, int) else value if isinstance(value, list) else []
    named = _id_of(backend, names.get("eos_token"))
    return declared if named is None else [*declared, named]


def _adds_bos(backend: tokenizers.Tokenizer, config: dict[str, Any], bos_token_id: int) -> bool:
    """An explicit add_bos_token wins; otherwise the tokenizer's own post-processing tells."""
    explicit = config.get("add_bos_token")
    if isinstance(explicit, bool):
        return explicit
    return backend.encode("", add_special_tokens=True).ids[:1] == [bos_token_id]


def _chat_template(path: Path, config: dict[str, Any]) -> str | None:
    """The template in chat_template.jinja, chat_template.json or tokenizer_config.json; of several the default one."""
    jinja = path / "chat_template.jinja"
    if jinja.is_file():
        return jinja.read_text(encoding="utf-8")
    value = _read_json(path / "chat_template.json").get("chat_template", config.get("chat_template"))
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        value = named.get("default", next(iter(named.values()), None))
    return value if isinstance(value, str) else None
