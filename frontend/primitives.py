"""Expressions of the language: frozen nodes that say what to append to a state.

`"Answer: " + gen("answer") + "\\n"` builds a Concat of Text and Gen; nothing runs until it is added to a state.
A wrong argument is reported here, on the line that wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..sampling_params import SamplingParams
from .choices import ChoicesMethod, resolve_choices_method
from .errors import InvalidProgramError
from .suggestions import checks_names

ROLES = ("system", "user", "assistant")


class Expression:
    """Something that can be appended to a state. `+` joins expressions and strings."""

    __slots__ = ()

    def parts(self) -> tuple[Expression, ...]:
        """The expression as a flat sequence."""
        return (self,)

    def __add__(self, other: Expression | str) -> Expression:
        if not isinstance(other, Expression | str):
            return NotImplemented
        return Concat(self.parts() + as_expression(other).parts())

    def __radd__(self, other: str) -> Expression:
        if not isinstance(other, str):
            return NotImplemented
        return Concat((Text(other), *self.parts()))


@dataclass(frozen=True, slots=True)
class Text(Expression):
    """Literal text. It never becomes a special token, whatever it contains."""

    text: str


@dataclass(frozen=True, slots=True)
class Gen(Expression):
    """Generate text and, with a name, bind it. `options` holds the sampling parameters this call sets itself."""

    name: str | None
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Select(Expression):
    """Append the most likely of some texts and, with a name, bind it."""

    name: str | None
    choices: tuple[str, ...]
    method: ChoicesMethod


@dataclass(frozen=True, slots=True)
class RoleBegin(Expression):
    """Open a chat message of a role."""

    role: str


@dataclass(frozen=True, slots=True)
class RoleEnd(Expression):
    """Close the open chat message, which must be of this role."""

    role: str


@dataclass(frozen=True, slots=True)
class Concat(Expression):
    """Expressions one after the other."""

    items: tuple[Expression, ...]

    def parts(self) -> tuple[Expression, ...]:
        return self.items


def with_article(role: str) -> str:
    """The role with its indefinite article."""
    return f"{'an' if role == 'assistant' else 'a'} {role}"


def as_expression(value: Expression | str | Sequence[Expression | str]) -> Expression:
    """Strings become Text, lists and tuples a Concat.

    Raises:
        InvalidProgramError: the value is of another type.
    """
    if isinstance(value, Expression):
        return value
    if isinstance(value, str):
        return Text(value)
    if isinstance(value, list | tuple):
        return Concat(tuple(part for item in value for part in as_expression(item).parts()))
    raise InvalidProgramError(
        f"cannot append {value!r} of type {type(value).__name__} to a program: "
        "append a string or an expression such as gen(...); use str(...) for numbers"
    )


@checks_names
def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Iterable[str] | None = None,
    stop_token_ids: Iterable[int] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    repetition_penalty: float | None = None,
    ignore_eos: bool | None = None,
    seed: int | None = None,
    logit_bias: Mapping[int, float] | None = None,
    logprobs: int | None = None,
) -> Expression:
    """Let the model continue the text.

    An argument left at None takes the value given to `run`, and else the default (max_tokens 128, temperature 1).
    The meaning and limits of each are those of SamplingParams. The value bound to `name` is the text; with n > 1 a
    list of n texts, of which the first continues the program.

    Raises:
        InvalidSamplingParamsError: a value is out of range.
        InvalidProgramError: the name is not a non-empty string.
    """
    options = {
        "max_tokens": max_tokens,
        "min_tokens": min_tokens,
        "n": n,
        "stop": _frozen(stop),
        "stop_token_ids": _frozen(stop_token_ids),
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "repetition_penalty": repetition_penalty,
        "ignore_eos": ignore_eos,
        "seed": seed,
        "logit_bias": None if logit_bias is None else dict(logit_bias),
        "logprobs": logprobs,
    }
    given = {key: value for key, value in options.items() if value is not None}
    SamplingParams(**{"max_tokens": None, **given})
    return Gen(_checked_name("gen", name), MappingProxyType(given))


@checks_names
def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesMethod | str | None = None,
    *,
    method: ChoicesMethod | str | None = None,
) -> Expression:
    """Append whichever of `choices` the model finds most likely here.

    Each choice is tokenised together with the text before it, so a choice may merge with the end of that text; spaces
    there count with the choices in any case. All are scored in one request: choices of one token cost nothing beyond
    the text before them, others usually one step more.

    Args:
        name: variable to bind the chosen text to.
        choices: non-empty, distinct texts; at least one.
        temperature: only 0 is allowed: the best choice is taken.
        choices_method: how token log-probabilities become one score; an object of choices.py or its name.
            `method` is the same argument under a shorter name. Default: token_length_normalized.

    Raises:
        InvalidProgramError: a choice list, name, method or temperature that cannot work.
    """
    if temperature != 0:
        raise InvalidProgramError(
            f"select(temperature={temperature!r}) is not allowed: select takes the best choice (0)"
        )
    if choices_method is not None and method is not None:
        raise InvalidProgramError(
            "select was given both choices_method and method: they are the same argument, give one"
        )
    return Select(
        _checked_name("select", name), _checked_choices(name, choices), resolve_choices_method(choices_method or method)
    )


def system(expression: Expression | str = "") -> Expression:
    """A whole system message."""
    return _message("system", expression)


def user(expression: Expression | str = "") -> Expression:
    """A whole user message."""
    return _message("user", expression)


def assistant(expression: Expression | str = "") -> Expression:
    """A whole assistant message; usually holds a gen."""
    return _message("assistant", expression)


def system_begin() -> Expression:
    return RoleBegin("system")


def system_end() -> Expression:
    return RoleEnd("system")


def user_begin() -> Expression:
    return RoleBegin("user")


def user_end() -> Expression:
    return RoleEnd("user")


def assistant_begin() -> Expression:
    return RoleBegin("assistant")


def assistant_end() -> Expression:
    return RoleEnd("assistant")


def _message(role: str, expression: Expression | str) -> Expression:
    return Concat((RoleBegin(role), *as_expression(expression).parts(), RoleEnd(role)))


def _frozen(value: Any) -> Any:
    """An iterable that can be read only once must not be used up by the check."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


def _checked_name(what: str, name: object) -> str | None:
    if name is not None and (not isinstance(name, str) or not name):
        raise InvalidProgramError(
            f"{what}(name={name!r}) is not allowed: a name is a non-empty string, or None for no name"
        )
    return name


def _checked_choices(name: str | None, choices: object) -> tuple[str, ...]:
    where = f"select({name!r}, choices={choices!r})"
    if isinstance(choices, str) or not isinstance(choices, Iterable):
        raise InvalidProgramError(f"{where} is not allowed: choices must be a list of strings")
    items = tuple(choices)
    if not items:
        raise InvalidProgramError(f"{where} is not allowed: give at least one choice")
    for item in items:
        if not isinstance(item, str) or not item:
            raise InvalidProgramError(
                f"{where} is not allowed: every choice must be a non-empty string, {item!r} is not"
            )
    if len(set(items)) != len(items):
        raise InvalidProgramError(f"{where} is not allowed: the choices must differ from each other")
    return items
