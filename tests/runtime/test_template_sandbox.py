"""A hostile template reads nothing, and uses up neither memory nor time."""

from __future__ import annotations

import json

import pytest
from jinja2.exceptions import TemplateError

from ramet.runtime.template_budget import TemplateBudget, TemplateRefusedError
from ramet.runtime.template_sandbox import BoundedEnvironment


def render(source: str, **variables) -> str:
    environment = BoundedEnvironment()
    return environment.render(environment.load(source), {"messages": [{"role": "user"}], **variables})


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for x in [1, 2] %}{{ loop.index }}{{ loop.last }}{{ loop.length }};{% endfor %}", "1False2;2True2;"),
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "1"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}={{ v }}{% endfor %}", "a=1"),
        ("{% set ns = namespace(n=0) %}{% for x in range(4) %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}", "6"),
        ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f('a') ~ f(1) }}", "<a><1>"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ [3, 1, 2] | sort | join('-') }} {{ 'abc'[1:] }} {{ 'abc'[::-1] }}", "1-2-3 bc cba"),
        ("{{ 'a,b'.split(',') | last }} {{ 'xax'.replace('x', '') }} {{ 'xax' | replace('x', 'yy') }}", "b a yyayy"),
        ("{{ ', '.join(['a', 'b']) }} {{ ' a '.strip() }} {{ ' a ' | trim }}", "a, b a a"),
        ("{{ none }}{{ missing }}{{ true }}{{ 7 % 2 == 1 }}{{ 2 ** 3 }}", "NoneTrueTrue8"),
        ("{% if 'x' in 'axb' and 'y' is not in ['z'] %}yes{% endif %}", "yes"),
        ("{% generation %}{{ 'a' }}{% endgeneration %}b", "ab"),
        ("  {% if true %}\n  x\n  {% endif %}\n", "  x\n"),
        ("{{ {'b': 'é<'} | tojson(indent=2) }}", json.dumps({"b": "é<"}, ensure_ascii=False, indent=2)),
        ("{{ strftime_now('%Y') | length }}", "4"),
    ],
)
def test_what_chat_templates_do_works(source, text):
    assert render(source) == text


DOUBLING = "{% set ns = namespace(x=START) %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}"


def doubling(start: str, step: str, after: str = "") -> str:
    return DOUBLING.replace("START", start).replace("STEP", step) + after


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 1000000000 }}",
        "{{ 1000000000 * 'a' }}",
        "{{ [0] * 1000000000 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{% for i in range(1000000000) %}x{% endfor %}",
        "{% for i in range(9999) %}{% for j in range(9999) %}x{% endfor %}{% endfor %}",
        "{% set x %}{% for i in range(9999) %}" + "y" * 99999 + "{% endfor %}{% endset %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(100) }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1, varargs, varargs) }}{% else %}{{ varargs == [1] }}{% endif %}"
        "{% endmacro %}{{ f(100, 1) }}",
        doubling("'a'", "ns.x ~ ns.x"),
        doubling("'a'", "ns.x + ns.x"),
        doubling("'aa'", "ns.x.replace('a', 'aaaaaaaa')"),
        doubling("'aa'", "ns.x | replace('a', 'aaaaaaaa')"),
        doubling("'aa'", "[ns.x, ns.x] | join"),
        doubling("'aa'", "ns.x.join(['b', 'b', 'b'])"),
        doubling("['a']", "ns.x + ns.x"),
        doubling("[]", "[ns.x, ns.x]", "{{ ns.x }}"),
        doubling("[]", "[ns.x, ns.x]", "{{ ns.x | tojson }}"),
        doubling("[]", "[ns.x, ns.x]", "{{ ns.x | string }}"),
        doubling("[]", "[ns.x, ns.x]", "{{ ns.x == [ns.x] }}"),
        doubling("[]", "[ns.x, ns.x]", "{{ ns.x is eq ns.x }}"),
        doubling("[]", "[ns.x, ns.x]", "{{ [ns.x, ns.x] | sort }}"),
        doubling("[]", "[ns.x, ns.x]", "{{ [ns.x] | select('equalto', 1) | list }}"),
        doubling("3", "ns.x * ns.x"),
        "{% set ns = namespace(n=3) %}{% for i in range(9999) %}{% set ns.n = ns.n - (0 - ns.n) %}{% endfor %}",
        "{{ (['b' * 1000000] * 99999) | map('upper') | list | length }}",
        "{% set x = 'a' * 8000000 %}{% set ns = namespace(l=[]) %}"
        "{% for i in range(9000) %}{% set ns.l = ns.l + [x[i:]] %}{% endfor %}",
        "{% set x = 'ab ' * 2000000 %}{{ x.split() | length }}",
        "{% set x = 'a' * 8000000 %}{{ x }}{{ x }}",
        "{{ strftime_now('%Y' * 200) }}",
        "{{ [] | tojson(indent=1000000000) }}",
        "x" * (1 << 21),
    ],
)
def test_a_template_that_wants_too_much_is_stopped(source):
    with pytest.raises(TemplateRefusedError):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ().__class__.__bases__[0].__subclasses__() }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ range.__self__.filters }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['os'] }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ lipsum.__globals__ }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ 'a'.center(1000000000) }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ 'a' | indent(1000000000) }}",
        "{{ 3.7 | round(1000000000) }}",
        "{{ messages | attr('__class__') }}",
        "{{ messages.append(1) }}",
        "{{ messages.clear() }}",
        "{{ messages[0].update(role='x') }}",
        "{% include '/etc/passwd' %}",
        "{% import '/etc/passwd' as p %}",
        "{% extends '/etc/passwd' %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    ],
)
def test_a_template_reaches_nothing_it_should_not(source):
    messages = [{"role": "user"}]
    with pytest.raises((TemplateError, TypeError, RecursionError)):
        render(source, messages=messages)
    assert messages == [{"role": "user"}]


@pytest.mark.parametrize(
    "source",
    [
        "{{ self._TemplateReference__context }}",
        "{{ 'x'.format }}",
        "{{ dict.__base__ }}",
        "{{ messages | map(attribute='__class__') | list }}",
    ],
)
def test_a_forbidden_name_alone_shows_nothing(source):
    assert render(source) in ("", "[Undefined]")


def test_a_refused_template_leaves_the_environment_usable():
    environment = BoundedEnvironment()
    template = environment.load("{% for i in range(n) %}{% for j in range(n) %}{% endfor %}{% endfor %}ok")
    with pytest.raises(TemplateRefusedError):
        environment.render(template, {"n": 9999})
    assert environment.render(template, {"n": 3}) == "ok"


def test_a_long_ordinary_conversation_is_no_attack():
    source = "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '\n' }}{% endfor %}"
    messages = [{"role": "user", "content": "word " * 200}] * 4000
    assert len(render(source, messages=messages)) == 4000 * (8 + 1000 + 1)


def test_a_template_is_not_compiled_if_it_is_long():
    with pytest.raises(TemplateRefusedError, match="20000 words and signs"):
        render("{{x}}" * 7000)
    with pytest.raises(TemplateRefusedError, match="characters"):
        render("x" * 300_000)


def test_renders_share_a_budget():
    environment, budget = BoundedEnvironment(), TemplateBudget(max_steps=400)
    template = environment.load("{% for i in range(40) %}x{% endfor %}")
    for _ in range(3):
        assert environment.render(template, {}, budget) == "x" * 40
    with pytest.raises(TemplateRefusedError, match="400 steps for one conversation"):
        environment.render(template, {}, budget)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(9999) %}{% set a = 1 %}{% endfor %}",
        "{% for i in [0] recursive %}{{ '' if loop.depth > 1 else loop(range(9999)) }}{% endfor %}",
        "{{ range(9999) | map('string') | join }}",
    ],
)
def test_every_loop_looks_at_the_clock(source):
    environment = BoundedEnvironment()
    template = environment.load(source)
    with pytest.raises(TemplateRefusedError, match="0 s of the processor"):
        environment.render(template, {}, TemplateBudget(max_seconds=0.0))
