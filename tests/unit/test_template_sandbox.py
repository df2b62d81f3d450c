"""A chat template from a stranger reaches nothing but its data, and ends soon with bounded memory."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest

from gemwright.errors import CheckpointError, GemwrightError, RequestError
from gemwright.text import template_limits
from gemwright.text.template_jinja import JinjaTemplate

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": " hi "}]


def render(source: str, messages: list[dict[str, Any]] = MESSAGES, **variables: Any) -> str:
    return JinjaTemplate(source).render(messages, tools=None, add_generation_prompt=False, variables=variables)


@pytest.mark.parametrize(
    "expression",
    [
        "''.__class__",
        "''.__class__.__mro__",
        "''['__class__']",
        "'' | attr('__class__')",
        "[''] | map(attribute='__class__') | list",
        "['']|map('attr', '__class__')|list",
        "messages.append(1)",
        "messages[0].update({'a': 1})",
        "messages[0].pop('role')",
        "cycler.__init__.__globals__",
        "joiner.mro()",
        "dict.__class__",
        "namespace.__init__",
        "range.__globals__",
        "raise_exception.__globals__",
        "strftime_now.__globals__",
        "self.__init__",
        "self._TemplateReference__context",
        "macro_of.__class__",
        "'{0.__class__}'.format(1)",
        "'{0[__class__]}'.format('')",
        "'{a.__class__}'.format_map({'a': 1})",
        "('{0.__class__}' | attr('format'))(1)",
        "('{0.__class__}' | safe).format(1)",
        "(1).to_bytes(10, 'big')",
        "'a'.encode()",
        "namespace(__class__=1)",
    ],
)
def test_nothing_leads_out_of_the_sandbox(expression: str) -> None:
    with pytest.raises(CheckpointError, match="what is not allowed") as caught:
        render("{% macro macro_of() %}{% endmacro %}{{ " + expression + " }}")
    assert str(caught.value.value).startswith("SecurityError")


def test_objects_are_shown_by_their_type_alone() -> None:
    class Secret:
        def open(self) -> str:
            return "opened"

    assert render("{{ thing }}", thing=Secret()) == "<Secret>"
    with pytest.raises(RequestError):
        render("{{ thing.open() }}", thing=Secret())


BIG = "{% set big = ('ab' * 4000000) %}"
BOMBS = {
    "loops": "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    "filtered loops": "{% for a in range(100000) %}{% for b in range(100000) if false %}{% endfor %}{% endfor %}",
    "recursion": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "output": "{% for a in range(100000) %}" + "x" * 1000 + "{% endfor %}",
    "captured output": "{% set x %}{% for a in range(100000) %}" + "x" * 1000 + "{% endfor %}{% endset %}",
    "repetition": "{{ 'a' * 10**9 }}",
    "repeated list": "{{ [0] * 10**9 }}",
    "mirrored repetition": "{{ 10**9 * 'a' }}",
    "power": "{{ 10**(10**8) }}",
    "squares": "{% set ns = namespace(x=3) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "doubling": "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "tilde": "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "wide tilde": BIG + "{{ big" + " ~ big" * 9000 + " }}",
    "blocks": "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}"
    "{% set ns.x = y %}{% endfor %}",
    "shared lists": "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}",
    "shared tuples": "{% set ns = namespace(x=(1,)) %}{% for i in range(99) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}"
    "{{ {ns.x: 1} }}",
    "shared dicts": "{% set ns = namespace(x={}) %}{% for i in range(99) %}{% set ns.x = {'a': ns.x, 'b': ns.x} %}"
    "{% endfor %}{{ ns.x | tojson }}",
    "deep tuples": "{% set ns = namespace(x=(1,)) %}{% for i in range(99999) %}{% set ns.x = (ns.x,) %}{% endfor %}",
    "deep filters": "{% set ns = namespace(x=[1]) %}{% for i in range(99999) %}{% set ns.x = ns.x | map('string') %}"
    "{% endfor %}{{ ns.x | list }}",
    "kept text": "{% set ns = namespace(x=none) %}{% for i in range(99999) %}"
    "{% set ns.x = namespace(before=ns.x, text='a' * 1000000) %}{% endfor %}",
    "straight text": BIG + "".join(f"{{% set x{i} = big[1:] %}}" for i in range(9000)),
    "comparisons": BIG + "{% set c = big[:-1] ~ 'b' %}{{ big" + " == c == big" * 9000 + " }}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "percent name": "{{ '%(a(b)c)1000000000d' % {'a(b)c': 1} }}",
    "percent star": "{{ '%*d' % (10**9, 1) }}",
    "percent filter": "{{ '%1000000000d' | format(1) }}",
    "percent names": BIG + "{{ ('%(a)s' * 100000) % {'a': big} }}",
    "format": "{{ '{:1000000000}'.format(1) }}",
    "format nested": "{{ '{:{w}}'.format(1, w=10**9) }}",
    "format fields": BIG + "{{ ('{0}' * 100000).format(big) }}",
    "center": "{{ 'a' | center(10**9) }}",
    "center method": "{{ 'a'.center(10**9) }}",
    "zfill": "{{ 'a'.zfill(10**9) }}",
    "replace": BIG + "{{ big | replace('a', big) }}",
    "replace method": BIG + "{{ big.replace('a', big) }}",
    "join": BIG + "{{ range(100000) | join(big) }}",
    "join method": BIG + "{{ big.join(['a'] * 100000) }}",
    "join of lazy": BIG + "{{ range(100000) | map('default', big) | map('replace', '0', big) | join }}",
    "translate": BIG + "{{ big.translate({97: big}) }}",
    "indent": BIG + "{{ big | indent(900) }}",
    "tojson indent": "{{ [1] | tojson(indent=10**9) }}",
    "tojson separators": BIG + "{{ range(100000) | list | tojson(separators=(big, big)) }}",
    "batch": "{{ [1] | batch(10**9, 'x') | list }}",
    "slice": "{{ [1] | slice(10**9) | list }}",
    "round": "{{ 1.5 | round(10**9, 'ceil') }}",
    "sum of lists": "{{ range(100000) | map('string') | map('list') | sum(start=['a'] * 100000) | length }}",
    "strip": BIG + "{{ big.strip(big) }}",
    "trim": BIG + "{{ big | trim(big) }}",
    "search from the right": BIG + "{{ big.rfind('c' ~ big) }}",
    "time": "{{ strftime_now('%1000000000d' * 1000) }}",
    "loop of big lists": "{% for b in range(100000) | map('default', 1) | batch(900) %}{{ [b] * 90000 }}{% endfor %}",
    "namespace in itself": "{% set ns = namespace() %}{% set ns.a = ns %}{% set ns.b = [ns] * 10**7 %}{{ ns.b }}",
}


@pytest.mark.parametrize("source", BOMBS.values(), ids=BOMBS.keys())
def test_a_bomb_ends_soon_with_a_clear_error(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MAX_SECONDS", 1.0)
    monkeypatch.setattr(template_limits, "MAX_MADE", 256 << 20)
    template = JinjaTemplate(source)
    before = time.thread_time()
    with pytest.raises(GemwrightError, match=r"^chat_template.*: the chat template"):
        template.render(MESSAGES, tools=None, add_generation_prompt=False, variables={})
    assert time.thread_time() - before < 6


def test_data_given_is_bounded_too() -> None:
    deep: Any = []
    for _ in range(300):
        deep = [deep]
    for content in (deep, "x" * (template_limits.MAX_VALUE + 1), 1 << 20000):
        with pytest.raises(RequestError, match="the chat template"):
            render("", [{"role": "user", "content": content}])


CHAINS = """
import resource
from gemwright.errors import GemwrightError
from gemwright.text.template_jinja import JinjaTemplate
for step in ("ns.x | map('string')", "namespace(x=ns.x)", "[ns.x] | reverse", "(ns.x,)"):
    source = (
        "{% set ns = namespace(x=[1]) %}{% for i in range(50000) %}{% set ns.x = " + step + " %}{% endfor %}"
        "{{ ns.x | list }}{{ ns.x == ns.x }}"
    )
    try:
        JinjaTemplate(source).render([], tools=None, add_generation_prompt=False, variables={})
    except GemwrightError as error:
        print(step, error.value, error.limit)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
assert peak < 1000, peak
"""


def test_long_chains_of_objects_do_not_overflow_the_stack_of_c() -> None:
    done = subprocess.run([sys.executable, "-c", CHAINS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
