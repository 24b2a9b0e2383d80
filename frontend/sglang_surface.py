"""Names that scripts for SGLang's frontend use and that ramet has nothing behind: refused with the reason, or, where
what they ask for is so in any case, taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from .errors import InvalidProgramError


def image(*_: object, **__: object) -> NoReturn:
    """
    Raises:
        InvalidProgramError: always; models here read text only.
    """
    raise InvalidProgramError(
        "image(...) is not supported: ramet runs text models; leave it out or use another runtime"
    )


def video(*_: object, **__: object) -> NoReturn:
    """
    Raises:
        InvalidProgramError: always; models here read text only.
    """
    raise InvalidProgramError(
        "video(...) is not supported: ramet runs text models; leave it out or use another runtime"
    )


_ALLOWED: Mapping[str, tuple[tuple[object, ...], str]] = {
    "verbosity": ((0,), "programs print nothing; state.calls() tells what ran"),
    "skip_special_tokens_in_output": ((True,), "special tokens are no part of a value; their ids are in meta(name)"),
    "spaces_between_special_tokens_in_out": ((True, False), ""),
    "enable_precache_with_tracing": ((True, False), ""),
    "enable_parallel_encoding": ((True, False), ""),
}


class GlobalConfig:
    """SGLang's flags. Each is what ramet does anyway; a value that asks for something else is refused.

    Attributes:
        verbosity: 0: programs print nothing.
        skip_special_tokens_in_output: True: values hold none.
        spaces_between_special_tokens_in_out: either, since there are none.
        enable_precache_with_tracing: either: what runs share is computed once, without a run with made-up arguments.
        enable_parallel_encoding: either: what branches share is computed once, and they run side by side.
    """

    verbosity: int
    skip_special_tokens_in_output: bool
    spaces_between_special_tokens_in_out: bool
    enable_precache_with_tracing: bool
    enable_parallel_encoding: bool

    def __init__(self) -> None:
        for name, (values, _) in _ALLOWED.items():
            setattr(self, name, values[0])

    def __setattr__(self, name: str, value: object) -> None:
        """
        Raises:
            InvalidProgramError: there is no such flag, or the value asks for what ramet does not do.
        """
        if name not in _ALLOWED:
            raise InvalidProgramError(f"global_config has no {name!r}; it has {', '.join(_ALLOWED)}")
        values, reason = _ALLOWED[name]
        if value not in values or isinstance(value, bool) != isinstance(values[0], bool):
            allowed = " or ".join(map(repr, values))
            raise InvalidProgramError(
                f"global_config.{name}={value!r} is not allowed: it must be {allowed}{reason and ': ' + reason}"
            )
        object.__setattr__(self, name, value)


global_config = GlobalConfig()
