"""Question: an item of a task as it is put to a model, with its shots, its choices and its right answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .errors import InvalidTaskError
from .shots import ShotSource, digest
from .task import Task
from .template import Record, parse_template

KEY_VERSION = 1
"""Goes up when the same question would be put to a model in another way."""

Part = tuple[str, str]
"""A role and a text; the role is "" for text outside of a chat."""


@dataclass(frozen=True, slots=True)
class Question:
    """One item, ready to be asked.

    Attributes:
        idx: of the item in the task.
        item: the item.
        parts: what stands before the answer.
        is_chat: whether the answer is a message of the assistant.
        lead: text between the parts and each choice, which counts with the choice.
        choices: of a task that has some; may hold the same text twice.
        targets: the right answers as texts; of a task with choices, the one that is right.
        target_idx: which choice is right.
    """

    idx: int
    item: Record
    parts: tuple[Part, ...]
    is_chat: bool = False
    lead: str = ""
    choices: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    target_idx: int | None = None

    def key(self, task: Task, model: object) -> str:
        """What the model's answer depends on, as one short text: two questions with the same key have the same answer.
        Filters, targets and metrics are no part of it."""
        return digest(
            [
                KEY_VERSION,
                model,
                task.kind,
                self.parts,
                self.lead,
                self.choices,
                [task.choices_method] if task.kind == "select" else None,
                [task.max_tokens, task.stop, task.temperature, task.seed if task.temperature else 0]
                if task.kind == "generate"
                else None,
            ]
        )[:32]


def build_questions(task: Task, limit: int | None = None) -> list[Question]:
    """The questions of a task, in the order of its items.

    Raises:
        InvalidTaskError: for one of them a template does not work, shots are missing or no choice is right; the message
            names the item. Or there are no items.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InvalidTaskError(f"limit={limit!r} must be an integer of at least 1, or None for all items")
    if not task.items:
        raise InvalidTaskError(f"the task {task.name!r} has no items")
    source = ShotSource(task)
    questions = []
    for idx, item in enumerate(task.items[:limit]):
        try:
            questions.append(_question(task, idx, item, source.shots_for(item)))
        except InvalidTaskError as error:
            raise InvalidTaskError(f"item {idx} of the task {task.name!r}: {error}") from None
    return questions


def _question(task: Task, idx: int, item: Record, shots: Sequence[Record]) -> Question:
    prompt = parse_template(task.prompt).render(item)
    if not prompt.strip():
        raise InvalidTaskError("its prompt is empty")
    if task.kind == "perplexity":
        return Question(idx, item, (("", prompt),))
    answered = [(parse_template(task.prompt).render(shot), _shot_answer(task, shot)) for shot in shots]
    is_chat = task.chat != "off"
    lead = "" if is_chat else task.delimiter
    if not task.has_choices:
        targets = tuple(parse_template(task.target).render_all(item))
        _first(targets)
        for target in targets:
            for each in task.filters:
                each.check_target(target)
        return Question(idx, item, _parts(task, answered, prompt), is_chat, lead, targets=targets)
    choices, target_idx = _choices(task, item)
    return Question(
        idx, item, _parts(task, answered, prompt), is_chat, lead, choices, (choices[target_idx],), target_idx
    )


def _parts(task: Task, shots: Sequence[tuple[str, str]], prompt: str) -> tuple[Part, ...]:
    text = "".join(f"{question}{task.delimiter}{answer}{task.separator}" for question, answer in shots) + prompt
    if task.chat == "off":
        return (("", task.description + text),)
    if task.chat == "text":
        system = task.system or ""
        messages: list[Part] = [("user", task.description + text)]
    else:
        system = "\n\n".join(part for part in ((task.system or "").strip(), task.description.strip()) if part)
        messages = [part for question, answer in shots for part in (("user", question), ("assistant", answer))]
        messages.append(("user", prompt))
    return (("system", system), *messages) if system else tuple(messages)


def _shot_answer(task: Task, shot: Record) -> str:
    try:
        if task.shot_target is not None:
            return parse_template(task.shot_target).render(shot)
        if task.has_choices:
            choices, target_idx = _choices(task, shot)
            return choices[target_idx]
        return _first(parse_template(task.target).render_all(shot))
    except InvalidTaskError as error:
        raise InvalidTaskError(f"one of its shots: {error}") from None


def _choices(task: Task, record: Record) -> tuple[tuple[str, ...], int]:
    """The choices of an item and which is right."""
    choices = tuple(choice for template in task.choices for choice in parse_template(template).render_all(record))
    if not choices or not all(choices):
        raise InvalidTaskError(f"its choices are {list(choices)!r}: there must be some, and none may be empty")
    target = _first(parse_template(task.target).render_all(record)).strip()
    for known in (choices, tuple(choice.strip() for choice in choices)):
        if target in known:
            return choices, known.index(target)
    position = -1
    if target.isascii() and target.isdigit():
        position = int(target)
    elif len(target) == 1 and "A" <= target <= "Z":
        position = ord(target) - ord("A")
    if not 0 <= position < len(choices):
        raise InvalidTaskError(
            f"its target {target!r} is none of the choices {list(choices)!r}, nor the position or letter of one"
        )
    return choices, position


def _first(texts: Sequence[str]) -> str:
    if not texts:
        raise InvalidTaskError("the field of its target is an empty list")
    return texts[0]
