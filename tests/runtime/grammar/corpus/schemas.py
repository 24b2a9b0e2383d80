"""Schemas as people write them: each with instances that must be accepted and instances that must not.

Instances are data, written with `json.dumps`. A case with `refused` is not enforced: the keyword that is named.
"""

# ruff: noqa: E501

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class SchemaCase:
    name: str
    schema: Any
    valid: list[Any] = field(default_factory=list)
    invalid: list[Any] = field(default_factory=list)
    refused: str | None = None


def record(required: str | None = None, /, **properties: Any) -> dict[str, Any]:
    """A closed object; all of its properties are required unless the names are given."""
    names = list(properties) if required is None else required.split()
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


STRING, INTEGER, NUMBER, BOOLEAN = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
NULL = {"type": "null"}


def array(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


def text(**more: Any) -> dict[str, Any]:
    return {"type": "string", **more}


def number(kind: str = "number", **more: Any) -> dict[str, Any]:
    return {"type": kind, **more}


def optional(schema: Any) -> dict[str, Any]:
    return {"anyOf": [schema, NULL], "default": None}


ADDRESS = record("street city", street=STRING, city=STRING, zip=text(pattern="^[0-9]{5}$"), country=text(maxLength=2))
PERSON = record("name", name=text(minLength=1), age=number("integer", minimum=0, maximum=150), address=ADDRESS)
TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {"tree": record("value", value=INTEGER, children=array({"$ref": "#/$defs/tree"}))},
}
LIST = {
    "$defs": {"node": record(value=STRING, next={"anyOf": [{"$ref": "#/$defs/node"}, NULL]})},
    "$ref": "#/$defs/node",
}
CIRCLE = record(kind={"const": "circle"}, radius=number(exclusiveMinimum=0))
SQUARE = record(kind={"const": "square"}, side=number(exclusiveMinimum=0))


def tool(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return record(name={"const": name}, arguments=parameters)


RECORDS = [
    SchemaCase(
        "character",
        record(
            name=STRING,
            house={"enum": ["Gryffindor", "Slytherin"]},
            age=number("integer", minimum=11, maximum=120),
            wand=record(wood=STRING, length=number(minimum=5, maximum=20)),
            alive=BOOLEAN,
        ),
        [{"name": "Harry", "house": "Gryffindor", "age": 17, "wand": {"wood": "holly", "length": 11.5}, "alive": True}],
        [
            {"name": "Tom", "house": "Azkaban", "age": 17, "wand": {"wood": "yew", "length": 13}, "alive": False},
            {"name": "Tom", "house": "Slytherin", "age": 10, "wand": {"wood": "yew", "length": 13}, "alive": False},
            {"name": "Tom", "house": "Slytherin", "age": 17, "wand": {"wood": "yew"}, "alive": False},
        ],
    ),
    SchemaCase(
        "address", ADDRESS, [{"street": "a", "city": "b"}, {"street": "a", "city": "b", "zip": "12345"}],
        [{"street": "a"}, {"street": "a", "city": "b", "zip": "1234"}, {"street": "a", "city": "b", "country": "USA"}],
    ),
    SchemaCase(
        "person with an address", PERSON, [{"name": "x"}, {"name": "x", "age": 0, "address": {"street": "", "city": ""}}],
        [{"name": ""}, {"name": "x", "age": 151}, {"name": "x", "address": {}}],
    ),
    SchemaCase(
        "invoice",
        record(
            number=text(pattern=r"^INV-\d{4}$"),
            lines=array(record(item=STRING, price=number(minimum=0, multipleOf=0.01)), minItems=1),
            currency={"enum": ["EUR", "USD"]},
        ),
        [{"number": "INV-0001", "lines": [{"item": "pen", "price": 1.25}], "currency": "EUR"}],
        [
            {"number": "INV-1", "lines": [{"item": "pen", "price": 1.25}], "currency": "EUR"},
            {"number": "INV-0001", "lines": [], "currency": "EUR"},
            {"number": "INV-0001", "lines": [{"item": "pen", "price": 1.255}], "currency": "EUR"},
            {"number": "INV-0001", "lines": [{"item": "pen", "price": -1}], "currency": "EUR"},
        ],
    ),
    SchemaCase("open object", {"type": "object", "properties": {"a": INTEGER}}, [{}, {"a": 1}, {"a": 1, "b": [{}]}], [{"a": "1"}, []]),
    SchemaCase("pydantic model",
        {
            "$defs": {"Item": {"title": "Item", "type": "object", "required": ["id"],
                               "properties": {"id": {"title": "Id", "type": "integer"}, "note": {**optional(STRING), "title": "Note"}}}},
            "title": "Order", "type": "object", "required": ["items"],
            "properties": {"items": array({"$ref": "#/$defs/Item"}, title="Items")},
        },
        [{"items": []}, {"items": [{"id": 1, "note": None}, {"id": 2, "note": "x"}]}], [{}, {"items": [{}]}, {"items": [{"id": 1, "note": 3}]}]),
    SchemaCase("event", record("id", id=text(format="uuid"), at=text(format="date-time"), tags=array(STRING, maxItems=2)),
        [{"id": "123e4567-e89b-12d3-a456-426614174000", "at": "2024-02-29T23:59:59Z", "tags": ["a", "b"]}],
        [{"id": "123e4567"}, {"id": "123e4567-e89b-12d3-a456-426614174000", "tags": ["a", "b", "c"]},
         {"id": "123e4567-e89b-12d3-a456-426614174000", "at": "2023-02-29T00:00:00Z"}]),
    SchemaCase("openapi like",
        {"type": "object", "properties": {"id": {"type": "integer", "example": 3, "readOnly": True}, "name": text(deprecated=True)},
         "required": ["id"], "x-internal": {"a": 1}, "externalDocs": {}, "xml": {"name": "pet"}},
        [{"id": 1}, {"id": 1, "name": "x"}], [{}, {"name": "x"}]),
    SchemaCase("tool call",
        {"anyOf": [tool("search", record(query=STRING)), tool("add", record(a=NUMBER, b=NUMBER))]},
        [{"name": "search", "arguments": {"query": "x"}}, {"name": "add", "arguments": {"a": 1, "b": 2.5}}],
        [{"name": "search", "arguments": {"a": 1, "b": 2}}, {"name": "del", "arguments": {}}]),
    SchemaCase("names to be escaped", record(**{'a"b': INTEGER, "c\\d": INTEGER, "e\nf": INTEGER, "g/h~": INTEGER}),
        [{'a"b': 1, "c\\d": 2, "e\nf": 3, "g/h~": 4}], [{'a"b': 1}]),
    SchemaCase("empty object", record(), [{}], [{"a": 1}, []]),
    SchemaCase("all optional", record("", a=INTEGER, b=INTEGER, c=INTEGER), [{}, {"a": 1}, {"b": 1}, {"a": 1, "c": 1}], [{"d": 1}, {"a": None}]),
    SchemaCase("required without properties", {"type": "object", "required": ["a"]}, [{"a": 1}, {"a": 1, "b": 2}], [{}, {"b": 1}]),
    SchemaCase("forbidden property", {"type": "object", "properties": {"a": False, "b": INTEGER}}, [{}, {"b": 1}], [{"a": 1}, {"a": 1, "b": 1}]),
]  # fmt: skip

STRUCTURES = [
    SchemaCase("tree", TREE, [{"value": 1}, {"value": 1, "children": [{"value": 2, "children": []}]}], [{}, {"value": 1, "children": [{}]}]),
    SchemaCase("linked list", LIST, [{"value": "a", "next": None}, {"value": "a", "next": {"value": "b", "next": None}}], [{"value": "a"}]),
    SchemaCase("nested lists", {"$ref": "#/$defs/n", "$defs": {"n": {"anyOf": [INTEGER, array({"$ref": "#/$defs/n"})]}}},
        [1, [], [1, [2, [[]]]]], ["a", [[None]]]),
    SchemaCase("recursion at the root", {"type": "object", "properties": {"child": {"$ref": "#"}}, "additionalProperties": False},
        [{}, {"child": {"child": {}}}], [{"child": 1}, {"x": {}}]),
    SchemaCase("anchors", {"$defs": {"a": {"$anchor": "here", "type": "integer"}}, "type": "object", "properties": {"x": {"$ref": "#here"}}},
        [{"x": 1}], [{"x": "1"}]),
    SchemaCase("own id", {"$id": "https://example.com/s", "$defs": {"a": INTEGER}, "type": "array", "items": {"$ref": "https://example.com/s#/$defs/a"}},
        [[], [1]], [["a"]]),
    SchemaCase("escaped pointer", {"$defs": {"a/b~c": INTEGER}, "type": "array", "items": {"$ref": "#/$defs/a~1b~0c"}}, [[1]], [["a"]]),
    SchemaCase("shapes", {"oneOf": [CIRCLE, SQUARE], "discriminator": {"propertyName": "kind"}},
        [{"kind": "circle", "radius": 1}, {"kind": "square", "side": 0.5}], [{"kind": "circle", "side": 1}, {"kind": "circle", "radius": 0}]),
    SchemaCase("allOf of references", {"$defs": {"a": {"type": "object", "properties": {"x": INTEGER}, "required": ["x"]},
                                                "b": {"properties": {"y": STRING}, "required": ["y"]}},
                                      "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]},
        [{"x": 1, "y": "a"}], [{"x": 1}, {"y": "a"}, {"x": "a", "y": "a"}]),
    SchemaCase("reference with siblings", {"$defs": {"n": number(minimum=0)}, "type": "array", "items": {"$ref": "#/$defs/n", "maximum": 9}},
        [[0, 9]], [[10], [-1]]),
    SchemaCase("mutual recursion", {"$defs": {"a": record("", b={"$ref": "#/$defs/b"}), "b": record("", a={"$ref": "#/$defs/a"})}, "$ref": "#/$defs/a"},
        [{}, {"b": {"a": {}}}], [{"a": {}}, {"b": {"b": {}}}]),
    SchemaCase("recursion that needs an end in one branch",
        {"$ref": "#/$defs/e", "$defs": {"e": {"oneOf": [INTEGER, record(op={"enum": ["+", "*"]}, args=array({"$ref": "#/$defs/e"}, minItems=2))]}}},
        [1, {"op": "+", "args": [1, {"op": "*", "args": [2, 3]}]}], [{"op": "+", "args": [1]}, {"op": "-", "args": [1, 2]}]),
    SchemaCase("table", array(array(NUMBER, minItems=2, maxItems=2)), [[], [[1, 2.5]]], [[[1]], [[1, 2, 3]]]),
    SchemaCase("deep", record(a=record(b=record(c=record(d=record(e=INTEGER))))), [{"a": {"b": {"c": {"d": {"e": 1}}}}}], [{"a": {"b": {"c": {"d": {}}}}}]),
]  # fmt: skip

COUNTS = [
    SchemaCase(f"array of {low} to {high}", array(INTEGER, minItems=low, **({} if high is None else {"maxItems": high})),
        [[1] * n for n in range(8) if n >= low and (high is None or n <= high)],
        [[1] * n for n in range(8) if n < low or (high is not None and n > high)] + [["a"] * max(low, 1)])
    for low, high in [(0, 0), (0, 1), (0, 3), (1, 1), (1, None), (2, 2), (2, 5), (3, None), (5, 6)]
] + [
    SchemaCase(f"{low} to {high} properties", {"type": "object", "properties": dict.fromkeys("abcd", INTEGER), "additionalProperties": False,
                                              "minProperties": low, "maxProperties": high},
        [dict.fromkeys(names, 1) for names in ("", "a", "bd", "acd", "abcd") if low <= len(names) <= high],
        [dict.fromkeys(names, 1) for names in ("", "a", "bd", "acd", "abcd") if not low <= len(names) <= high])
    for low, high in [(0, 0), (0, 2), (1, 1), (1, 3), (2, 4), (3, 3), (4, 4)]
] + [
    SchemaCase("one property at least", {"type": "object", "minProperties": 1}, [{"a": 1}, {"a": 1, "b": 2}], [{}]),
    SchemaCase("two properties at most", {"type": "object", "maxProperties": 2}, [{}, {"a": 1, "b": 2}], [{"a": 1, "b": 2, "c": 3}]),
    SchemaCase("tuple", {"type": "array", "prefixItems": [STRING, INTEGER], "items": False, "minItems": 2}, [["a", 1]], [["a"], ["a", 1, 2], [1, "a"]]),
    SchemaCase("tuple with optional end", {"type": "array", "prefixItems": [STRING, INTEGER], "items": False}, [[], ["a"], ["a", 1]], [[1], ["a", 1, 2]]),
    SchemaCase("tuple and more", {"type": "array", "prefixItems": [STRING], "items": INTEGER}, [[], ["a"], ["a", 1, 2]], [[1], ["a", "b"]]),
    SchemaCase("tuple of an old draft", {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": [STRING, INTEGER], "additionalItems": False},
        [[], ["a", 1]], [[1], ["a", 1, 2]]),
    SchemaCase("unique of at most one", array(INTEGER, uniqueItems=True, maxItems=1), [[], [1]], [[1, 1], [1, 2]]),
]  # fmt: skip


def interval(name: str, valid: list[Any], invalid: list[Any], kind: str = "number", **bounds: Any) -> SchemaCase:
    return SchemaCase(f"{kind} {name}", number(kind, **bounds), valid, invalid)


NUMBERS = [
    interval("any", [0, -1, 10**17, 2.5, -0.25], ["1", None, True]),
    interval("any", [0, -1, 10**17], [1.5, "1", 10**19], "integer"),
    interval("minimum", [5, 6, 100000], [4, -5, 0], "integer", minimum=5),
    interval("minimum below 0", [-5, 0, 5], [-6, -100], "integer", minimum=-5),
    interval("maximum", [5, 0, -100], [6, 100], "integer", maximum=5),
    interval("range", [98, 99, 100, 101, 102], [97, 103, 0, -99, 1000], "integer", minimum=98, maximum=102),
    interval("range below 0", [-120, -99, -45], [-121, -44, 0, 99], "integer", minimum=-120, maximum=-45),
    interval("range about 0", [-3, 0, 3], [-4, 4], "integer", minimum=-3, maximum=3),
    interval("exclusive", [1, 2], [0, 3], "integer", exclusiveMinimum=0, exclusiveMaximum=3),
    interval("fractional bounds", [1, 2], [0, 3], "integer", minimum=0.5, maximum=2.5),
    interval("byte", [0, 9, 10, 99, 255], [256, -1, 300, 1000], "integer", minimum=0, maximum=255),
    interval("int64", [0, -(10**17)], [1.5], "integer", minimum=-(2**63), maximum=2**63 - 1),
    interval("even", [0, 2, -14, 1000], [1, -3], "integer", multipleOf=2),
    interval("multiple in a range", [12, 15, 18], [9, 13, 21], "integer", multipleOf=3, minimum=10, maximum=20),
    interval("large multiple", [0, 360, -720], [100, 361], "integer", multipleOf=360),
    interval("probability", [0, 1, 0.5, 0.123456], [-0.1, 1.1, 2], minimum=0, maximum=1),
    interval("positive", [0.1, 1, 1000], [0, -1, -0.5], exclusiveMinimum=0),
    interval("open", [0.5, 9.99], [0, 10, 11, -3], exclusiveMinimum=0, exclusiveMaximum=10),
    interval("latitude", [-90, 90, 0, 45.5, -89.999], [90.1, -91, 180], minimum=-90, maximum=90),
    interval("narrow", [1.25, 1.26, 1.3], [1.24, 1.31, 1, 2], minimum=1.25, maximum=1.3),
    interval("narrow and negative", [-1.25, -1.3], [-1.24, -1.31, 1.27], minimum=-1.3, maximum=-1.25),
    interval("cents", [0.01, 1, 19.99, -0.5], [0.001, 1.999], multipleOf=0.01),
    interval("halves", [0.5, 1, -2.5], [0.25, 0.51], multipleOf=0.5),
    interval("whole numbers", [1, -3], [1.5, 0.5], multipleOf=1),
    interval("thirds of ten", [2.5, 5, 7.5], [1, 10], multipleOf=2.5, minimum=1, maximum=9),
    interval("below 0", [-0.5, -1], [0, 0.5], exclusiveMaximum=0),
    interval("one value", [7], [6, 8, 7.5], minimum=7, maximum=7),
    interval("excluded value", [1, 2.5], [0], **{"not": {"const": 0}}),
]

STRINGS = [
    SchemaCase("any string", STRING, ["", "a", 'say "hi" \\ \n\t\u0001', "äß漢😀"], [1, None]),
    *[
        SchemaCase(f"{low} to {high} characters", text(minLength=low, **({} if high is None else {"maxLength": high})),
            [c * n for n in range(6) for c in "a😀\n" if n >= low and (high is None or n <= high)],
            [c * n for n in range(6) for c in "aä" if n < low or (high is not None and n > high)])
        for low, high in [(0, 0), (0, 1), (1, 1), (2, 4), (3, None), (0, 5)]
    ],
    *[
        SchemaCase(f"pattern {pattern}", text(pattern=pattern), valid, invalid)
        for pattern, valid, invalid in [
            ("^[a-z]+$", ["a", "abc"], ["", "A", "a1"]),
            ("a", ["a", "xax", "\na"], ["", "b"]),
            ("^a", ["a", "ab"], ["ba", ""]),
            ("a$", ["a", "ba"], ["ab", ""]),
            ("^(a|b)$", ["a", "b"], ["ab", ""]),
            ("^a|b$", ["a", "axx", "xxb"], ["xa", "bx"]),
            (r"^\d{3}-\d{4}$", ["555-1234"], ["5551234", "555-123", "٣٣٣-1234"]),
            (r"^\w+\.(png|jpg)$", ["a_1.png"], ["a.gif", ".png", "ä.png"]),
            (r"^[^\s]+$", ["a", "\u0001"], ["a b", "", "\t"]),
            ('^"[^"]*"$', ['"a"', '""'], ["a", '"']),
            (r"^\\[nt]$", ["\\n", "\\t"], ["\n", "n"]),
            (r"^#([0-9a-fA-F]{2}){3}$", ["#00ffAA"], ["#00ff", "00ffAA"]),
            (r"^v(0|[1-9]\d*)\.(0|[1-9]\d*)$", ["v1.0", "v10.20"], ["v01.0", "1.0"]),
            ("^.$", ["a", "😀"], ["", "ab", "\n"]),
            ("^$", [""], ["a"]),
            ("", ["", "a"], [1]),
            (r"^(?:[A-Z]{2,3}/)?x$", ["x", "AB/x"], ["A/x", "/x"]),
            ("(^|,)x(,|$)", ["x", "a,x", "x,b"], ["ax", "xb"]),
            (r"^\u00e9\x41$", ["éA"], ["eA"]),
            (r"^[\]\-a]+$", ["]-a"], ["b"]),
        ]
    ],
    *[
        SchemaCase(f"format {name}", text(format=name), valid, invalid)
        for name, valid, invalid in [
            ("date", ["2024-02-29", "1999-12-31", "2000-02-29"], ["2023-02-29", "1900-02-29", "2024-13-01", "2024-04-31", "24-01-01"]),
            ("time", ["00:00:00Z", "23:59:59.123+02:00"], ["24:00:00Z", "12:60:00Z", "12:00Z", "12:00:00"]),
            ("date-time", ["2024-01-01T00:00:00Z"], ["2024-01-01 00:00:00Z", "2024-01-01"]),
            ("duration", ["P1D", "PT5M", "P1Y2M", "P3W", "P1DT2H"], ["P", "PT", "1D", "P1Y3D", "P1H"]),
            ("email", ["a@b.com", "first.last@mail.example.org"], ["a", "@b.com", "a@", "a b@c.de", ".a@b.com"]),
            ("hostname", ["localhost", "a-b.example.com"], ["-a.com", "a..b", "a_b", ""]),
            ("ipv4", ["0.0.0.0", "192.168.1.255"], ["256.1.1.1", "1.2.3", "01.2.3.4"]),
            ("ipv6", ["::", "::1", "1:2:3:4:5:6:7:8", "fe80::1"], ["1:2:3", ":::", "12345::", "1::2::3"]),
            ("uuid", ["00000000-0000-0000-0000-00000000000A"], ["0", "g0000000-0000-0000-0000-000000000000"]),
            ("uri", ["https://example.com", "http://a.b:80/c?d=e#f"], ["example.com", "//a", "http://a b"]),
        ]
    ],
    SchemaCase("pattern and length", text(pattern="^[a-z]*$", minLength=2, maxLength=3), ["ab", "abc"], ["a", "abcd", "AB"]),
    SchemaCase("format and length", text(format="email", maxLength=8), ["a@b.com"], ["aaaaa@b.com"]),
    SchemaCase("two patterns", {"type": "string", "allOf": [{"pattern": "a"}, {"pattern": "b"}]}, ["ab", "xbxa"], ["a", "b"]),
    SchemaCase("all strings but some", text(**{"not": {"enum": ["a", "b"]}}), ["", "c", "ab"], ["a", "b"]),
]  # fmt: skip

VALUES = [
    SchemaCase("enum of strings", {"enum": ["red", "green", "blue"]}, ["red", "blue"], ["re", "", None]),
    SchemaCase("enum where one begins another", {"enum": ["a", "ab", "abc"]}, ["a", "ab", "abc"], ["abcd", ""]),
    SchemaCase("enum of all types", {"enum": [1, "1", None, True, [1], {"a": 1}, 2.5]}, [1, "1", None, True, [1], {"a": 1}, 2.5], [False, 2, [], {}]),
    SchemaCase("enum within a type", {"type": "integer", "enum": [1, 2, "a"]}, [1, 2], ["a", 3]),
    SchemaCase("enum within bounds", {"enum": [1, 5, 9], "minimum": 4}, [5, 9], [1]),
    SchemaCase("const object", {"const": {"a": [1, {"b": None}]}}, [{"a": [1, {"b": None}]}], [{}, {"a": [1]}]),
    SchemaCase("const text", {"const": 'a "quoted"\nline'}, ['a "quoted"\nline'], ["a"]),
    SchemaCase("const number", {"const": -12.5}, [-12.5], [12.5, -12]),
    SchemaCase("true alone", {"type": "boolean", "const": True}, [True], [False, 1]),
    SchemaCase("boolean", BOOLEAN, [True, False], [0, "true", None]),
    SchemaCase("null", NULL, [None], [0, False, ""]),
    SchemaCase("several types", {"type": ["string", "integer", "null"]}, ["a", 1, None], [1.5, True, []]),
    SchemaCase("nullable", optional(INTEGER), [None, 1], ["a"]),
    SchemaCase("anyOf of types", {"anyOf": [INTEGER, STRING, array(INTEGER)]}, [1, "a", [1]], [1.5, ["a"]]),
    SchemaCase("anyOf beside a type", {"type": "integer", "anyOf": [{"minimum": 10}, {"maximum": 0}]}, [10, 0, -5], [5]),
    SchemaCase("oneOf of types", {"oneOf": [INTEGER, STRING]}, [1, "a"], [None]),
    SchemaCase("oneOf that overlaps", {"oneOf": [number(minimum=0), number(maximum=10)]}, [-1, 11], [5, 0, 10]),
    SchemaCase("oneOf of required", {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "additionalProperties": False,
                                    "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, [{"a": 1}, {"b": 1}], [{}, {"a": 1, "b": 1}]),
    SchemaCase("allOf of bounds", {"type": "integer", "allOf": [{"minimum": 2}, {"maximum": 4}]}, [2, 3, 4], [1, 5]),
    SchemaCase("not a type", {"not": {"type": ["string", "object"]}}, [1, None, [1]], ["a", {}]),
    SchemaCase("not required", {"type": "object", "not": {"required": ["a"]}}, [{}, {"b": 1}], [{"a": 1}]),
    SchemaCase("not not", {"not": {"not": INTEGER}}, [], [], "not"),
    SchemaCase("untyped bounds", {"minimum": 5}, [5, "a", None, {}], [4]),
    SchemaCase("literal false inside", array(False), [[]], [[1]]),
]  # fmt: skip

MAPS = [
    SchemaCase("map of integers", {"type": "object", "additionalProperties": INTEGER}, [{}, {"a": 1, "é": 2}], [{"a": "b"}]),
    SchemaCase("map of lists", {"type": "object", "additionalProperties": array(STRING)}, [{"a": ["x"]}], [{"a": [1]}]),
    SchemaCase("named and others", {"type": "object", "properties": {"a": STRING}, "additionalProperties": INTEGER}, [{"a": "x", "b": 1}, {"b": 1}], [{"a": 1}, {"b": "x"}]),
    SchemaCase("pattern names", {"type": "object", "patternProperties": {"^x-": STRING}, "additionalProperties": False}, [{}, {"x-a": "b"}], [{"a": "b"}, {"x-a": 1}]),
    SchemaCase("two patterns of names", {"type": "object", "patternProperties": {"a": INTEGER, "b": number(minimum=5)}, "additionalProperties": False},
        [{"a": 1}, {"b": 5.5}, {"ab": 6}], [{"ab": 1}, {"ab": 5.5}, {"c": 1}]),
    SchemaCase("pattern meets name", {"type": "object", "properties": {"abc": {"maximum": 9}}, "patternProperties": {"^a": INTEGER}}, [{"abc": 9}, {"ab": 99}], [{"abc": 10}, {"abc": 1.5}, {"ab": "x"}]),
    SchemaCase("propertyNames pattern", {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}, [{}, {"abc": 1}], [{"A": 1}, {"": 1}]),
    SchemaCase("propertyNames enum", {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": INTEGER}, [{}, {"a": 1, "b": 2}], [{"c": 1}, {"a": "x"}]),
    SchemaCase("propertyNames length", {"type": "object", "propertyNames": {"maxLength": 2}}, [{"ab": 1}], [{"abc": 1}]),
    SchemaCase("dependent required", {"type": "object", "properties": {"card": STRING, "cvc": STRING}, "dependentRequired": {"card": ["cvc"]}},
        [{}, {"cvc": "1"}, {"card": "1", "cvc": "2"}], [{"card": "1"}]),
    SchemaCase("dependent schemas", {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "dependentSchemas": {"a": {"required": ["b"]}}}, [{"b": 1}, {"a": 1, "b": 2}], [{"a": 1}]),
    SchemaCase("if then else", {"type": "object", "properties": {"kind": {"enum": ["a", "b"]}, "x": INTEGER, "y": INTEGER}, "required": ["kind"], "additionalProperties": False,
                               "if": {"properties": {"kind": {"const": "a"}}}, "then": {"required": ["x"]}, "else": {"required": ["y"]}},
        [{"kind": "a", "x": 1}, {"kind": "b", "y": 1}], [{"kind": "a"}, {"kind": "b", "x": 1}, {"kind": "a", "y": 1}]),
    SchemaCase("unevaluated alone", {"type": "object", "properties": {"a": INTEGER}, "unevaluatedProperties": False}, [{"a": 1}], [{"b": 1}]),
]  # fmt: skip

REFUSED = [
    SchemaCase(f"refused: {name}", schema, refused=keyword)
    for name, keyword, schema in [
        ("unique items", "uniqueItems", array(INTEGER, uniqueItems=True)),
        ("contains", "contains", {"type": "array", "contains": INTEGER}),
        ("unknown format", "format", text(format="phone")),
        ("look-ahead", "pattern", text(pattern="^(?=a)")),
        ("back-reference", "pattern", text(pattern=r"(a)\1")),
        ("misspelt", "propertys", {"type": "object", "propertys": {}}),
        ("misspelt below", "requried", record(a={"type": "object", "requried": ["x"]})),
        ("remote reference", "$ref", {"$ref": "https://example.com/schema.json"}),
        ("missing reference", "$ref", {"$ref": "#/$defs/none"}),
        ("reference to itself", "$ref", {"$ref": "#"}),
        ("circle of references", "$ref", {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        ("endless", "$ref", record(next={"$ref": "#"})),
        ("endless array", "$ref", array({"$ref": "#"}, minItems=1)),
        ("minimum above maximum", "minimum", number(minimum=3, maximum=2)),
        ("minLength above maxLength", "minLength", text(minLength=3, maxLength=2)),
        ("minItems above maxItems", "minItems", array(INTEGER, minItems=3, maxItems=2)),
        ("const of another type", "const", {"type": "string", "const": 3}),
        ("enum of another type", "enum", {"type": "string", "enum": [3]}),
        ("empty enum", "enum", {"enum": []}),
        ("inner id", "$id", record(a={"$id": "x", "type": "integer"})),
        ("overlapping oneOf", "oneOf", {"oneOf": [INTEGER, number(multipleOf=2)]}),
        ("draft 4 bound", "exclusiveMinimum", number(minimum=3, exclusiveMinimum=True)),
        ("openapi nullable", "nullable", text(nullable=True)),
        ("list of items", "items", {"type": "array", "items": [INTEGER]}),
        ("unknown type", "type", {"type": "float"}),
        ("anything", None, {}),
        ("nothing", None, False),
        ("required but false", None, {"type": "object", "properties": {"a": False}, "required": ["a"]}),
        ("dynamic reference", "$dynamicRef", {"$dynamicRef": "#a"}),
        ("unevaluated beside anyOf", "unevaluatedProperties", {"anyOf": [{"properties": {"a": INTEGER}}], "unevaluatedProperties": False}),
        ("odd multiple", "multipleOf", number(multipleOf=0.3)),
    ]
]  # fmt: skip

SCHEMA_CASES = [*RECORDS, *STRUCTURES, *COUNTS, *NUMBERS, *STRINGS, *VALUES, *MAPS, *REFUSED]
