"""How long a context a model may be given."""

from __future__ import annotations

from .base import ModelConfig
from .errors import ModelLoadError


def max_context_len(config: ModelConfig) -> int:
    """Longest context in tokens the checkpoint's positions are meant for."""
    rope, stated = config.rope, config.max_position_embeddings
    if rope is None:
        return stated
    if rope.type == "linear":
        return int(stated * rope.factor)
    if rope.type == "yarn":
        return max(stated, int((rope.original_max_position_embeddings or stated) * rope.factor))
    return stated


def default_context_len(config: ModelConfig) -> int:
    """Context when the user names none: the longest at which every text equals transformers (see `rope.py`)."""
    rope = config.rope
    if rope is not None and rope.type == "longrope":
        return min(config.max_position_embeddings, rope.original_max_position_embeddings or max_context_len(config))
    return max_context_len(config)


def resolve_max_model_len(config: ModelConfig, requested: int | None) -> int:
    """The context to build the model for.

    Raises:
        ModelLoadError: `requested` is below 1 or beyond what the model's positions can represent.
    """
    if requested is None:
        return default_context_len(config)
    if requested < 1:
        raise ModelLoadError(f"max_model_len={requested} must be at least 1")
    limit = max_context_len(config)
    if requested <= limit:
        return requested
    if config.rope is not None and config.rope.type == "dynamic":
        raise ModelLoadError(
            f"max_model_len={requested} exceeds {limit}: dynamic rope scaling changes with the length of the text, so "
            f"cached keys would be wrong beyond it; use max_model_len <= {limit}, or 'yarn' or 'linear' scaling"
        )
    raise ModelLoadError(
        f"max_model_len={requested} exceeds the model's limit of {limit} positions; lower it, or give the checkpoint "
        f"a rope scaling that reaches further"
    )
