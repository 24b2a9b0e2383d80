"""LarkWriter: a schema graph as a grammar in llguidance's Lark dialect."""

from __future__ import annotations

from typing import NamedTuple

from ....grammar_spec import JsonWhitespace
from .graph import ArrayShape, Node, ObjectShape, SchemaGraph
from .terminals import CannotEnforceError, either, json_literal, literal

MAX_COUNTING_STATES = 20_000
_MAX_INLINE_CHARS = 2000
_MAX_ITEMS = 10_000


class Punctuation(NamedTuple):
    """What stands between values, as rule text."""

    comma: str
    colon: str
    open_object: str
    close_object: str
    open_array: str
    close_array: str


_PUNCTUATION: dict[JsonWhitespace, Punctuation] = {
    "fixed": Punctuation('", "', '": "', '"{"', '"}"', '"["', '"]"'),
    "compact": Punctuation('","', '":"', '"{"', '"}"', '"["', '"]"'),
    "flexible": Punctuation(
        'SPACE? "," SPACE?', 'SPACE? ":" SPACE?', '"{" SPACE?', 'SPACE? "}"', '"[" SPACE?', 'SPACE? "]"'
    ),
}
_SPACE = r"SPACE: /[ \t\n\r]{1,8}/"


class LarkWriter:
    """Writes one graph, once."""

    def __init__(self, graph: SchemaGraph, whitespace: JsonWhitespace) -> None:
        self._graph = graph
        self._marks = _PUNCTUATION[whitespace]
        self._is_flexible = whitespace == "flexible"
        self._terminals: dict[str, str] = {}
        self._rules: list[str] = []

    def write(self, prefix: str) -> str:
        """The grammar's text. `prefix` stands before the JSON.

        Raises:
            CannotEnforceError: counting properties takes too many rules.
        """
        start = f"{literal(prefix)} n0" if prefix else "n0"
        for node_id, node in enumerate(self._graph.nodes):
            if self._graph.is_possible[node_id]:
                self._rules.append(f"n{node_id}: {' | '.join(self._alternatives(node, node_id))}")
        lines = [f"start: {start}", *self._rules, *(f"{name}: {text}" for text, name in self._terminals.items())]
        if self._is_flexible:
            lines.append(_SPACE)
        return "\n".join(lines) + "\n"

    def _terminal(self, text: str) -> str:
        return self._terminals.setdefault(text, f"T{len(self._terminals)}")

    def _alternatives(self, node: Node, node_id: int) -> list[str]:
        found = [self._terminal(either(node.terminals))] if node.terminals else []
        found += node.rules
        found += [self._array(shape, f"a{node_id}_{idx}") for idx, shape in enumerate(node.arrays)]
        found += [self._object(shape, f"o{node_id}_{idx}") for idx, shape in enumerate(node.objects)]
        return found

    def _rule(self, name: str, body: str) -> str:
        self._rules.append(f"{name}: {body}")
        return name

    # -- arrays ------------------------------------------------------------------------------------------------------

    def _array(self, shape: ArrayShape, name: str) -> str:
        num_prefix = len(shape.prefix) if shape.max_items is None else min(len(shape.prefix), shape.max_items)
        most = _MAX_ITEMS if shape.max_items is None else min(shape.max_items, _MAX_ITEMS)
        body = ""
        if shape.rest_id is not None and most > num_prefix:
            high = None if shape.max_items is None else most - num_prefix
            body = self._repeated(f"n{shape.rest_id}", max(0, shape.min_items - num_prefix), high, num_prefix > 0)
        for idx in range(num_prefix - 1, -1, -1):
            comma = f"{self._marks.comma} " if idx else ""
            body = f"{comma}n{shape.prefix[idx]} {body}"
            if idx >= shape.min_items:
                body = self._rule(f"{name}_{idx}", f"({body})?")
        return f"{self._marks.open_array} {body} {self._marks.close_array}"

    def _repeated(self, item: str, low: int, high: int | None, has_before: bool) -> str:
        """An item several times, with commas between; and one before, if something stands there."""
        more = f"({self._marks.comma} {item})"
        if has_before:
            return _times(more, low, high)
        body = f"{item} {_times(more, max(low - 1, 0), None if high is None else high - 1)}"
        return body if low else f"({body})?"

    # -- objects -----------------------------------------------------------------------------------------------------

    def _object(self, shape: ObjectShape, name: str) -> str:
        """Rules for (next property, number of properties so far), from the last backwards.

        The number is counted up to where it matters: whether a comma is needed, and the bounds.
        """
        required = sum(own.is_required for own in shape.properties)
        low, high = shape.min_properties, shape.max_properties
        if low <= required:
            low = 0
        if high is not None and not shape.unnamed and high >= len(shape.properties):
            high = None
        top = max(1, low, 0 if high is None else min(high, len(shape.properties) + 1))
        num_properties = len(shape.properties)
        if top > 1 and top * (num_properties + 1) > MAX_COUNTING_STATES:
            raise CannotEnforceError("minProperties" if low else "maxProperties", "counting so many is not supported")
        following = [self._unnamed(shape, count, low, high, f"{name}_end{count}") for count in range(top + 1)]
        for idx in range(num_properties - 1, -1, -1):
            following = [
                self._property(shape, idx, count, following, high, f"{name}_{idx}_{count}") for count in range(top + 1)
            ]
        assert following[0] is not None, "a shape without values was to be pruned"
        return f"{self._marks.open_object} {following[0]} {self._marks.close_object}"

    def _property(
        self, shape: ObjectShape, idx: int, count: int, following: list[str | None], high: int | None, name: str
    ) -> str | None:
        """What may follow where `idx` is the next property and `count` came before; None if nothing can."""
        own = shape.properties[idx]
        without = None if own.is_required else following[count]
        after = following[min(count + 1, len(following) - 1)]
        if (high is not None and count >= high) or after is None:
            return without
        comma = f"{self._marks.comma} " if count else ""
        pair = f"{comma}{json_literal(own.name)} {self._marks.colon} n{own.node_id}"
        if without is None:
            body = f"{pair} {after}"
            return body if len(body) < _MAX_INLINE_CHARS else self._rule(name, body)
        return self._rule(name, f"({pair})? {after}" if without == after else f"{pair} {after} | {without}")

    def _unnamed(self, shape: ObjectShape, count: int, low: int, high: int | None, name: str) -> str | None:
        """What may follow all properties that have names."""
        room = None if high is None else min(high - count, _MAX_ITEMS)
        if not shape.unnamed or room == 0:
            return '""' if count >= low else None
        if count + 1 < low or (room is not None and room < 0):
            return None
        pairs = [f"{self._terminal(unnamed.names)} {self._marks.colon} n{unnamed.node_id}" for unnamed in shape.unnamed]
        pair = pairs[0] if len(pairs) == 1 else self._rule(f"{name}_pair", " | ".join(pairs))
        return self._rule(name, self._repeated(f"({pair})", int(count < low), room, count > 0))


def _times(item: str, low: int, high: int | None) -> str:
    if high == 0:
        return '""'
    if high is None:
        return f"{item}*" if low == 0 else f"{item}{{{low},}}"
    return f"{item}{{{low},{high}}}"
