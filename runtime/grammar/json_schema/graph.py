"""SchemaGraph: a schema as a finite graph of shapes, without anything that no finite value satisfies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product

from ..errors import UnsupportedSchemaError
from .constraints import ANYTHING, NEVER, Arrays, Bools, Conjunction, Null, Numbers, Objects, Place, Strings
from .document import SchemaDocument
from .expansion import Expander
from .keywords import is_unconstrained
from .terminals import CannotEnforceError, NameSet, TextTerminals, multiples_schema, number_terminal

MAX_NODES = 20_000
MAX_PATTERNS = 4
# More optional properties than these exceed the parser's limits.
MAX_PROPERTIES = 1000
MAX_LISTED_ITEMS = 10_000

IsEmpty = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Property:
    name: str
    node_id: int
    is_required: bool


@dataclass(frozen=True, slots=True)
class UnnamedProperties:
    """Any number of properties of a set of names, as an expression; a model may use a name twice."""

    names: str
    node_id: int


@dataclass(slots=True)
class ObjectShape:
    properties: list[Property]
    unnamed: list[UnnamedProperties]
    min_properties: int
    max_properties: int | None


@dataclass(slots=True)
class ArrayShape:
    """`prefix` are the items one by one, `rest_id` all further ones; None where there are none."""

    prefix: list[int]
    rest_id: int | None
    min_items: int
    max_items: int | None

    def item(self, idx: int) -> int | None:
        return self.prefix[idx] if idx < len(self.prefix) else self.rest_id


@dataclass(slots=True)
class Node:
    """What a value at some place may be.

    Attributes:
        terminals: expressions for scalars.
        rules: schemas of the engine's own, for scalars that no expression describes.
    """

    conjunction: Conjunction
    terminals: list[str] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    arrays: list[ArrayShape] = field(default_factory=list)
    objects: list[ObjectShape] = field(default_factory=list)

    @property
    def pointer(self) -> str:
        return self.conjunction[0].pointer if self.conjunction and self.conjunction != NEVER else ""


class SchemaGraph:
    """The nodes of a schema; node 0 is the root.

    Attributes:
        nodes: after construction every shape in them has a finite value.
        is_possible: by node; the shapes refer to possible nodes only.
    """

    def __init__(self, document: SchemaDocument, texts: TextTerminals, is_empty: IsEmpty) -> None:
        """Expand the whole schema.

        Args:
            texts: says how strings are written.
            is_empty: whether an expression of a terminal describes no text at all.

        Raises:
            UnsupportedSchemaError: something cannot be enforced, or no finite value satisfies the schema.
        """
        if is_unconstrained(document.root):
            raise UnsupportedSchemaError(
                "",
                None,
                'it allows any JSON; say at least "type": "object", or list types: "type": ["object", "array"]',
            )
        self.nodes: list[Node] = []
        self._expander = Expander(document)
        self._texts = texts
        self._is_empty = is_empty
        self._ids: dict[Conjunction, int] = {}
        self._id_of((Place(""),))
        next_id = 0
        while next_id < len(self.nodes):
            self._fill(self.nodes[next_id])
            next_id += 1
        self.is_possible = self._possible()
        if not self.is_possible[0]:
            raise self._impossible_root()
        for node in self.nodes:
            self._prune(node)

    def _id_of(self, conjunction: Conjunction) -> int:
        if conjunction not in self._ids:
            if len(self.nodes) >= MAX_NODES:
                raise UnsupportedSchemaError("", None, f"it combines to more than {MAX_NODES} schemas")
            self._ids[conjunction] = len(self.nodes)
            self.nodes.append(Node(conjunction))
        return self._ids[conjunction]

    # -- shapes ------------------------------------------------------------------------------------------------------

    def _fill(self, node: Node) -> None:
        try:
            for constraint in self._expander.expand(node.conjunction):
                match constraint:
                    case Arrays():
                        node.arrays.append(self._array_shape(constraint, node))
                    case Objects():
                        node.objects.append(self._object_shape(constraint, node))
                    case Numbers():
                        self._add_numbers(constraint, node)
                    case _:
                        self._add_scalar(constraint, node)
        except CannotEnforceError as error:
            raise UnsupportedSchemaError(node.pointer, error.keyword, str(error)) from error

    def _add_numbers(self, numbers: Numbers, node: Node) -> None:
        rule = multiples_schema(numbers)
        if rule is not None:
            node.rules.append(rule)
            return
        terminal = number_terminal(numbers)
        if terminal is None:
            return
        if len(numbers.multiples) and numbers.values is None and self._is_empty(terminal):
            return
        node.terminals.append(terminal)

    def _add_scalar(self, scalar: Null | Bools | Strings, node: Node) -> None:
        terminal = self._texts.scalar(scalar)
        if terminal is None:
            return
        is_product = isinstance(scalar, Strings) and scalar.values is None and bool(scalar.patterns or scalar.excluded)
        if not is_product or not self._is_empty(terminal):
            node.terminals.append(terminal)

    def _array_shape(self, arrays: Arrays, node: Node) -> ArrayShape:
        if arrays.num_prefix > MAX_LISTED_ITEMS or arrays.min_items > MAX_LISTED_ITEMS:
            raise CannotEnforceError("minItems", f"arrays of more than {MAX_LISTED_ITEMS} items are not generated")
        num_prefix = arrays.num_prefix if arrays.max_items is None else min(arrays.num_prefix, arrays.max_items)
        prefix = [self._id_of(arrays.item(idx)) for idx in range(num_prefix)]
        has_rest = arrays.rest != NEVER and (arrays.max_items is None or arrays.max_items > num_prefix)
        return ArrayShape(prefix, self._id_of(arrays.rest) if has_rest else None, arrays.min_items, arrays.max_items)

    def _object_shape(self, objects: Objects, node: Node) -> ObjectShape:
        allowed = self._allowed_names(objects)
        named = objects.named
        if allowed is not None and all(strings.values is not None for strings in allowed):
            # Few names are possible: so each is a property, and none comes twice.
            named = list(dict.fromkeys([*named, *(name for strings in allowed for name in strings.values or ())]))
        if len(named) > MAX_PROPERTIES:
            raise CannotEnforceError("properties", f"more than {MAX_PROPERTIES} properties are not supported")
        properties = []
        for name in named:
            is_allowed = allowed is None or any(_is_name(name, strings) for strings in allowed)
            child = objects.of_name(name) if is_allowed and self._texts.can_write(name) else NEVER
            properties.append(Property(name, self._id_of(child), name in objects.required))
        return ObjectShape(
            properties,
            self._unnamed(objects, tuple(named), allowed),
            objects.min_properties,
            objects.max_properties,
        )

    def _allowed_names(self, objects: Objects) -> list[Strings] | None:
        """What `propertyNames` says; None where it says nothing."""
        if objects.names == ANYTHING:
            return None
        found = [
            alternative for alternative in self._expander.expand(objects.names) if isinstance(alternative, Strings)
        ]
        return None if Strings() in found else found

    def _unnamed(
        self, objects: Objects, named: tuple[str, ...], allowed: list[Strings] | None
    ) -> list[UnnamedProperties]:
        patterns = objects.patterns
        if len(patterns) > MAX_PATTERNS:
            raise CannotEnforceError("patternProperties", f"more than {MAX_PATTERNS} patterns are not supported")
        if allowed is not None and all(strings.values is not None for strings in allowed):
            return []
        found = []
        for choice in product((True, False), repeat=len(patterns)):
            matching = tuple(pattern for pattern, is_in in zip(patterns, choice, strict=True) if is_in)
            child = _joined_unnamed(objects, frozenset(matching))
            if NEVER[0] in child:
                continue
            others = tuple(pattern for pattern in patterns if pattern not in matching)
            names = NameSet(matching, others, named, tuple(allowed or ()))
            terminal = self._texts.name(names)
            if terminal is not None and (names.is_surely_not_empty or not self._is_empty(terminal)):
                found.append(UnnamedProperties(terminal, self._id_of(child)))
        return found

    # -- what is possible --------------------------------------------------------------------------------------------

    def _possible(self) -> list[bool]:
        """By node, whether some finite value satisfies it: the least such statement."""
        possible = [False] * len(self.nodes)
        has_changed = True
        while has_changed:
            has_changed = False
            for node_id in range(len(self.nodes) - 1, -1, -1):
                if not possible[node_id] and _is_possible(self.nodes[node_id], possible):
                    possible[node_id] = has_changed = True
        return possible

    def _prune(self, node: Node) -> None:
        possible = self.is_possible
        node.arrays = [shape for shape in node.arrays if _is_array_possible(shape, possible)]
        node.objects = [shape for shape in node.objects if _is_object_possible(shape, possible)]
        for array in node.arrays:
            for idx, item_id in enumerate(array.prefix):
                if not possible[item_id]:
                    array.max_items = idx if array.max_items is None else min(idx, array.max_items)
                    break
            if array.rest_id is not None and not possible[array.rest_id]:
                array.rest_id = None
        for shape in node.objects:
            shape.properties = [own for own in shape.properties if possible[own.node_id]]
            shape.unnamed = [unnamed for unnamed in shape.unnamed if possible[unnamed.node_id]]

    def _impossible_root(self) -> UnsupportedSchemaError:
        """Follow what is required to what cannot be."""
        node_id, seen, pointer = 0, set[int](), ""
        while node_id not in seen:
            seen.add(node_id)
            node = self.nodes[node_id]
            pointer = node.pointer or pointer
            following = self._required_children(node)
            if following is None:
                return UnsupportedSchemaError(pointer, None, "no value satisfies it")
            node_id = following
        return UnsupportedSchemaError(
            pointer, "$ref", "every value contains another one like it, so none ends; make a property optional"
        )

    def _required_children(self, node: Node) -> int | None:
        """A required child that is impossible."""
        for shape in node.objects:
            for own in shape.properties:
                if own.is_required and not self.is_possible[own.node_id]:
                    return own.node_id
        for array in node.arrays:
            for idx in range(array.min_items):
                item_id = array.item(idx)
                if item_id is not None and not self.is_possible[item_id]:
                    return item_id
        return None


def _joined_unnamed(objects: Objects, matching: frozenset[object]) -> Conjunction:
    places = {place for part in objects.parts for place in part.of_unnamed(matching)}  # type: ignore[arg-type]
    return tuple(sorted(places))


def _is_name(name: str, strings: Strings) -> bool:
    return strings.allows(name) and (strings.values is None or name in strings.values)


def _is_possible(node: Node, possible: Sequence[bool]) -> bool:
    return (
        bool(node.terminals or node.rules)
        or any(_is_array_possible(shape, possible) for shape in node.arrays)
        or any(_is_object_possible(shape, possible) for shape in node.objects)
    )


def _is_array_possible(shape: ArrayShape, possible: Sequence[bool]) -> bool:
    for idx in range(min(shape.min_items, len(shape.prefix) + 1)):
        item_id = shape.item(idx)
        if item_id is None or not possible[item_id]:
            return False
    return True


def _is_object_possible(shape: ObjectShape, possible: Sequence[bool]) -> bool:
    if any(own.is_required and not possible[own.node_id] for own in shape.properties):
        return False
    # A name of the unnamed may come twice, so together they count as one.
    most = sum(possible[own.node_id] for own in shape.properties)
    most += any(possible[unnamed.node_id] for unnamed in shape.unnamed)
    return most >= shape.min_properties
