"""Template: `{field}` in a text stands for a field of an item. Nothing else: no code, no attributes, no loops.

`{field.name}` and `{field.0}` lead into objects and lists; `{{` and `}}` are braces. A template that is one field and
nothing else may stand for a list of texts: choices, or several right answers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..suggestions import did_you_mean
from .errors import InvalidTaskError

Record = Mapping[str, Any]
"""One object of a JSONL file."""

_PIECE = re.compile(r"\{\{|\}\}|\{(?P<path>[^{}]*)\}|(?P<stray>[{}])|[^{}]+")


@dataclass(frozen=True, slots=True)
class Field:
    """A place in an item: keys of objects and indices of lists, from the outside in."""

    path: tuple[str, ...]

    def value(self, record: Record) -> Any:
        """
        Raises:
            InvalidTaskError: the item has no such place; the message lists the fields it has there.
        """
        value: Any = record
        for depth, step in enumerate(self.path):
            if isinstance(value, Mapping):
                known = [str(key) for key in value]
                is_known = step in value
            elif isinstance(value, list):
                known = [str(idx) for idx in range(len(value))]
                is_known = step in known
            else:
                known, is_known = [], False
            if not is_known:
                within = f"{'.'.join(self.path[:depth])!r} of the item" if depth else "the item"
                raise InvalidTaskError(
                    f"{within} has no field {step!r}{did_you_mean(step, known)} "
                    f"it has {', '.join(known) or 'no fields'}"
                )
            value = value[int(step)] if isinstance(value, list) else value[step]
        return value

    def __str__(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template; `parse_template` makes it."""

    source: str
    pieces: tuple[str | Field, ...]

    def render(self, record: Record) -> str:
        """The text for an item.

        Raises:
            InvalidTaskError: a field is unknown, null, a list or an object.
        """
        return "".join(
            piece if isinstance(piece, str) else _text_of(piece, piece.value(record)) for piece in self.pieces
        )

    def render_all(self, record: Record) -> list[str]:
        """The texts for an item: the items of the list, if the template is a field that holds one, else the one text.

        Raises:
            InvalidTaskError: as `render`.
        """
        field = self.pieces[0] if len(self.pieces) == 1 else ""
        if isinstance(field, Field):
            value = field.value(record)
            if isinstance(value, list):
                return [_text_of(Field((*field.path, str(idx))), item) for idx, item in enumerate(value)]
        return [self.render(record)]


def _text_of(field: Field, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return str(value)
    if value is None:
        raise InvalidTaskError(f"the field {str(field)!r} is null, and a prompt needs a text")
    if not isinstance(value, list | Mapping):
        raise InvalidTaskError(
            f"the field {str(field)!r} is a {type(value).__name__}, and a text or number was expected"
        )
    kind, part = ("a list", "0") if isinstance(value, list) else ("an object", next(iter(value), "name"))
    raise InvalidTaskError(
        f"the field {str(field)!r} is {kind}, and a text was expected: name a part of it, as in {{{field}.{part}}}"
    )


@lru_cache(maxsize=256)
def parse_template(source: str) -> Template:
    """
    Raises:
        InvalidTaskError: a brace without its partner, or a field without a name.
    """
    pieces: list[str | Field] = []
    for match in _PIECE.finditer(source):
        path = match["path"]
        if match["stray"]:
            raise InvalidTaskError(
                f"template {source!r}: the {match['stray']!r} at {match.start()} has no partner; write it "
                "twice to mean the character"
            )
        if path is None:
            text = match[0][0] if match[0] in ("{{", "}}") else match[0]
            if pieces and isinstance(pieces[-1], str):
                text = pieces.pop() + text  # type: ignore[operator]
            pieces.append(text)
            continue
        steps = tuple(step.strip() for step in path.split("."))
        if not all(steps):
            raise InvalidTaskError(
                f"template {source!r}: {match[0]} names no field; write {{question}} or {{options.0}}"
            )
        pieces.append(Field(steps))
    return Template(source, tuple(pieces))
