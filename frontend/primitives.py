"""Expressions of the language: frozen nodes that say what to append to a state.

`"Answer: " + gen("answer") + "\\n"` builds a Concat of Text and Gen; nothing runs until it is added to a state.
A wrong argument is reported here, on the line that wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..grammar_spec import JsonModel, JsonWhitespace, OnIncomplete
from ..regex_outline import MAX_REGEX_CHARS, RegexSyntaxError, outline
from ..sampling_params import InvalidSamplingParamsError
from .choices import ChoicesMethod, resolve_choices_method
from .errors import InvalidProgramError
from .logprob_arguments import sampling_fields, take_logprob_options
from .params_cache import params_of
from .reasoning import ReasoningFormat
from .suggestions import checks_names
from .value_types import ValueType, dtype_pattern, resolve_value_type

ROLES = ("system", "user", "assistant", "tool")

MAX_SELECT_TEMPERATURE = 1e-5
"""What SGLang takes for 0."""

_NO_PART_IN_SELECT = frozenset(
    {"choices", "temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "min_tokens", "stop", "stop_token_ids"}
    | {"ignore_eos", "stop_regex"}
)
"""What gen(choices=...) takes without using it when it is a select: it says how to sample, or where to end."""


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
    """Generate text and, with a name, bind it.

    Attributes:
        options: the sampling parameters this call sets itself, and PROMPT_START of logprob_arguments.py.
        value_type: what the text becomes when the name is read; None leaves it a text.
        is_healed: whether, under a constraint, a token may span the boundary to the literal text before.
        reasoning: how the text marks what is taken out of it; see separate_reasoning.
    """

    name: str | None
    options: Mapping[str, Any]
    value_type: ValueType | None = None
    is_healed: bool = True
    reasoning: ReasoningFormat | None = None


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
    """Close the open chat message, which must be of this role. `fields` are what it has beside role and content."""

    role: str
    fields: tuple[tuple[str, str], ...] = ()


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
    stop_regex: str | Iterable[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: type | None = None,
    choices: Iterable[str] | None = None,
    choices_method: ChoicesMethod | str | None = None,
    regex: str | None = None,
    json_schema: Mapping[str, Any] | bool | str | type[JsonModel] | None = None,
    *,
    repetition_penalty: float | None = None,
    seed: int | None = None,
    logit_bias: Mapping[int, float] | None = None,
    logprobs: int | None = None,
    ebnf: str | None = None,
    json_whitespace: JsonWhitespace | None = None,
    on_incomplete: OnIncomplete | None = None,
    grammar_backend: str | None = None,
    parse: bool | None = None,
    heal: bool | None = None,
) -> Expression:
    """Let the model continue the text.

    An argument left at None takes the value given to `run`, else the default (max_tokens 128, temperature 1). Meaning
    and limits are those of SamplingParams. The value bound to `name` is the text; with n > 1 a list of texts, of which
    the first continues the program. At most one of `dtype`, `choices`, `regex`, `json_schema` and `ebnf` says what the
    text must be. What max_tokens cuts off is only the beginning of such a text; `meta(name).complete` tells.

    Positional arguments come in SGLang's order; `return_logprob` and the three like it are in logprob_arguments.py.

    Args:
        dtype: int, float, bool ("True", "False") or str (double-quoted, on one line) is what the text spells and the
            value is. A number that max_tokens cut off has the digits there was room for.
        choices: with a temperature above 0 given here, one of these is sampled token by token; else this is
            `select(name, choices, choices_method)`, as in SGLang, and what only says how to sample plays no part.
        json_schema: a model class, such as one of pydantic's, makes the value an instance of it.
        parse: True makes the value of any json_schema what json.loads gives, False leaves every value a text. Where a
            text does not parse, reading the value raises UnparsedTextError.
        heal: whether the first token of a constrained text may span the boundary to the literal text. None is True.

    Raises:
        InvalidSamplingParamsError: a value is out of range, or constraints contradict each other.
        InvalidProgramError: the name is not a non-empty string, or other arguments contradict each other.
    """
    return _checked_gen(**locals())


def _checked_gen(
    name: str | None,
    *,
    dtype: type | None,
    choices_method: ChoicesMethod | str | None,
    parse: bool | None,
    heal: bool | None,
    **options: Any,
) -> Expression:
    """The gen of these arguments; `options` are fields of SamplingParams, None where they were not given."""
    logprob_options = take_logprob_options(options)
    given = {
        key: value if key == "json_schema" else _frozen(value) for key, value in options.items() if value is not None
    }
    if dtype is not None:
        given["regex"] = dtype_pattern(dtype, given)
    params = params_of({"max_tokens": None, **given, **sampling_fields(logprob_options)})
    if params.regex is not None:
        _check_regex(params.regex)
    _check_heal(heal, is_constrained=params.grammar_spec is not None)
    json_schema = given.get("json_schema")
    value_type = resolve_value_type(dtype, json_schema, parse)
    if params.choices is not None and not given.get("temperature"):
        return _select_for_gen(name, {**given, "heal": heal}, choices_method)
    given.update(logprob_options)
    if choices_method is not None:
        raise InvalidProgramError(
            f"gen({name!r}, choices_method={choices_method!r}) is not allowed: it is the rule by which the best of "
            "`choices` is taken, so give them, and no temperature above 0"
        )
    if json_schema is not None:
        given["json_schema"] = params.json_schema  # a text, which nobody changes between runs
    return Gen(_checked_name("gen", name), MappingProxyType(given), value_type, is_healed=heal is not False)


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
    if not 0 <= temperature <= MAX_SELECT_TEMPERATURE:
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


def system(expr: Expression | str | None = None) -> Expression:
    """A whole system message."""
    return _message("system", expr)


def user(expr: Expression | str | None = None) -> Expression:
    """A whole user message."""
    return _message("user", expr)


def assistant(expr: Expression | str | None = None) -> Expression:
    """A whole assistant message; usually holds a gen."""
    return _message("assistant", expr)


def tool(expr: Expression | str | None = None, name: str | None = None, tool_call_id: str | None = None) -> Expression:
    """A whole tool message: what a tool answered. The message has the name and the id of the call if they are given.

    A template that knows no such role is asked all the same; what it refuses is raised where the text is read.
    """
    fields = tuple((key, value) for key, value in (("name", name), ("tool_call_id", tool_call_id)) if value is not None)
    return Concat((RoleBegin("tool"), *_content(expr), RoleEnd("tool", fields)))


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


def _message(role: str, expr: Expression | str | None) -> Expression:
    return Concat((RoleBegin(role), *_content(expr), RoleEnd(role)))


def _content(expr: Expression | str | None) -> tuple[Expression, ...]:
    return () if expr is None else as_expression(expr).parts()


def _frozen(value: Any) -> Any:
    """What can be read only once must not be used up by the check, and what can change must not change after it."""
    if isinstance(value, Mapping):
        return dict(value)
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str | type) else value


def _check_regex(regex: str) -> None:
    """What Python's re cannot read, no backend can enforce; it is the one part of a grammar that costs no engine."""
    if len(regex) > MAX_REGEX_CHARS:
        raise InvalidSamplingParamsError(
            f"a regex of {len(regex):,} characters is not allowed: it must have at most {MAX_REGEX_CHARS:,}"
        )
    try:
        outline(regex)
    except RegexSyntaxError as error:
        raise InvalidSamplingParamsError(f"regex={regex!r} is not allowed: {error}") from error


def _check_heal(heal: object, *, is_constrained: bool) -> None:
    if heal is not None and not isinstance(heal, bool):
        raise InvalidProgramError(f"heal={heal!r} is not allowed: it must be True, False or None")
    if heal and not is_constrained:
        raise InvalidProgramError(
            "heal=True is not allowed: only the text of a constrained gen is healed, such as regex="
        )


def _select_for_gen(
    name: str | None, given: Mapping[str, Any], choices_method: ChoicesMethod | str | None
) -> Expression:
    """gen(choices=...) without a temperature. What asks for something that a select does not give is refused."""
    for key in sorted(given.keys() - _NO_PART_IN_SELECT):
        if given[key] is not None and (key, given[key]) not in (("n", 1), ("heal", True)):
            raise InvalidProgramError(
                f"gen({name!r}, choices=..., {key}={given[key]!r}) is not allowed: without a temperature above 0 it is "
                f"a select, which takes the likeliest choice and knows no {key}; give a temperature to sample a choice"
            )
    return select(_checked_name("gen", name), given["choices"], choices_method=choices_method)


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
