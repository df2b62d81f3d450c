"""A checkpoint's own chat template gives the text that transformers gives, reaches nothing, and ends."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import _normalize_chat_messages, render_jinja_template

from gemwright.errors import CheckpointError, RequestError
from gemwright.text import template_jinja
from gemwright.text.template_jinja import JinjaTemplate, read_own_template

TURNS = """\
{{ bos_token }}
{%- macro turn(role, text) -%}
<start>{{ role }}
{{ text | trim }}<end>
{% endmacro %}
{%- set ns = namespace(system='', count=0) %}
{%- for message in messages %}
    {%- if message.role == 'system' and loop.first %}
        {%- set ns.system = message.content %}
        {%- continue %}
    {%- endif %}
    {%- set ns.count = ns.count + 1 %}
    {%- if message['content'] is string %}
{{ turn(message.role, message.content) }}
    {%- elif message.content is iterable %}
        {%- for part in message.content if part.type != 'audio' %}
            {%- if part.type == 'text' %}{{ part.text | trim }}{% else %}<{{ part.type | upper }}>{% endif %}
        {%- endfor %}
    {%- endif %}
    {%- generation %}[{{ message.reasoning_content | default('none') }}{{ message.thinking }}]{% endgeneration %}
    {%- if message.role == 'tool' %}{% break %}{% endif %}
{%- endfor %}
{%- if tools %}
    {% for tool in tools | map(attribute='function') %}
{{ loop.index }}/{{ loop.length }} {{ tool | tojson }}
{{ tool | tojson(indent=2, sort_keys=true, separators=(',', ': ')) }}
    {% for key, value in tool.parameters.properties | dictsort %}
- {{ key }}: {{ value.type }}{{ ', ' if not loop.last }}
    {% endfor %}
    {% endfor %}
{% endif %}
{{ ns.system ~ ns.count }} {{ documents is none }} {{ strftime_now('%Y-%m') }} {{ missing }}{{ [1, 'é', none, 2.5] }}
{{- (messages | first).role }} {{ messages[::-1] | map(attribute='role') | join('|') }} {{ messages | length }}
{% if add_generation_prompt %}{{ '<start>model\\n' }}{% endif %}

"""

FEATURES = [
    TURNS,
    "  {% if true %}\n  a  \n  {% endif %}\n\n{# note #}\nb\n",
    "{% set x %}<{{ messages[0].content }}>{% endset %}{{ x * 2 }}{{ x | replace('<', '[') }}{{ x | length }}",
    "{{ messages | tojson }}{{ '<&>' | tojson }}{{ '<&>' | e }}{{ ('<' | safe) + '<' }}{{ {'b': 1, 'a': (1, 2)} }}",
    "{{ '%s is %5.2f' % ('x', 1.5) }}{{ '{:>5}{a}'.format(1, a='b') }}{{ '%03d' | format(7) }}{{ 'a b'.split() }}",
    "{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 10 }}{{ -3 | abs }}{{ 7 / 2 }}{{ 2.567 | round(1) }}{{ [3, 1] | sort | sum }}",
    "{% for i in range(5) if i is odd %}{{ i }}{{ loop.previtem }}{{ loop.cycle('a', 'b') }}{% else %}none{% endfor %}",
    "{% for i in [] %}x{% else %}none{% endfor %}{% for k, v in {'a': [1]}.items() %}{{ k }}{{ v }}{% endfor %}",
    "{% for a in [[1, [2]], [3]] recursive %}{{ loop(a) if a is not number else a }}{{ loop.depth }}{% endfor %}",
    "{% macro m(a, b='x') %}{{ a }}{{ b }}{{ caller() if caller }}{{ varargs }}{% endmacro %}"
    "{% call m(1) %}in{% endcall %}{{ m(1, 2, 3) }}{% filter upper %}abc{% endfilter %}",
    "{{ [1, 2, 2] | unique | list }}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}"
    "{{ messages | groupby('role') | length }}{{ 'a,b' | replace(',', ';') | title }}{{ [1, 2, 3] | batch(2) | list }}",
    "{{ [[1], [2]] | sum(start=[]) }}{{ 'a\nb' | indent(2) }}{{ 'a' | center(5) }}{{ 'xax' | trim('x') }}{{ 1 if x }}",
    "{% set generated = 1 %}{% generation %}{% set generated = 2 %}{{ generated }}{% endgeneration %}{{ generated }}",
    "{{ 'a' in messages[0].content }}{{ 1 < 2 < 3 }}{{ 'b' not in 'abc' }}{{ dict(a=1) | items | list }}{{ 'x'[1:] }}",
    "{% if messages | selectattr('role', 'eq', 'nobody') %}lazy is true{% endif %}{{ true }}{{ none }}{{ 1e3 }}",
]
MESSAGES: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": " hi "}],
    [
        {"role": "system", "content": "Be é <brief>."},
        {"role": "user", "content": [{"type": "text", "text": " look "}, {"type": "image"}, {"type": "audio"}]},
        {"role": "assistant", "content": None, "reasoning": "I think", "tool_calls": None},
        {"role": "tool", "content": "{}"},
        {"role": "user", "content": "never seen"},
    ],
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "größe",
            "description": "a <b> & 'c'",
            "parameters": {"type": "object", "properties": {"b": {"type": "string"}, "A": {"type": "integer"}}},
        },
    }
]


def oracle(source: str, messages: list[dict[str, Any]], **named: Any) -> str:
    return render_jinja_template([_normalize_chat_messages(messages)], chat_template=source, **named)[0][0]


def render(source: str, messages: list[dict[str, Any]] | None = None, **variables: Any) -> str:
    messages = MESSAGES[0] if messages is None else messages
    return JinjaTemplate(source).render(messages, tools=None, add_generation_prompt=False, variables=variables)


@pytest.mark.parametrize("source", FEATURES)
@pytest.mark.parametrize("messages", MESSAGES, ids=["short", "long"])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["bare", "tools"])
def test_text_is_that_of_transformers(source: str, messages: list[dict[str, Any]], tools: Any) -> None:
    ours = JinjaTemplate(source).render(
        messages, tools=tools, add_generation_prompt=True, variables={"bos_token": "<bos>", "thinking_budget": 3}
    )
    expected = oracle(source, messages, tools=tools, add_generation_prompt=True, bos_token="<bos>", thinking_budget=3)
    assert ours == expected


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "tool"]), "content": TEXTS}), min_size=1)
)
def test_any_text_comes_out_as_from_transformers(messages: list[dict[str, Any]]) -> None:
    assert render(TURNS, messages, bos_token="") == oracle(TURNS, messages, bos_token="")


def test_the_messages_given_stay_as_they_are() -> None:
    before = json.dumps(MESSAGES[1])
    render(TURNS, MESSAGES[1])
    assert json.dumps(MESSAGES[1]) == before


def test_variables_tell_which_switches_a_template_knows() -> None:
    source = (
        "{% if enable_thinking is defined and enable_thinking %}x{% endif %}"
        "{% if budget is not defined %}{% set budget = 1 %}{% endif %}"
        "{% set ns = namespace() %}{% for m in messages %}{{ m.role }}{{ preserve_thinking }}{% endfor %}"
        "{{ raise_exception('') if tools }}{{ strftime_now('%d') }}{% macro f(a) %}{{ a }}{% endmacro %}"
    )
    assert JinjaTemplate(source).variables == {"enable_thinking", "budget", "messages", "preserve_thinking", "tools"}
    assert "enable_thinking" not in JinjaTemplate("{# enable_thinking #}{{ 'enable_thinking' }}").variables


def test_a_refusal_carries_the_templates_own_words() -> None:
    with pytest.raises(RequestError, match="the chat template refuses these messages") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert str(caught.value.value) == "roles must alternate"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("a\n{% if %}", 2),
        ("a\nb\n{{ x | pprint }}", 3),
        ("{% for x in y %}\n\n{% endif %}", 3),
        ("\n{{ 'open", 2),
        ("{% generation %}\nx", 2),
    ],
)
def test_a_syntax_error_names_the_template_and_its_line(source: str, line: int) -> None:
    with pytest.raises(CheckpointError, match=rf"^mine, line {line}: no valid template"):
        JinjaTemplate(source, name="mine")


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
        "{% if x %}" * 3000,
        "{{ " + "9" * 5000 + " }}",
        "{{ x" + " + x" * 5000 + " }}",
    ],
    ids=["parentheses", "blocks", "digits", "sum"],
)
def test_what_python_cannot_compile_is_refused(source: str) -> None:
    with pytest.raises(CheckpointError, match="chat_template"):
        JinjaTemplate(source)


def test_a_template_has_at_most_one_mib() -> None:
    assert render("x" * template_jinja.MAX_SOURCE) == "x" * template_jinja.MAX_SOURCE
    with pytest.raises(CheckpointError, match="too large"):
        JinjaTemplate("é" * (template_jinja.MAX_SOURCE // 2 + 1))


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("\n{{ messages[0].nothing.more }}", "UndefinedError"),
        ("\n{{ 1 + 'a' }}", "TypeError"),
        ("\n{{ 1 / 0 }}", "ZeroDivisionError"),
        ("\n{{ range(10 ** 9) }}", "OverflowError"),
        ("\n{% macro m() %}{{ m() }}{% endmacro %}\n{{ m() }}", "RecursionError"),
        ("\n{% include 'x' %}", "TypeError"),
        ("\n{{ missing | tojson }}", "TypeError"),
        ("\n{{ messages[0].content.index('z') }}", "ValueError"),
    ],
)
def test_a_failure_names_its_line_and_kind(source: str, word: str) -> None:
    with pytest.raises(RequestError, match=r"^chat_template, line 2: the chat template cannot handle") as caught:
        render(source)
    assert str(caught.value.value).startswith(word)


def test_a_long_conversation_renders_in_time() -> None:
    messages = [{"role": role, "content": "word " * 200} for role in ("user", "assistant")] * 1000
    before = time.thread_time()
    assert len(render(TURNS, messages)) > 1_900_000
    assert time.thread_time() - before < 3


def test_one_template_serves_several_threads() -> None:
    template = JinjaTemplate(TURNS)

    def work(number: int) -> str:
        messages = [{"role": "user", "content": f"{number}"}] * 20
        return template.render(messages, tools=None, add_generation_prompt=False, variables={})

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(40))) == [work(number) for number in range(40)]


def config(value: Any) -> bytes:
    return json.dumps({"bos_token": "<bos>", "chat_template": value}).encode()


NAMED = [
    {"name": "tool_use", "template": "\n T \n"},
    {"name": "default", "template": "\n D \n"},
    {"name": "rag", "template": "R"},
]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"chat_template.jinja": "é\n".encode()}, "é\n"),
        ({"chat_template.jinja": b"first", "tokenizer_config.json": config("second")}, "first"),
        ({"tokenizer_config.json": config("second"), "chat_template.json": config("third")}, "second"),
        ({"tokenizer_config.json": b"{}", "chat_template.json": config("third")}, "third"),
        ({"tokenizer_config.json": config(None)}, None),
        ({"tokenizer_config.json": config([{"name": "default", "template": "D"}])}, "D"),
    ],
)
def test_the_source_is_found_in_a_folder(files: dict[str, bytes], expected: str | None, tmp_path: Path) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    assert read_own_template(tmp_path, None) == expected


@pytest.mark.parametrize("place", ["config", "files", "gguf"])
def test_a_template_for_tools_is_used_when_tools_are_given(place: str, tmp_path: Path) -> None:
    metadata = None
    if place == "config":
        (tmp_path / "tokenizer_config.json").write_bytes(config(NAMED))
    elif place == "files":
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text(NAMED[0]["template"])
        (tmp_path / "chat_template.jinja").write_text(NAMED[1]["template"])
    else:
        key = "tokenizer.chat_template"
        metadata = {key: NAMED[1]["template"], f"{key}.tool_use": NAMED[0]["template"].encode()}
    source = read_own_template(tmp_path, metadata)
    assert source is not None
    template = JinjaTemplate(source)
    for tools, named in ((TOOLS, NAMED[0]), (None, NAMED[1])):
        ours = template.render(MESSAGES[0], tools=tools, add_generation_prompt=False, variables={})
        assert ours == oracle(named["template"], MESSAGES[0], tools=tools)


def test_a_gguf_speaks_for_itself(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("of another model")
    assert read_own_template(tmp_path, {}) is None
    assert read_own_template(tmp_path, {"tokenizer.chat_template": "text"}) == "text"
    assert read_own_template(tmp_path, {"tokenizer.chat_template": "é".encode()}) == "é"
    for damaged in (b"\xff", 7, "x" * (template_jinja.MAX_SOURCE + 1)):
        with pytest.raises(CheckpointError, match=r"tokenizer\.chat_template"):
            read_own_template(tmp_path, {"tokenizer.chat_template": damaged})


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("chat_template.jinja", b"\xff"),
        ("chat_template.jinja", b"x" * (template_jinja.MAX_SOURCE + 1)),
        ("tokenizer_config.json", b'{"chat_template": '),
        ("tokenizer_config.json", b'["chat_template"]'),
        ("tokenizer_config.json", config(7)),
        ("tokenizer_config.json", config([{"name": "default"}])),
        ("tokenizer_config.json", config([{"name": "rag", "template": "R"}])),
        ("tokenizer_config.json", config([{"name": ["x"], "template": "R"}])),
        ("chat_template.json", b"[" * 100_000 + b'"chat_template"'),
        ("chat_template.json", config({"default": 1})),
    ],
)
def test_a_damaged_file_is_named(name: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=name):
        read_own_template(tmp_path, None)


def test_a_link_to_nothing_is_damage(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").symlink_to(tmp_path / "gone")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_own_template(tmp_path, None)
