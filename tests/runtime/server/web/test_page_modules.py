"""The logic of the page's modules, run by the browser that they are for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .browser import Browser, Page


@pytest.fixture(scope="module")
def page(browser: Browser, site: str) -> Page:
    return browser.page(f"{site}/docs")


def run(page: Page, module: str, body: str, **values: Any) -> Any:
    """The value of a function's body that has the module's exports as `m`, and `values`."""
    names = ", ".join(values)
    return page.evaluate(
        f"import('/assets/{module}').then(async (m) => {{ const {{{names}}} = {json.dumps(values)}; {body} }})"
    )


EVENTS = (
    "data: one\n\n"
    ': a comment\nevent: tick\r\ndata: {"a":1}\r\n\r\n'
    "data:no space\rdata:  two spaces\r\r"
    "event: empty\n\n"
    "data: é😀\u2028x\nid: 7\nretry: 5\n\n"
    "data: cut off"
)
PARSED = [
    {"name": "message", "data": "one"},
    {"name": "tick", "data": '{"a":1}'},
    {"name": "message", "data": "no space\n two spaces"},
    {"name": "message", "data": "é😀\u2028x"},
]


def test_events_are_the_same_wherever_they_are_cut(page: Page) -> None:
    body = """
        const bytes = new TextEncoder().encode(text);
        const cuts = [];
        for (let at = 0; at <= bytes.length; at++) cuts.push([bytes.slice(0, at), bytes.slice(at)]);
        cuts.push([...bytes].map((byte) => Uint8Array.of(byte)));
        return cuts.map((pieces) => {
          const parser = new m.SseParser();
          return [...pieces.flatMap((piece) => parser.push(piece)), ...parser.end()];
        });"""
    for events in run(page, "sse.js", body, text=EVENTS):
        assert events == PARSED


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        ("plain ``` text", [(False, "", "plain ``` text")]),
        ("a\n```py\nb\n```\nc", [(False, "", "a\n"), (True, "py", "b"), (False, "", "c")]),
        ("```\nopen <b>", [(True, "", "open <b>")]),
        ("```\n\n```\n```x\ny\n```", [(True, "", ""), (True, "x", "y")]),
    ],
)
def test_code_is_found_between_fences(page: Page, text: str, parts: list[tuple[bool, str, str]]) -> None:
    found = run(page, "rich_text.js", "return m.fencedParts(text)", text=text)
    assert [(part["isCode"], part["language"], part["text"]) for part in found] == parts


def test_what_cannot_be_seen_is_spelt_out(page: Page) -> None:
    text = "a\u202eb\u0000c\nd\te\ufefff"
    assert run(page, "dom.js", "return m.visible(text)", text=text) == "a\\u202eb\\u0000c\nd\te\\ufefff"
    one_line = run(page, "dom.js", "return m.visible(text, {isOneLine: true})", text=text)
    assert one_line == "a\\u202eb\\u0000c⏎d⇥e\\ufefff"


def test_a_tree_is_laid_out_by_tokens_and_coloured_by_hits(page: Page) -> None:
    runs = [
        {"parent": None, "start": 0, "tokens": 80, "hits": 100},
        {"parent": 0, "start": 80, "tokens": 16, "hits": 10},
        {"parent": 1, "start": 96, "tokens": 4, "hits": 0},
        {"parent": None, "start": 0, "tokens": 10, "hits": 1},
    ]
    places = run(page, "live_tree.js", "return m.layOut(runs)", runs=runs)
    assert [(place["depth"], place["left"], place["width"]) for place in places] == [
        (0, 0, 80), (1, 80, 16), (2, 96, 4), (0, 0, 10),
    ]  # fmt: skip
    assert [place["heat"] for place in places] == [5, 3, 0, 1]
    assert [place["place"] for place in places] == ["inside", "before", "before", "after"]
    assert run(page, "live_tree.js", "return m.layOut([])") == []


def test_rates_are_between_neighbours(page: Page) -> None:
    columns = ["time_s", "prompt_tokens", "cached_tokens", "computed_tokens", "generated_tokens", "running", "waiting"]
    rows = [[0, 0, 0, 0, 0, 1, 0], [2, 100, 50, 60, 10, 2, 3], [2.1, 999, 0, 0, 0, 0, 0], [3, 100, 50, 70, 20, 0, 0]]
    body = """
        const history = new m.History();
        history.restart({steps: {columns: ['step'], rows: []}, samples: {columns, rows: [rows[0]]}});
        for (const sample of rows.slice(1)) history.add({steps: [[sample[0]]], sample});
        return [m.ratesOf(history.samples), history.steps];"""
    rates, steps = run(page, "live_history.js", body, columns=columns, rows=rows)
    assert [(rate["generated"], rate["computed"], rate["cached"], rate["hitRate"]) for rate in rates] == [
        (5, 30, 25, 0.5),
        (10, 10, 0, None),
    ]
    assert steps == [{"step": 2}, {"step": 2.1}, {"step": 3}]


def test_few_long_steps_do_not_flatten_the_others(page: Page) -> None:
    assert run(page, "step_chart.js", "return m.topOf(values)", values=[10] * 40 + [5000]) == 25
    assert run(page, "step_chart.js", "return m.topOf(values)", values=[3, 4]) == 5
    assert run(page, "step_chart.js", "return [m.topOf([]), m.topOf([0])]") == [1, 1]


def test_tokens_have_their_alternatives_in_order(page: Page) -> None:
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [-0.1, None], "top_logprobs": [{"b": -3, "a": -0.1}, None]}
    tokens = run(page, "tokens.js", "return m.tokensOf(logprobs)", logprobs=logprobs)
    assert tokens == [
        {"text": "a", "logprob": -0.1, "top": [["a", -0.1], ["b", -3]]},
        {"text": "b", "logprob": None, "top": []},
    ]
    shades = run(page, "tokens.js", "return [0, -0.01, -0.7, -30, -9999].map(m.shadeOf)")
    assert shades == [5, 5, 2, 0, 0]


def test_deltas_of_tool_calls_become_calls(page: Page) -> None:
    deltas = [
        [{"index": 0, "id": "c1", "function": {"name": "get", "arguments": ""}}],
        [{"index": 0, "function": {"arguments": '{"a"'}}, {"index": 1, "id": "c2", "function": {"name": "put"}}],
        [{"index": 0, "function": {"arguments": ":1}"}}],
    ]
    body = "const reply = {}; deltas.forEach((delta) => m.mergeCalls(reply, delta)); return reply.tool_calls"
    calls = run(page, "chat.js", body, deltas=deltas)
    assert [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls] == [
        ("c1", "get", '{"a":1}'),
        ("c2", "put", ""),
    ]


SCHEMA = {
    "components": {
        "schemas": {
            "Part": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
            "Loop": {
                "type": "object",
                "properties": {"next": {"$ref": "#/components/schemas/Loop"}},
                "required": ["next"],
            },
        }
    }
}


@pytest.mark.parametrize(
    ("schema", "type_text", "example"),
    [
        ({"type": "integer", "minimum": 3}, "integer", 3),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string | null", "text"),
        ({"type": "array", "items": {"$ref": "#/components/schemas/Part"}}, "array of object", [{"text": "text"}]),
        ({"enum": ["a", "b"]}, '"a" | "b"', "a"),
        ({"$ref": "#/components/schemas/Nowhere"}, "any", {}),
        ({}, "any", {}),
    ],
)
def test_schemas_are_read(page: Page, schema: Any, type_text: str, example: Any) -> None:
    body = "return [m.typeText(schema, api), m.exampleOf(schema, api)]"
    assert run(page, "schema.js", body, schema=schema, api=SCHEMA) == [type_text, example]


def test_a_schema_that_contains_itself_ends(page: Page) -> None:
    body = "return JSON.stringify(m.exampleOf({$ref: '#/components/schemas/Loop'}, api)).length"
    assert run(page, "schema.js", body, api=SCHEMA) < 200
