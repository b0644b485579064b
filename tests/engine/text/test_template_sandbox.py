"""A hostile template ends soon, takes little memory and reaches nothing; a sound one finds what it knows."""

from __future__ import annotations

import resource
import time
from datetime import datetime

import pytest

from engine.text import chat_template as module
from engine.text import template_budget as budget
from engine.text.chat_template import ChatTemplate, TemplateRefused

HOSTILE = {
    "loops without a word": "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
    "loops that filter": "{% set r = range(99999) %}{% for a in r %}{% for b in r if b < 0 %}{% endfor %}{% endfor %}",
    "loops over macros": "{% macro m(r) %}{% for a in r %}{{ m(r) }}{% endfor %}{% endmacro %}{{ m(range(999)) }}",
    "a macro without end": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a loop into itself": "{% set r = range(99) %}{% for a in r recursive %}{{ loop(r) }}{% endfor %}",
    "a long range": "{% for x in range(10**9) %}{% endfor %}",
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
    "many lists in one, as a key": "{% set a = (1, 1) %}" + "{% set a = (a, a) %}" * 60 + "{{ {a: 1} }}",
    "many lists in one, looked up": "{% set a = (1, 1) %}" + "{% set a = (a, a) %}" * 60 + "{{ {}[a] }}",
    "many lists in one, joined": "{% set a = [1] %}" + "{% set a = [a, a] %}" * 60 + "{{ 'x' ~ a }}",
    "a namespace in itself": "{% set n = namespace() %}{% set n.x = [n, n] %}{{ n }}",
    "namespaces in one another": "{% set a = namespace(x=1) %}" + "{% set a = namespace(x=a, y=a) %}" * 60 + "{{ a }}",
    "lists summed": "{{ ([range(999)|list] * 99999)|sum(start=[])|length }}",
    "a long product": "{{ ('x' * 10**9)|length }}",
    "a long list": "{{ ([0] * 10**9)|length }}",
    "a large power": "{{ 10 ** (10 ** 10) > 1 }}",
    "a large number": "{% set n = namespace(x=10) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "precision": "{{ 1.5|round(10**9, 'floor') }}",
    "padding": "{{ 'x'.ljust(10**9) }}",
    "zeros": "{{ 'x'.zfill(10**9) }}",
    "tabs": "{{ 'a\tb'.expandtabs(10**9) }}",
    "centring": "{{ 'x'|center(10**9) }}",
    "indentation": "{{ ('\n' * 999999)|indent(999) }}",
    "indentation by text": "{{ ('\n' * 999999)|indent('x' * 999) }}",
    "indentation of JSON": "{{ [1]|tojson(indent=10**9) }}",
    "a wide %": "{{ '%1000000000d' % 1 }}",
    "a wide % by argument": "{{ '%*d' % (10**9, 1) }}",
    "a wide format": "{{ '{:1000000000}'.format(1) }}",
    "a wide format by argument": "{{ '{:{}}'.format(1, 10**9) }}",
    "a wide format filter": "{{ '%1000000000d'|format(1) }}",
    "batches": "{{ [1]|batch(10**9, 'x')|list }}",
    "slices": "{{ [1]|slice(10**9)|list }}",
    "bytes": "{{ (1).to_bytes(10**9, 'big') }}",
    "a table": "{{ ('x' * 9999).translate({120: 'x' * 9999}) }}",
    "many fields of %": "{{ (('%(a)s' * 9999) % {'a': 'x' * 9999})|length }}",
    "many wide fields of %": "{{ (('%(a)999d' * 99999) % {'a': 1})|length }}",
    "many fields of a filter": "{{ ('%(a)s' * 9999)|format(a='x' * 9999)|length }}",
    "many wide fields of a format": "{{ ('{0:>999}' * 99999).format(1)|length }}",
    "a number of many digits": "{{ ('f' * 99999)|int(base=16) > 1 }}",
    "a number of many bytes": "{{ (1).from_bytes(('x' * 99999).encode(), 'big') > 1 }}",
    "long numbers in a list": "{{ ([2 ** 4095] * 30000)|string|length }}",
    "looking from the end": "{{ ('a' * 40000).rfind('ab' + 'a' * 20000) }}",
    "cutting from the end": "{{ ('a' * 40000).rsplit('ab' + 'a' * 20000)|length }}",
    "stripping": "{{ ('x' * 40000).strip('y' * 20000 + 'x') }}",
    "trimming": "{{ ('x' * 40000)|trim('y' * 20000 + 'x') }}",
    "taking tags out": "{{ (('<!---->' * 9)|safe).striptags() }}",
    "texts as bytes": "{% set n = namespace(x=[]) %}{% set s = 'x' * 9999999 %}{% for i in range(9) %}"
    "{% set n.x = n.x + [s.encode('utf-32')] %}{% endfor %}",
    "words": "{{ ('a ' * 600000)|title|length }}",
    "words counted": "{{ ('a ' * 600000)|wordcount }}",
    "escaped for an address": "{{ ('/ ' * 600000)|urlencode|length }}",
    "letters": "{{ ('x' * 30000000)|list|length }}",
    "filler": "{{ lipsum(n=10**9) }}",
    "written too long": "{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
    "Python's own": "{{ messages.__class__.__mro__ }}",
    "Python's own by filter": "{{ (''|attr('__class__')).__mro__ }}",
    "Python's own by format": "{{ '{0.__class__.__mro__}'.format('') }}",
    "globals": "{{ raise_exception.__globals__.json }}",
    "a closure": "{{ strftime_now.__closure__[0] }}",
    "globals by a macro": "{% macro m() %}{% endmacro %}{{ m._environment.globals }}",
    "a macro's function": "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "a method's owner": "{{ ''.format.__self__.x }}",
    "a namespace's own": "{% set n = namespace(_Namespace__attrs=1) %}{{ n }}",
    "a namespace's own, set later": "{% set n = namespace() %}{% set n.__class__ = 1 %}{{ n }}",
    "changing the messages": "{{ messages.append(1) }}",
    "changing a message": "{{ messages[0].update({}) }}",
    "emptying the messages": "{{ messages.pop(0) }}",
    "changing a sum of lists": "{{ (messages + []).append(1) }}",
    "a list that grows while it is read": "{% set a = [1] %}{% for x in a %}{% set _ = a.append(x) %}{% endfor %}",
    "a list in itself": "{% set a = [] %}{% set _ = a.append(a) %}{% set _ = a.append(a) %}{{ a }}",
    "a list weighed before it grew": "{% set a = [1] %}{% set b = [a, a] %}{{ b }}{% for i in range(60) %}"
    "{% set n = [] %}{% set _ = n.append(a[0]) %}{% set _ = n.append(a[0]) %}{% set _ = a.pop() %}"
    "{% set _ = a.append(n) %}{% endfor %}{{ b }}",
    "taking from the front": "{% set a = [0] * 900000 %}{% set b = [a] %}{% set c = [] %}{% for x in a %}"
    "{% set _ = c.append(x) %}{% endfor %}{% for x in c %}{% set _ = c.pop(0) %}{% endfor %}",
    "another file": "{% include '/etc/passwd' %}",
}


@pytest.fixture
def short_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MAX_RENDER_S", 0.1)


@pytest.mark.usefixtures("short_time")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_refused_soon_and_takes_little_memory(name: str) -> None:
    memory_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started_s = time.thread_time()
    with pytest.raises(TemplateRefused):
        ChatTemplate(HOSTILE[name], {}).render([{"role": "user", "content": "Hi"}])
    assert time.thread_time() - started_s < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_kib < 800 * 1024


def test_how_wide_something_is_formatted_is_seen_in_one_pass() -> None:
    started_s = time.thread_time()
    assert len(render("{{ (':' * 300000) % () }}")) == 300_000
    assert time.thread_time() - started_s < 1


@pytest.mark.parametrize(
    "source",
    ["{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "{% for a in b %}" * 50 + "{% endfor %}" * 50, "{# x #}" * 200_000],
)
def test_a_source_too_large_or_too_deep_is_refused(source: str) -> None:
    with pytest.raises(TemplateRefused, match="chat template"):
        ChatTemplate(source, {})


def test_one_rendering_does_not_pay_for_another() -> None:
    template = ChatTemplate("{% for i in range(1000) %}{{ 'x' * 9999 }}{% endfor %}", {})
    assert {len(template.render([])) for _ in range(60)} == {9_999_000}


def render(source: str, **variables: object) -> str:
    return ChatTemplate(source, {}, now=lambda: datetime(2026, 1, 2, 3, 4, 5)).render([], **variables)


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
def test_a_sound_template_finds_what_it_knows(source: str, expected: str) -> None:
    assert render(source) == expected


def test_it_is_noticed_that_a_template_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SLOW_S", 0.005)
    template = ChatTemplate("{% for x in range(n) %}{{ x }}{% endfor %}", {})
    template.render([], n=10)
    assert not template.is_slow
    template.render([], n=99_000)
    assert template.is_slow
