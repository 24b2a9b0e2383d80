"""TaggedText: texts in which some parts, such as tool calls, are held to JSON schemas, and the rest is free.

A GrammarSpec of kind "tagged_text" has it as JSON text; it is compiled under the same limits as every other grammar.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from ...grammar_spec import GrammarSpec
from .json_schema.compile import json_schema_lark
from .json_schema.terminals import literal, regex
from .regex.char_sets import CharSet


@dataclass(frozen=True, slots=True)
class Tag:
    """A part: `begin`, JSON that satisfies `schema` (JSON text), `end`."""

    begin: str
    schema: str
    end: str


@dataclass(frozen=True, slots=True)
class TaggedText:
    """What may be written.

    Attributes:
        tags: the parts there may be; at least one.
        mark: what every tag begins with. Free text never has it: whoever writes it has begun a tag.
        is_required: there is no free text, but at least one tag.
        is_at_start: tags stand at the beginning of the text only, and nothing follows them; a mark later on is text.
        is_single: there is one tag at most. Otherwise required ones, and those at the start, stand one a line.
        otherwise: JSON schema of a text without tags, in place of free text; tags stand at the start then.
    """

    tags: tuple[Tag, ...]
    mark: str
    is_required: bool = False
    is_at_start: bool = False
    is_single: bool = False
    otherwise: str | None = None

    def spec(self) -> GrammarSpec:
        return GrammarSpec("tagged_text", json.dumps(asdict(self), ensure_ascii=False))


def tagged_text_lark(source: str, spellable: CharSet) -> dict[str, str]:
    """The grammars of a spec's source by their names, in llguidance's Lark dialect; the first one refers to the others.

    Args:
        spellable: the characters that the vocabulary can spell.

    Raises:
        UnsupportedSchemaError: a schema cannot be enforced.
    """
    given = json.loads(source)
    text = TaggedText(**{**given, "tags": tuple(Tag(**tag) for tag in given["tags"])})
    names: dict[str, str] = {}
    for schema in [tag.schema for tag in text.tags] + ([] if text.otherwise is None else [text.otherwise]):
        names.setdefault(schema, f"json{len(names)}")
    schemas = {name: json_schema_lark(schema, spellable=spellable) for schema, name in names.items()}
    return {"text": "\n".join(_rules(text, names)) + "\n", **schemas}


def _rules(text: TaggedText, names: dict[str, str]) -> list[str]:
    """The rules around the schemas, which have these names."""
    whole = [f"{literal(tag.begin)} @{names[tag.schema]} {literal(tag.end)}" for tag in text.tags]
    at_start = ["tag: " + " | ".join(whole), "tags: tag" if text.is_single else r'tags: tag ("\n" tag)*']
    if text.is_required:
        return ["start: tags", *at_start]
    if text.otherwise is not None:
        return [f"start: tags | @{names[text.otherwise]}", *at_start]
    if text.is_at_start:
        return ["start: tags | TEXT", *at_start, f"TEXT: {regex(_not_beginning_with(text.mark))}"]
    rests = [
        f"{literal(tag.begin.removeprefix(text.mark))} @{names[tag.schema]} {literal(tag.end)}" for tag in text.tags
    ]
    return [
        "start: TEXT | head tag" if text.is_single else "start: (head tag)* TEXT",
        f"head[lazy]: TEXT {literal(text.mark)}",  # lazy: it ends where the first mark does, so none is text
        "tag: " + " | ".join(rests),
        "TEXT: /(?s:.*)/",
    ]


def _not_beginning_with(mark: str) -> str:
    """A regular expression of the texts that do not begin with `mark`."""
    pattern = ""
    for char in reversed(mark):
        further = f"|{_escaped(char)}(?:{pattern})" if pattern else ""
        pattern = f"(?:[^{_escaped(char)}](?s:.*){further})?"
    return pattern


def _escaped(char: str) -> str:
    return f"\\x{{{ord(char):x}}}"
