"""RunOptions: which keyword arguments of `run` are the program's own and which say how to run it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from ..sampling_params import SamplingParams
from ..suggestions import did_you_mean
from .errors import InvalidProgramError
from .logprob_arguments import LOGPROB_ARGUMENTS, take_logprob_options

if TYPE_CHECKING:
    from .default_backend import BackendLike

_ALIASES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}
_NOT_FOR_PROGRAMS = {
    "prompt_logprobs",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "best_of",
    "use_beam_search",
    "length_penalty",
    "early_stopping",
}
_ONLY_AT_A_GEN = {"regex", "json_schema", "ebnf", "choices", "json_whitespace", "on_incomplete", "grammar_backend"}
"""What the text of one gen must be is said where it is written; as a default it would constrain all the others too."""

SAMPLING_OPTIONS = frozenset(item.name for item in fields(SamplingParams)) - _NOT_FOR_PROGRAMS - _ONLY_AT_A_GEN

RunMethod = Literal["run", "stream", "arun", "astream", "run_batch", "arun_batch"]
_BATCH_OPTIONS = ("max_concurrency", "progress_bar", "on_error", "max_failures", "journal", "retry_failed")
METHOD_OPTIONS: Mapping[RunMethod, tuple[str, ...]] = {
    "run": ("backend", "on_error", "stream"),
    "stream": ("backend", "on_error"),
    "arun": ("backend", "on_error"),
    "astream": ("backend", "on_error"),
    "run_batch": (*_BATCH_OPTIONS, "generator_style", "num_threads", "backend"),
    "arun_batch": (*_BATCH_OPTIONS, "backend"),
}
_REFUSED: Mapping[RunMethod, Mapping[str, str]] = {
    "run_batch": {"stream": "it returns when all items have ended; generator_style=True hands them out before"},
    "arun_batch": {
        "stream": "it returns when all items have ended",
        "generator_style": "it returns when all items have ended; run_batch can hand them out before",
    },
    "arun": {"stream": "its state is finished; use `async for event in program.astream(...)`"},
}

OnBodyError = Literal["raise", "return"]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run a program.

    Attributes:
        backend: None for the default one.
        on_error: whether `run` raises what the body raised, or returns the state that carries it.
        stream: whether `run` returns at once while the body goes on, as `stream` does.
        sampling: SamplingParams fields that calls inherit unless they set their own. No constraints on the text.
    """

    backend: BackendLike | None = None
    on_error: OnBodyError = "raise"
    stream: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)


def split_arguments(
    program_name: str, signature: inspect.Signature, arguments: Mapping[str, Any], method: RunMethod = "run"
) -> tuple[dict[str, Any], RunOptions]:
    """Sort keyword arguments. A name that the program declares is the program's, even if it is also an option.

    Raises:
        InvalidProgramError: neither the program nor the method knows the name, or an option has a bad value.
    """
    takes_any = any(param.kind is inspect.Parameter.VAR_KEYWORD for param in signature.parameters.values())
    own: dict[str, Any] = {}
    options: dict[str, Any] = {}
    sampling: dict[str, Any] = {}
    for name, value in arguments.items():
        canonical = _ALIASES.get(name, name)
        if name in signature.parameters:
            own[name] = value
        elif canonical in SAMPLING_OPTIONS or name in LOGPROB_ARGUMENTS:
            if value is not None:
                sampling[canonical] = value
        elif name == "use_thread" and method in ("run", "stream"):
            _check_use_thread(value)
        elif name in METHOD_OPTIONS[method]:
            options[name] = value
        elif name in _REFUSED.get(method, {}):
            raise InvalidProgramError(
                f"{program_name}.{method} does not take {name!r}: {_REFUSED[method][name]}; {_options_of(method)}"
            )
        elif takes_any:
            own[name] = value
        else:
            raise _unknown_argument(program_name, signature, name, method)
    on_error = options.get("on_error", "raise")
    if on_error not in ("raise", "return"):
        raise InvalidProgramError(f"on_error={on_error!r} is not allowed: use 'raise' or 'return'")
    sampling.update(take_logprob_options(sampling))
    return own, RunOptions(**options, sampling=sampling)


def _check_use_thread(value: object) -> None:
    """SGLang asks whether a state gets a thread. None needs one here: the body runs in the caller's, calls in none."""
    if not isinstance(value, bool):
        raise InvalidProgramError(f"use_thread={value!r} is not allowed: it must be True or False")


def _unknown_argument(
    program_name: str, signature: inspect.Signature, name: str, method: RunMethod
) -> InvalidProgramError:
    if name in _ONLY_AT_A_GEN:
        return InvalidProgramError(
            f"{program_name}.{method} does not take {name!r}, which would hold for every gen of the program: "
            f"write gen(..., {name}=...) where it is meant"
        )
    own = list(signature.parameters)[1:]
    known = [*own, *METHOD_OPTIONS[method], *sorted(SAMPLING_OPTIONS)]
    return InvalidProgramError(
        f"{program_name}.{method} got an unknown argument {name!r}{did_you_mean(name, known)} "
        f"the program takes {', '.join(own) or 'no arguments'}; {_options_of(method)}"
    )


def _options_of(method: RunMethod) -> str:
    return f"options of {method} are {', '.join([*METHOD_OPTIONS[method], *sorted(SAMPLING_OPTIONS)])}"
