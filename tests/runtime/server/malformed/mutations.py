"""What can be wrong with a request: values, JSON, encodings, headers, methods and paths. Everything is drawn from one
generator, so that a failure can be repeated from its seed."""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from .valid_requests import GETS, Body


@dataclass(frozen=True, slots=True)
class Attempt:
    """One HTTP request, and what was done to it."""

    method: str
    target: str
    body: bytes
    headers: tuple[tuple[str, bytes], ...] = (("content-type", b"application/json"),)
    story: str = ""

    def on_the_wire(self) -> bytes:
        head = f"{self.method} {self.target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n".encode("latin-1")
        lines = b"".join(name.encode() + b": " + value + b"\r\n" for name, value in self.headers)
        return head + lines + b"content-length: %d\r\n\r\n" % len(self.body) + self.body


@dataclass(frozen=True, slots=True)
class Raw:
    """JSON text that no Python value stands for."""

    text: str


def _nested(opening: str, closing: str, depth: int) -> Raw:
    return Raw(opening * depth + closing * depth)


HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 129, 2**31, 2**63, 2**64, -(2**63), 10**30, 0.5, -0.5, 1e308, -1e308, 1e-320),
    *("", "x", " ", "\x00", "null", "\ud800", "\U0001f600", "true", "1", "a" * 3000, "{{ 7*7 }}", "<|im_end|>"),
    *("(a*)*b" * 30, "[", "(?P<x", "(?=a)", "\\", "auto", "json_object"),
    *([], {}, [None], [[]], [{}], {"": ""}, {"type": None}, {"type": "object"}, {"$ref": "#"}, {"pattern": "("}),
    *([1.5], ["x", 1], list(range(200)), {"type": ["x"]}, {"a": {"b": {"c": []}}}, {"text": "x", "type": "image_url"}),
    *(Raw("NaN"), Raw("-Infinity"), Raw("1e999"), Raw("1" * 5000), Raw("-0"), Raw("01"), Raw("'x'"), Raw('"\\ud83d"')),
    *(Raw('"\\u0000"'), Raw('"\x01"'), Raw("{,}"), Raw("[1,]"), _nested("[", "]", 3000), _nested('{"a":', "}", 3000)),
    *(
        _nested("[", "]", 120),
        _nested("[", "]", 500),
        _nested('{"a":', "}", 940),
        Raw('{"a":' * 120 + "1" + "}" * 120),
        Raw("// x\n1"),
        Raw("undefined"),
        Raw('{"a":1,"a":2}'),
    ),
)


def _hostile(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(HOSTILE))


def attempts(good: list[tuple[str, Body]], rng: random.Random) -> Iterator[Attempt]:
    """Without end."""
    weighted: tuple[tuple[int, Callable[[str, Body, random.Random], Attempt]], ...] = (
        (10, _hostile_values),
        (2, _missing_and_unknown),
        (2, _spoiled_text),
        (2, _spoiled_encoding),
        (2, _spoiled_headers),
        (1, _elsewhere),
    )
    kinds = [kind for weight, kind in weighted for _ in range(weight)]
    while True:
        path, body = rng.choice(good)
        yield rng.choice(kinds)(path, copy.deepcopy(body), rng)


def _post(path: str, body: Any, story: str) -> Attempt:
    return Attempt("POST", path, dumped(body), story=story)


def dumped(value: Any) -> bytes:
    """JSON, with `Raw` as it is."""
    raws: list[str] = []

    def marked(item: Any) -> Any:
        if isinstance(item, Raw):
            raws.append(item.text)
            return f"\x02{len(raws) - 1}\x03"
        if isinstance(item, dict):
            return {name: marked(child) for name, child in item.items()}
        return [marked(child) for child in item] if isinstance(item, list) else item

    text = json.dumps(marked(value))
    for idx, raw in enumerate(raws):
        text = text.replace(f'"\\u0002{idx}\\u0003"', raw)
    return text.encode("utf-8", "surrogatepass")


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with every key or index in it."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def _hostile_values(path: str, body: Body, rng: random.Random) -> Attempt:
    story = []
    for _ in range(rng.choice((1, 1, 1, 2))):
        places = list(_places(body))
        if not places:
            return _post(path, _hostile(rng), "a body of another kind")
        container, key = rng.choice(places)
        container[key] = _hostile(rng)
        story.append(f"{key}={container[key]!r:.60}")
    return _post(path, body, ", ".join(story))


def _missing_and_unknown(path: str, body: Body, rng: random.Random) -> Attempt:
    places = [(container, key) for container, key in _places(body) if isinstance(container, dict)]
    if places and rng.random() < 0.6:
        container, key = rng.choice(places)
        value = container.pop(key)
        if rng.random() < 0.4:
            container[str(key).upper() if rng.random() < 0.5 else f"{key}\x00"] = value
        return _post(path, body, f"no {key}")
    if rng.random() < 0.3:
        return _post(path, _hostile(rng), "a body of another kind")
    body[rng.choice(("", "__class__", "x" * 5000, "image_data", "suffix", "stream"))] = _hostile(rng)
    return _post(path, body, "one field more")


def _spoiled_text(path: str, body: Body, rng: random.Random) -> Attempt:
    text = bytearray(dumped(body))
    story = rng.choice(("cut", "flipped", "doubled key", "two values", "nothing", "spaces", "rubbish"))
    match story:
        case "cut":
            del text[rng.randrange(len(text)) :]
        case "flipped":
            for _ in range(rng.randrange(1, 4)):
                text[rng.randrange(len(text))] = rng.randrange(256)
        case "doubled key" if body:
            key = json.dumps(rng.choice(list(body)))
            text[1:1] = f"{key}: {json.dumps(rng.choice((None, 7, 'x', [])))}, ".encode()
        case "two values":
            text += bytes(text)
        case "nothing":
            text = bytearray()
        case "spaces":
            text[:0] = b" \n" * 20_000
        case _:
            text = bytearray(rng.randbytes(rng.randrange(1, 400)))
    return Attempt("POST", path, bytes(text), story=story)


def _spoiled_encoding(path: str, body: Body, rng: random.Random) -> Attempt:
    text = dumped(body)
    plain = text.decode("utf-8", "replace")
    changed = {
        "utf-16": plain.encode("utf-16"),
        "utf-32": plain.encode("utf-32-le"),
        "a mark of byte order": b"\xef\xbb\xbf" + text,
        "latin-1": plain.replace("One", "\xe9").replace("Say", "\xff").encode("latin-1", "replace"),
        "gzip": gzip.compress(text, mtime=0),
        "overlong": text.replace(b"e", b"\xc1\xa5"),
    }
    story = rng.choice(list(changed))
    headers: tuple[tuple[str, bytes], ...] = (("content-type", b"application/json"),)
    if story == "gzip":
        headers += (("content-encoding", b"gzip"),)
    return Attempt("POST", path, changed[story], headers, story)


def _spoiled_headers(path: str, body: Body, rng: random.Random) -> Attempt:
    json_type = ("content-type", b"application/json")
    headers = rng.choice(
        (
            (),
            (("content-type", b"text/plain"),),
            (("content-type", b"application/x-www-form-urlencoded"),),
            (("content-type", b"multipart/form-data; boundary=x"),),
            (("content-type", b"application/json; charset=utf-7"),),
            (("content-type", b"\xff\xfe"),),
            (json_type, json_type),
            (json_type, ("authorization", b"Bearer \xff\xf0")),
            (json_type, ("authorization", b"Basic eA==")),
            (json_type, ("x-api-key", b"\xc3\x28" * 50)),
            (json_type, ("accept", b"image/png")),
            (json_type, ("expect", b"200-maybe")),
            (json_type, ("x-big", b"a" * 40_000)),
            (json_type, *((f"x-{idx}", b"a" * 20) for idx in range(900))),
            (json_type, ("range", b"bytes=5-1"), ("cookie", b"=;=;=")),
            (json_type, ("x-forwarded-for", b"\x80" * 30), ("origin", b"null")),
            (json_type, ("upgrade", b"websocket"), ("sec-websocket-version", b"13")),
        )
    )
    return replace(_post(path, body, "headers"), headers=headers)


def _elsewhere(path: str, body: Body, rng: random.Random) -> Attempt:
    attempt = _post(path, body, "elsewhere")
    if rng.random() < 0.4:
        method = rng.choice(("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "PROPFIND", "get"))
        return replace(attempt, method=method)
    changes = (
        "/../..",
        "//",
        "/%2e%2e/",
        "%00",
        "?a=%ff&a",
        "?" + "x=1&" * 2000,
        "/" + "a" * 3000,
        "#x",
        "%zz",
        "\xff",
    )
    target = path + rng.choice(changes) if rng.random() < 0.5 else rng.choice(GETS) + rng.choice(("", *changes))
    return replace(attempt, method=rng.choice(("GET", "POST")), target=target)
