"""JSON schemas as grammars: everything generated is valid per draft 2020-12, or the schema is refused.

The way of a schema: `document` parses it and finds places in it; `expansion` turns a place into alternatives of
constraints on one type (`constraints`), refusing keywords that cannot be enforced (`keywords`); `graph` expands all of
it into a finite graph and takes out what no finite value satisfies; `lark_writer` writes the graph as a grammar.

What is generated is a subset of what is valid, on purpose: properties come in the order of the schema, numbers have at
most 18 digits, strings are escaped in one way only, and there is no whitespace but the chosen one.
"""

from __future__ import annotations

from .compile import json_schema_grammar, json_schema_lark
from .formats import FORMATS

__all__ = ["FORMATS", "json_schema_grammar", "json_schema_lark"]
