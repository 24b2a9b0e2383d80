"""RunOptions: which keyword arguments of `run` are the program's own and which say how to run it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from ..sampling_params import SamplingParams
from .backend import Backend
from .errors import InvalidProgramError

_ALIASES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}
_NOT_FOR_PROGRAMS = {"prompt_logprobs", "skip_special_tokens", "include_stop_str_in_output"}
SAMPLING_OPTIONS = frozenset(item.name for item in fields(SamplingParams)) - _NOT_FOR_PROGRAMS

OnBodyError = Literal["raise", "return"]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run a program.

    Attributes:
        backend: None for the default one.
        on_error: whether `run` raises what the body raised, or returns the state that carries it.
        stream: whether `run` returns at once while the body goes on, as `stream` does.
        sampling: SamplingParams fields that calls inherit unless they set their own.
    """

    backend: Backend | None = None
    on_error: OnBodyError = "raise"
    stream: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)


def split_arguments(
    program_name: str, signature: inspect.Signature, arguments: Mapping[str, Any]
) -> tuple[dict[str, Any], RunOptions]:
    """Sort keyword arguments. A name that the program declares is the program's, even if it is also an option.

    Raises:
        InvalidProgramError: neither the program nor `run` knows the name, or an option has a bad value.
    """
    takes_any = any(param.kind is inspect.Parameter.VAR_KEYWORD for param in signature.parameters.values())
    own: dict[str, Any] = {}
    options: dict[str, Any] = {}
    sampling: dict[str, Any] = {}
    for name, value in arguments.items():
        canonical = _ALIASES.get(name, name)
        if name in signature.parameters:
            own[name] = value
        elif canonical in SAMPLING_OPTIONS:
            if value is not None:
                sampling[canonical] = value
        elif name in ("backend", "on_error", "stream"):
            options[name] = value
        elif takes_any:
            own[name] = value
        else:
            raise InvalidProgramError(
                f"{program_name}.run got an unknown argument {name!r}; the program takes "
                f"{_listing(list(signature.parameters)[1:])}; options are backend, on_error, stream, "
                f"{', '.join(sorted(SAMPLING_OPTIONS))}"
            )
    on_error = options.get("on_error", "raise")
    if on_error not in ("raise", "return"):
        raise InvalidProgramError(f"on_error={on_error!r} is not allowed: use 'raise' or 'return'")
    return own, RunOptions(**options, sampling=sampling)


def _listing(names: list[str]) -> str:
    return ", ".join(names) if names else "no arguments"
