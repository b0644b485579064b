"""Tests of the template pool: hostile templates exceed their limits or are refused, and the next render succeeds."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest

from engine.text.chat_template import ChatTemplate
from engine.text.template_pool import LimitsExceeded, TemplatePool, TemplateRefused

NOW = datetime(2026, 1, 2, 3, 4, 5)

EXHAUSTING = {
    "loops without a word": "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
    "loops over macros": "{% macro m(r) %}{% for a in r %}{{ m(r) }}{% endfor %}{% endmacro %}{{ m(range(999)) }}",
    "doubled by ~": "{% set n = namespace(x='xx') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "doubled by +": "{% set n = namespace(x='xx') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "doubled by printing": "{% set a = 'x' %}" + "{% set a %}{{ a }}{{ a }}{% endset %}" * 60,
    "doubled lists": "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "doubled by join": "{% set n = namespace(x='x') %}{% for i in range(60) %}{% set n.x = [n.x] * 2 %}"
    "{% set n.x = n.x|join %}{% endfor %}",
    "doubled by replace": "{% set n = namespace(x='x') %}{% for i in range(9) %}"
    "{% set n.x = n.x.replace('x', 'x' * 9999) %}{% endfor %}",
    "many lists in one, printed": "{% set a = [1] %}" + "{% set a = [a, a] %}" * 60 + "{{ a }}",
    "many lists in one, compared": "{% set a = [1] %}{% set b = [1] %}"
    + "{% set a = [a, a] %}{% set b = [b, b] %}" * 60
    + "{{ a == b }}",
    "many lists in one, as JSON": "{% set a = [1] %}" + "{% set a = {'x': a, 'y': a} %}" * 60 + "{{ a|tojson }}",
    "a long product": "{{ ('x' * 10**9)|length }}",
    "a large power": "{{ 10 ** (10 ** 10) > 1 }}",
    "a large number": "{% set n = namespace(x=10) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "padding": "{{ 'x'.ljust(10**9) }}",
    "a wide %": "{{ '%1000000000d' % 1 }}",
    "a wide format": "{{ '{:1000000000}'.format(1) }}",
    "bytes": "{{ (1).to_bytes(10**9, 'big') }}",
    "filler": "{{ lipsum(n=10**9) }}",
    "written too long": "{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
}
ESCAPING = {
    "class": "{{ messages.__class__.__mro__ }}",
    "class by filter": "{{ (''|attr('__class__')).__mro__ }}",
    "class by format": "{{ '{0.__class__.__mro__}'.format('') }}",
    "function globals": "{{ raise_exception.__globals__.json }}",
    "bound method": "{{ strftime_now.__self__.year }}",
    "macro globals": "{% macro m() %}{% endmacro %}{{ m._environment.globals }}",
    "macro function": "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "owner of a method": "{{ ''.format.__self__.x }}",
    "change of a message": "{{ messages[0].update({}) }}",
    "another file": "{% include '/etc/passwd' %}",
    "a recursion without end": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a long range": "{% for x in range(10**9) %}{% endfor %}",
}


@pytest.fixture(scope="module")
def pool() -> Iterator[TemplatePool]:
    pool = TemplatePool(max_workers=1)
    yield pool
    pool.close()


def render(pool: TemplatePool, source: str, max_cpu_s: float = 2.0, **values: Any) -> str:
    return pool.render(source, {"messages": [{"role": "user", "content": "Hi"}], **values}, NOW, max_cpu_s)


@pytest.mark.parametrize("name", EXHAUSTING)
def test_a_template_that_exhausts_time_or_memory_is_stopped(pool: TemplatePool, name: str) -> None:
    memory_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started_s = time.monotonic()
    with pytest.raises(TemplateRefused):
        render(pool, EXHAUSTING[name], max_cpu_s=0.2)
    assert time.monotonic() - started_s < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_kib < 100 * 1024
    assert render(pool, "{{ messages[0].content }}") == "Hi"


@pytest.mark.parametrize("name", ESCAPING)
def test_template_that_escapes_the_sandbox_is_rejected(pool: TemplatePool, name: str) -> None:
    with pytest.raises(TemplateRefused):
        render(pool, ESCAPING[name])


@pytest.mark.parametrize(
    "source",
    ["{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "{% for a in b %}" * 50 + "{% endfor %}" * 50, "{# x #}" * 200_000],
)
def test_a_source_that_is_too_large_or_too_deep_is_refused(source: str) -> None:
    with pytest.raises(TemplateRefused, match="chat template"):
        ChatTemplate(source, {})


def test_text_with_lone_surrogates_and_large_numbers_is_rendered(pool: TemplatePool) -> None:
    assert render(pool, "{{ x }}{{ n }}", x="\ud800", n=10**30) == "\ud800" + "1" + "0" * 30


def test_many_templates_and_threads_share_the_workers() -> None:
    pool = TemplatePool(max_workers=2)

    def run(number: int) -> bool:
        return render(pool, f"{number % 80} {{{{ x }}}}", x=number) == f"{number % 80} {number}"

    try:
        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(run, range(400)))
    finally:
        pool.close()


def test_a_template_changes_only_its_own_copy_of_the_messages(pool: TemplatePool) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    assert render(pool, "{% set _ = messages.append(1) %}{{ messages|length }}", messages=messages) == "2"
    assert render(pool, "{{ messages|length }}", messages=messages) == "1"
    assert len(messages) == 1


def test_a_template_that_exceeded_its_limits_uses_one_worker_at_a_time(pool: TemplatePool) -> None:
    source = "{% if n %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}x"
    template = ChatTemplate(source, {}, pool=pool)
    with pytest.raises(LimitsExceeded):
        template.render([], n=1)
    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(template.render, [], n=1) for _ in range(2)]
        messages = [str(each.exception()) for each in running]
    assert sum("another conversation is being rendered" in message for message in messages) == 1
    assert template.render([]) == "x"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ 'a' ~ 1 ~ none ~ [1, 'x'] }}", "a1None[1, 'x']"),
        ("{{ 'a' + 'b' * 3 }}{{ [1] + [2] }}{{ 7 % 4 }}{{ 2 ** 5 }}{{ '%s-%03d' % ('x', 5) }}", "abbb[1, 2]332x-005"),
        ("{{ 1 < 2 <= 2 != 3 }}{{ 'a' in 'abc' }}{{ 'd' not in 'abc' }}", "TrueTrueTrue"),
        ("{{ {'a': 1}.a }}{{ {('a', 1): 2}[('a', 1)] }}{{ (1, 2, 3)[::-1] }}", "12(3, 2, 1)"),
        ("{{ 'a b'.split()|join('-') }}{{ ', '.join(['x', 'y']) }}{{ 'aXb'.replace('X', '--') }}", "a-bx, ya--b"),
        ("{{ ['b', 'a']|sort|join }}{{ [1, 2]|sum }}{{ [{'n': 2}]|sum(attribute='n') }}", "ab32"),
        ("{{ [{'n': 2}]|map(attribute='n')|list }}{{ ', '.join(['x']|map('upper')) }}", "[2]X"),
        ("{{ [{'a': 1}, {}]|selectattr('a', 'defined')|list|length }}{{ nothing }}{{ nothing is defined }}", "1False"),
        ("{{ '{:>5}|{}'.format('x', 1) }}{{ '%5s'|format('x') }}{{ 'x'|center(5) }}", "    x|1    x  x  "),
        ("{{ 'a\nb'|indent(2) }}{{ 'a\nb'|indent('> ', first=true) }}", "a\n  b> a\n> b"),
        ("{{ {'a': ['\u00e9', '<b>', none]}|tojson }}", '{"a": ["\u00e9", "<b>", null]}'),
        ("{{ {'b': 1, 'a': 2}|tojson(indent=2, sort_keys=true) }}", '{\n  "a": 2,\n  "b": 1\n}'),
        ("{{ {'a': '\u00e9'}|tojson(ensure_ascii=true, separators=(',', ':')) }}", '{"a":"\\u00e9"}'),
        ("{% for x in range(5) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 3 %}{% break %}{% endif %}{{ x }}"
         "{% endfor %}", "02"),
        ("{% generation %}said{% endgeneration %}", "said"),
        ("{% set n = namespace(x=1) %}{% for i in [2, 3] %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}", "6"),
        ("{{ dict(a=1).a }}{% set c = cycler('x', 'y') %}{{ c.next() }}{{ c.next() }}", "1xy"),
        ("{{ strftime_now('%d %b %Y') }}", "02 Jan 2026"),
        ("{%- macro m(x, y='z') -%}{{ x }}{{ y }}{{ caller() if caller }}{%- endmacro -%}{{ m('a') }}", "az"),
        ("{% filter upper %}a{% endfilter %}{% set x %}b{{ 1 }}{% endset %}{{ x }}", "Ab1"),
    ],
)  # fmt: skip
def test_templates_find_the_functions_and_filters_that_transformers_provides(
    pool: TemplatePool, source: str, expected: str
) -> None:
    assert render(pool, source) == expected
