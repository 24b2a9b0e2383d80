"""Task: what an evaluation asks, and how its answers are judged. Plain data; `load_task` reads it from files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..frontend.choices import resolve_choices_method
from ..frontend.errors import InvalidProgramError
from ..sampling_params import InvalidSamplingParamsError, SamplingParams
from ..suggestions import refuses_unknown_fields
from .errors import InvalidTaskError
from .filters import Filter
from .template import Record, parse_template

Kind = Literal["multiple_choice", "select", "generate", "perplexity"]
ShotOrder = Literal["fixed", "first", "per_item"]
Chat = Literal["off", "turns", "text"]


@refuses_unknown_fields(InvalidTaskError)
@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A few-shot task.

    A prompt without a chat template is: description, then for every shot its prompt, the delimiter, its target and the
    separator, then the item's prompt. Templates are those of template.py.

    Attributes:
        name: for reports.
        kind: "multiple_choice" compares the log-likelihoods of the choices (metrics `acc` and `acc_norm`, the latter
            per character); "select" takes what `select` with `choices_method` takes (`acc`); "generate" lets the model
            write and looks for the answer with `filters` (a metric each); "perplexity" takes the log-likelihood of the
            text that `prompt` gives, all of it.
        items: what is asked, an object each.
        prompt: template of a question.
        target: template of the right answer; a field that holds a list means that each of its texts is right. Of a
            task with choices it gives the text of the right one, or else its position from 0, or else its capital
            letter.
        choices: templates of the choices, or one template that is a field with a list of them.
        shots: where worked examples come from. None takes them from the items, and never the item that is asked.
        num_shots: how many each prompt has.
        shot_target: template of the answer in a shot where that is more than the target, such as a worked solution.
        shot_order: "fixed" draws the same shots for every item, so that their text is computed once; "first" takes the
            first ones; "per_item" draws for each item anew.
        seed: of the draw, and of sampling with a temperature.
        description: text before everything else; with chat="turns" it is part of the system message.
        delimiter: between a prompt and its answer. Spaces at its end count with the answer. In a chat the roles stand
            for it.
        separator: between shots.
        chat: "off" asks in plain text; "turns" makes a message of every part of a shot; "text" asks in one user message
            that holds the shots.
        system: the system message of a chat.
        choices_method: of kind "select".
        max_tokens, stop, temperature: of kind "generate".
        filters: of kind "generate".

    Raises:
        InvalidTaskError: a value is of the wrong type or not allowed, or a template cannot be read. What depends on the
            items is checked when the task is asked.
    """

    name: str
    kind: Kind
    items: Sequence[Record]
    prompt: str
    target: str = ""
    choices: str | Sequence[str] = ()
    shots: Sequence[Record] | None = None
    num_shots: int = 0
    shot_target: str | None = None
    shot_order: ShotOrder = "fixed"
    seed: int = 0
    description: str = ""
    delimiter: str = " "
    separator: str = "\n\n"
    chat: Chat = "off"
    system: str | None = None
    choices_method: str = "token_length_normalized"
    max_tokens: int = 256
    stop: Sequence[str] = ()
    temperature: float = 0.0
    filters: Sequence[Filter] = (Filter(),)

    def __post_init__(self) -> None:
        self._check_types()
        self._freeze()
        _check_one_of("kind", self.kind, get_args(Kind))
        _check_one_of("shot_order", self.shot_order, get_args(ShotOrder))
        _check_one_of("chat", self.chat, get_args(Chat))
        for template in (self.prompt, self.target, self.shot_target or "", *self.choices):
            parse_template(template)
        self._check_kind()
        self._check_chat()
        self._check_filters()
        try:
            self.sampling_params()
            resolve_choices_method(self.choices_method)
        except (InvalidSamplingParamsError, InvalidProgramError) as error:
            raise InvalidTaskError(str(error)) from None

    @property
    def has_choices(self) -> bool:
        return self.kind in ("multiple_choice", "select")

    def sampling_params(self) -> SamplingParams:
        """How answers are generated."""
        return SamplingParams(
            max_tokens=self.max_tokens, stop=list(self.stop), temperature=self.temperature, seed=self.seed
        )

    def settings(self) -> dict[str, Any]:
        """What is asked with, items, templates and shots apart, as plain data; sampling only where it plays a part."""
        settings: dict[str, Any] = {
            "kind": self.kind,
            "num_shots": self.num_shots,
            "shot_order": self.shot_order,
            "seed": self.seed,
            "chat": self.chat,
        }
        if self.kind == "select":
            settings["choices_method"] = self.choices_method
        if self.kind == "generate":
            settings |= {"max_tokens": self.max_tokens, "temperature": self.temperature, "stop": list(self.stop)}
        return settings

    def _check_types(self) -> None:
        texts = {
            "name": self.name,
            "prompt": self.prompt,
            "target": self.target,
            "description": self.description,
            "delimiter": self.delimiter,
            "separator": self.separator,
            "choices_method": self.choices_method,
            "shot_target": self.shot_target or "",
            "system": self.system or "",
        }
        for name, text in texts.items():
            if not isinstance(text, str):
                raise InvalidTaskError(f"{name}={text!r} must be a text")
        for name, count in (("num_shots", self.num_shots), ("seed", self.seed)):
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise InvalidTaskError(f"{name}={count!r} must be an integer of at least 0")
        if not self.name or not self.prompt:
            raise InvalidTaskError("a task needs a name and a prompt, such as 'Question: {question}\\nAnswer:'")

    def _freeze(self) -> None:
        """Lists become tuples: a task does not change under who holds it."""
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        choices = (self.choices,) if isinstance(self.choices, str) and self.choices else self.choices or ()
        for name, value in (("stop", stop), ("choices", choices)):
            object.__setattr__(self, name, _as_tuple(name, value, str, "texts"))
        object.__setattr__(self, "filters", _as_tuple("filters", self.filters, Filter, "filters"))
        object.__setattr__(self, "items", _as_tuple("items", self.items, Mapping, "objects with named fields"))
        if self.shots is not None:
            object.__setattr__(self, "shots", _as_tuple("shots", self.shots, Mapping, "objects with named fields"))

    def _check_kind(self) -> None:
        if self.has_choices != bool(self.choices):
            raise InvalidTaskError(
                f"a task of kind {self.kind!r} needs choices: a list of templates, or a field with a list as in "
                "'{options}'"
                if self.has_choices
                else f"a task of kind {self.kind!r} takes no choices: its kind would be 'multiple_choice' or 'select'"
            )
        if self.kind != "perplexity" and not self.target:
            raise InvalidTaskError(f"a task of kind {self.kind!r} needs a target, such as '{{answer}}'")
        if self.kind == "perplexity" and (self.num_shots or self.chat != "off" or self.description):
            raise InvalidTaskError("a task of kind 'perplexity' takes whole texts: no shots, no chat, no description")

    def _check_chat(self) -> None:
        if self.system is not None and self.chat == "off":
            raise InvalidTaskError(
                "a system prompt needs a chat: set chat to 'turns' or 'text', or put the text into the description"
            )

    def _check_filters(self) -> None:
        names = [item.name for item in self.filters]
        if not names:
            raise InvalidTaskError("a task has one filter at least; Filter() compares the whole text")
        if len(set(names)) != len(names):
            raise InvalidTaskError(f"filters are metrics, so their names must differ: {', '.join(names)}")


def _as_tuple(name: str, values: object, kind: type, what: str) -> tuple[Any, ...]:
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise InvalidTaskError(f"{name}={values!r} must be a list of {what}")
    items = tuple(values)
    for idx, item in enumerate(items):
        if not isinstance(item, kind):
            raise InvalidTaskError(f"{name} must be a list of {what}, and {name}[{idx}] is {item!r}")
    return items


def _check_one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise InvalidTaskError(f"{name}={value!r} is not allowed: use one of {', '.join(map(repr, allowed))}")
