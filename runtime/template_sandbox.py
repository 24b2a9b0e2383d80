"""Renders an untrusted Jinja template within bounds.

A chat template may come out of a model file that a stranger made, so it may try to read objects it should not
(`().__class__`), or to use up memory and time. Jinja's immutable sandbox handles the first. For the second, every loop
step and every call is counted and paid for out of a TemplateBudget, every operation that makes a long string or list
checks the length before it makes it, and only the filters and methods that chat templates use are there at all. There
is no loader, so no file can be included.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from datetime import datetime
from functools import wraps
from itertools import chain
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.lexer import Token, TokenStream
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from .template_budget import TemplateBudget, TemplateRefusedError
from .template_vocabulary import COMPARING_TESTS, FILTERS, MAPPING_METHODS, STRING_METHODS, TESTS

MAX_SOURCE_LEN = 1 << 18
MAX_SOURCE_TOKENS = 20_000
"""Names, signs and pieces of text. The longest templates of models have half as many; compiling these takes half a
second."""
MAX_TEXT_LEN = 1 << 23
MAX_LIST_LEN = 100_000
MAX_STEPS = 400_000
MAX_RANGE_LEN = 10_000
MAX_NUMBER = 1 << 63
CHARS_PER_STEP = 256
"""Making a text of this many characters counts as one step, so all texts of a render together are bounded as well."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The environment of one template. Not thread-safe: the steps of a render are counted in it."""

    intercepted_binops = frozenset(("+", "-", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _Generation], optimized=False
        )
        self.num_steps = 0
        self._budget = TemplateBudget()
        self.filters = {name: self._bounded(self.filters[name]) for name in FILTERS} | {
            "join": self._join,
            "replace": self._replace,
            "safe": self._to_text,
            "string": self._to_text,
            "tojson": self._to_json,
        }
        comparing: dict[str, Any] = {name: self.tests[name] for name in COMPARING_TESTS}
        self.tests = {name: self.tests[name] for name in TESTS} | {
            name: self._measured(test) for name, test in comparing.items()
        }
        self.globals = {
            "dict": dict,
            "namespace": self.globals["namespace"],
            "range": self._range,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }
        self.finalize = self._to_text

    def load(self, source: str) -> jinja2.Template:
        """Compile a template.

        Raises:
            jinja2.TemplateError: it has a syntax error.
            TemplateRefusedError: it is longer than MAX_SOURCE_LEN or MAX_SOURCE_TOKENS.
        """
        if len(source) > MAX_SOURCE_LEN:
            raise TemplateRefusedError(f"the template has {len(source)} characters; at most {MAX_SOURCE_LEN} are read")
        tree = _Checks().visit(self.parse(source))
        tree.set_environment(self)
        return jinja2.Template.from_code(self, self.compile(tree), self.make_globals(None))

    def render(
        self, template: jinja2.Template, variables: Mapping[str, Any], budget: TemplateBudget | None = None
    ) -> str:
        """Render a template that `load` returned.

        Args:
            budget: what it may use, shared with other renders; it is spent. None for one of its own.

        Raises:
            TemplateRefusedError: it called raise_exception or exceeded a bound.
            Exception: whatever else goes wrong inside a template.
        """
        self.num_steps = 0
        self._budget = budget or TemplateBudget()
        pieces: list[str] = []
        length = 0
        for piece in template.generate(variables):
            length += len(piece)
            _check_length(length)
            pieces.append(piece)
        return "".join(pieces)

    # -- what templates may touch ------------------------------------------------------------------------------------

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in STRING_METHODS
        if isinstance(obj, Mapping):
            return attr in MAPPING_METHODS
        return not isinstance(obj, list | tuple) and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """No str.format: a format can ask for any width, so it is judged by is_safe_attribute like all others."""

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - Jinja's signature
        __self._step()
        owner = getattr(__obj, "__self__", None)
        if not isinstance(owner, str):
            return super().call(__context, __obj, *args, **kwargs)
        for internal in ("_loop_vars", "_block_vars"):
            kwargs.pop(internal, None)
        return __self._call_string_method(owner, __obj.__name__, args, kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self._step()
        if operator == "%" and isinstance(left, str):
            raise SecurityError("formatting with % is not available in a chat template; use ~ to join")
        _check_operands(operator, left, right)
        return self._charged(super().call_binop(context, operator, left, right))

    # -- what the rewritten template calls ---------------------------------------------------------------------------

    def checked_iter(self, items: Any) -> Any:
        """What a for loop runs over: the same items, each one a step."""
        if isinstance(items, Undefined):
            return items
        if isinstance(items, Sized):
            self._step(len(items))
            return items
        return self._counted(items)

    def checked_turn(self) -> None:
        """Once more through the body of a loop, whatever is in it. What the loop runs over has been counted."""
        self._step(0)

    def checked_concat(self, *parts: Any) -> str:
        """The ~ operator."""
        return self._join(parts)

    def checked_operand(self, value: Any) -> Any:
        """One side of a comparison."""
        self._measure(value)
        return value

    def checked_slice(self, value: Any) -> Any:
        """What x[a:b] gave."""
        return self._charged(value)

    def checked_text(self, text: str) -> str:
        """Literal text of the template."""
        self._charged(text)
        return text

    # -- bounds ------------------------------------------------------------------------------------------------------

    def _step(self, num_steps: int = 1) -> None:
        self.num_steps += num_steps
        if self.num_steps > MAX_STEPS:
            raise TemplateRefusedError(f"the template takes more than {MAX_STEPS} steps")
        self._budget.spend(num_steps)

    def _charged(self, value: Any) -> Any:
        """The value, its size counted as steps and checked against the largest allowed."""
        if isinstance(value, str):
            _check_length(len(value))
            self._step(len(value) // CHARS_PER_STEP)
        elif isinstance(value, list | tuple | dict):
            self._step(len(value))
        elif isinstance(value, int) and abs(value) > MAX_NUMBER:
            raise TemplateRefusedError(f"the template computes a number of {value.bit_length()} bits")
        return value

    def _counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._step()
            yield item

    def _measure(self, value: Any) -> None:
        """Count every node of a nested value as a step; a shared part counts as often as it would be printed."""
        self._step()
        if isinstance(value, Mapping):
            for item in chain.from_iterable(value.items()):
                self._measure(item)
        elif isinstance(value, list | tuple):
            for item in value:
                self._measure(item)
        elif isinstance(value, str):
            self._step(len(value) // CHARS_PER_STEP)

    def _measured(self, test: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*operands: Any) -> Any:
            for operand in operands:
                self._measure(operand)
            return test(*operands)

        return measured

    def _bounded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter whose result is charged. Jinja's marks on the function (what it wants passed) are kept."""

        @wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            self._step()
            if function.__name__ in ("do_sort", "do_unique", "do_dictsort"):
                for value in args:
                    self._measure(value)
            return self._charged(function(*args, **kwargs))

        return bounded

    def _call_string_method(self, text: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name == "replace":
            return self._replace(text, *args, **kwargs)
        if name == "join":
            return self._join(args[0], text)
        if name in ("split", "rsplit", "splitlines"):
            separator = args[0] if args else kwargs.get("sep")
            is_exact = isinstance(separator, str) and separator != ""
            self._step(len(text) // CHARS_PER_STEP + text.count(str(separator)) if is_exact else len(text) // 4)
        return self._charged(getattr(text, name)(*args, **kwargs))

    def _range(self, *bounds: int) -> range:
        numbers = range(*bounds)
        if len(numbers) > MAX_RANGE_LEN:
            raise TemplateRefusedError(f"range{bounds} has more than {MAX_RANGE_LEN} numbers")
        return numbers

    def _join(self, items: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
        pieces: list[str] = []
        length = 0
        for item in items:
            value = item if attribute is None else self.getitem(item, attribute)
            pieces.append(self._to_text(value))
            length += len(pieces[-1]) + len(d)
            _check_length(length)
            self._step(1 + len(d) // CHARS_PER_STEP)
        return d.join(pieces)

    def _replace(self, text: Any, old: str, new: str, count: int = -1) -> str:
        source = self._to_text(text)
        num_places = source.count(old) if count < 0 else min(count, source.count(old))
        _check_length(len(source) + num_places * len(new))
        return str(self._charged(source.replace(old, new, count)))

    def _to_text(self, value: Any) -> str:
        if isinstance(value, Mapping | list | tuple):
            self._measure(value)
        return str(self._charged(str(value)))

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON without HTML escapes, as chat templates expect it."""
        self._measure(value)
        if indent is not None and not 0 <= indent <= 16:
            raise TemplateRefusedError(f"tojson(indent={indent}) is not allowed: it must be from 0 to 16")
        text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        return str(self._charged(text))


class _Checks(NodeTransformer):
    """Routes through the environment what Jinja would do without asking it, so that it is counted there."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - Jinja's name
        self.generic_visit(node)
        assert isinstance(node.iter, nodes.Expr)
        node.iter = _through("checked_iter", [node.iter], node.lineno)
        node.body.insert(0, nodes.ExprStmt(_through("checked_turn", [], node.lineno), lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - Jinja's name
        self.generic_visit(node)
        return _through("checked_concat", node.nodes, node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802 - Jinja's name
        self.generic_visit(node)
        node.expr = _through("checked_operand", [node.expr], node.lineno)
        for operand in node.ops:
            operand.expr = _through("checked_operand", [operand.expr], node.lineno)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802 - Jinja's name
        self.generic_visit(node)
        return _through("checked_slice", [node], node.lineno) if isinstance(node.arg, nodes.Slice) else node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:  # noqa: N802 - Jinja's name
        return _through("checked_text", [nodes.Const(node.data)], node.lineno)


def _through(method: str, arguments: list[nodes.Expr], lineno: int) -> nodes.Call:
    function = nodes.EnvironmentAttribute(method, lineno=lineno)
    return nodes.Call(function, arguments, [], None, None, lineno=lineno)


class _Generation(Extension):
    """`{% generation %} ... {% endgeneration %}` marks the model's own text for training; it renders as its content.
    And the parser is given no more than MAX_SOURCE_TOKENS."""

    tags = {"generation"}  # noqa: RUF012 - declared so by Jinja

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        for count, token in enumerate(stream):
            if count >= MAX_SOURCE_TOKENS:
                raise TemplateRefusedError(f"the template has more than {MAX_SOURCE_TOKENS} words and signs")
            yield token

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise TemplateRefusedError(str(message))


def _strftime_now(layout: str) -> str:
    if len(layout) > 256:
        raise TemplateRefusedError("the date layout is longer than 256 characters")
    text = datetime.now().strftime(layout)
    _check_length(len(text))
    return text


def _check_length(length: int) -> None:
    if length > MAX_TEXT_LEN:
        raise TemplateRefusedError(f"the template makes a text of more than {MAX_TEXT_LEN} characters")


def _check_operands(operator: str, left: Any, right: Any) -> None:
    """Refuse an operation whose result would be too large, before it is carried out."""
    if operator == "+":
        if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            _check_items(left, len(left) + len(right))
    elif operator == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(value, str | list | tuple) and isinstance(times, int):
                _check_items(value, len(value) * max(0, times))
    elif operator == "**" and not (_is_number(left, 1 << 16) and _is_number(right, 3)):
        raise TemplateRefusedError(f"{left!r:.40} ** {right!r:.40} is larger than a template may compute")


def _is_number(value: Any, limit: int) -> bool:
    return isinstance(value, int | float) and abs(value) <= limit


def _check_items(value: str | list[Any] | tuple[Any, ...], length: int) -> None:
    if isinstance(value, str):
        _check_length(length)
    elif length > MAX_LIST_LEN:
        raise TemplateRefusedError(f"the template makes a list of more than {MAX_LIST_LEN} items")
