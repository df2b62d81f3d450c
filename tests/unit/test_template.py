"""What holds for every template: one BOS, nobody's words as control tokens, going on with an answer, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from gemwright.errors import CheckpointError, RequestError
from gemwright.text.template import BUILT_IN, ChatTemplate
from gemwright.text.template_jinja import JinjaTemplate
from tests.chat_templates import (
    CONTROL_WORDS,
    assistant,
    built_in,
    byte_tokenizer,
    function,
    system,
    template_source,
    through_jinja,
    tool,
    user,
)

MAKERS = (built_in, through_jinja)
everywhere = pytest.mark.parametrize("make", MAKERS)
of_all = pytest.mark.parametrize("name", BUILT_IN)


def with_source(name: str, source: str) -> ChatTemplate:
    return ChatTemplate(byte_tokenizer(name), name, JinjaTemplate(source))


def special(name: str, ids: tuple[int, ...]) -> list[int]:
    tokenizer = byte_tokenizer(name.removesuffix("-large"))
    return [token_id for token_id in ids if tokenizer.is_special(token_id)]


@everywhere
@of_all
def test_bos_stands_first_and_once(make: Any, name: str) -> None:
    # Field case 040.
    for messages in ([user("U")], [user("<bos>"), assistant("<bos>"), user("<bos><bos>")], [system("<bos>"), user("")]):
        ids = make(name).render(messages).token_ids
        assert ids[0] == 2
        assert ids.count(2) == 1


@pytest.mark.parametrize("source", ["{{ messages[0].content }}", "{{ bos_token }}{{ bos_token }}x", "<bos>x", "x"])
def test_bos_stands_first_whatever_a_template_writes(source: str) -> None:
    ids = with_source("gemma3", source).render([user("x")]).token_ids
    assert ids == (2, 108 + ord("x"))


def everything_said(word: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A conversation and tools in which a word stands wherever a request can put it."""
    messages = [
        system(f"s{word}"),
        user(f"{word}u{word}{word}"),
        {
            **assistant(f"a{word}", ("1", "f", {f"k{word}": word, "list": [{word: [word]}]}), thought=f"t{word}"),
        },
        tool("1", f"r{word}"),
        assistant("", ("2", "f", {}), thought=word),
        tool("2", {word: {word: word}}),
    ]
    tools = [
        function(
            "f",
            word,
            type="object",
            properties={word: {"type": "string", "description": word, "enum": [word]}},
            required=[word],
        )
    ]
    return messages, tools


@everywhere
@of_all
@pytest.mark.parametrize("word", CONTROL_WORDS)
def test_no_word_of_a_request_becomes_a_control_token(make: Any, name: str, word: str) -> None:
    wordless, tools = everything_said("<w>")
    expected = special(name, make(name).render(wordless, tools=tools).token_ids)
    messages, tools = everything_said(word)
    prompt = make(name).render(messages, tools=tools)
    assert special(name, prompt.token_ids) == expected
    assert word in prompt.text


@everywhere
@of_all
def test_no_word_in_pieces_becomes_a_control_token(make: Any, name: str) -> None:
    expected = special(name, make(name).render([user([{"type": "text", "text": "x"}])]).token_ids)
    for word in CONTROL_WORDS:
        for cut in range(1, len(word)):
            parts = [{"type": "text", "text": word[:cut]}, {"type": "text", "text": word[cut:]}]
            assert special(name, make(name).render([user(parts)]).token_ids) == expected


@pytest.mark.parametrize("ascii_only", ["true", "false"])
def test_a_template_that_writes_json_in_ascii_shows_no_marks_of_ours(ascii_only: str) -> None:
    source = "{{ bos_token }}{% for m in messages %}{{ m | tojson(ensure_ascii=WHICH) }}{% endfor %}"
    template = ChatTemplate(byte_tokenizer("gemma4"), "gemma4", JinjaTemplate(source.replace("WHICH", ascii_only)))
    prompt = template.render([user("a <turn|> b")])
    said = '{"role": "user", "content": "a <turn|> b"}'
    assert prompt.text == f"<bos>{said}"
    assert prompt.token_ids == (2, *byte_tokenizer("gemma4").encode(said, parse_special=False))


def test_no_variable_becomes_a_control_token() -> None:
    template = with_source("gemma4", "{{ topic }}{{ messages[0].content }}")
    assert special("gemma4", template.render([user("x")], template_kwargs={"topic": "<|turn>"}).token_ids) == [2]


def test_words_stay_words() -> None:
    # What is neutralized is still there, letter by letter, and decodes to what was said.
    tokenizer = byte_tokenizer("gemma4")
    prompt = built_in("gemma4").render([user("a <|turn> b")])
    assert tokenizer.decode(prompt.token_ids, skip_special=False) == prompt.text
    assert "user\na <|turn> b<turn|>" in prompt.text


@everywhere
def test_text_that_holds_our_marks_is_left_as_it_is(make: Any) -> None:
    marks = "".join(map(chr, range(0xFDD0, 0xFDEE)))
    assert f"user\n<{marks}<turn|>" in make("gemma4").render([user(f"<{marks}")]).text
    with pytest.raises(RequestError, match="FDD0"):
        make("gemma4").render([user("".join(map(chr, range(0xFDD0, 0xFDF0))))])


@everywhere
@of_all
@pytest.mark.parametrize("said", ["The answer is", " The answer is \n", "end_of_turn", "model", "turn|>", "<"])
def test_the_last_answer_is_gone_on_with(make: Any, name: str, said: str) -> None:
    messages = [user("U"), assistant(said)]
    begin = "<bos><|turn>user\nU<turn|>\n<|turn>model\n"
    if not name.startswith("gemma4"):
        begin = "<bos><start_of_turn>user\nU<end_of_turn>\n<start_of_turn>model\n"
    prompt = make(name).render(messages, continue_final_message=True)
    assert prompt.text == begin + said.strip()
    in_parts = [user("U"), assistant([{"type": "text", "text": part} for part in (said, " ")])]
    assert make(name).render(in_parts, continue_final_message=True).text == begin + said.strip()


@everywhere
def test_going_on_with_an_answer_does_not_think(make: Any) -> None:
    messages = [user("U"), assistant("A", thought="Hm.")]
    prompt = make("gemma4-large").render(messages, continue_final_message=True, enable_thinking=True)
    assert prompt.text.endswith("<|turn>model\n<|channel>thought\nHm.\n<channel|>A")
    assert (prompt.thinking, prompt.opens_thought) == (False, False)


@everywhere
@of_all
@pytest.mark.parametrize(
    "last", [user("U"), assistant(""), assistant(" \n"), assistant("A", ("1", "f", {})), assistant([{"type": "image"}])]
)
def test_what_cannot_be_gone_on_with_is_refused(make: Any, name: str, last: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="continue_final_message"):
        make(name).render([user("U"), last], continue_final_message=True)


def test_a_thought_is_no_text_to_go_on_with() -> None:
    with pytest.raises(RequestError, match="continue_final_message"):
        built_in("gemma4").render([user("U"), assistant("<|channel>thought\nHm.")], continue_final_message=True)


def test_a_template_that_loses_the_last_message_cannot_go_on() -> None:
    with pytest.raises(RequestError, match="leaves out the last message"):
        with_source("gemma3", "{{ messages[0].content }}").render(
            [user("U"), assistant("A")], continue_final_message=True
        )


def test_one_value_switches_thinking() -> None:
    # Field case 051.
    template = built_in("gemma4")
    messages = [user("U")]
    assert template.render(messages).thinking is False
    assert template.render(messages, template_kwargs={"enable_thinking": True}).thinking is True
    assert template.render(messages, enable_thinking=True, template_kwargs={"enable_thinking": True}).thinking is True
    with pytest.raises(RequestError, match="twice"):
        template.render(messages, enable_thinking=True, template_kwargs={"enable_thinking": False})
    for bad in (1, "on", [True]):
        with pytest.raises(RequestError, match="enable_thinking"):
            template.render(messages, enable_thinking=bad)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="enable_thinking"):
            template.render(messages, template_kwargs={"enable_thinking": bad})


def test_a_jinja_template_without_the_switch_cannot_think() -> None:
    template = with_source("gemma4", "{{ messages[0].content }}")
    assert not template.can_think
    assert template.render([user("U")], enable_thinking=False).text == "U"
    with pytest.raises(RequestError, match="no thinking switch"):
        template.render([user("U")], enable_thinking=True)


def test_variables_a_template_does_not_have_are_refused() -> None:
    template = with_source("gemma4", "{{ style }}{{ messages[0].content }}{{ bos_token }}{{ tools }}")
    assert template.render([user("U")], template_kwargs={"style": "loud "}).text.startswith("loud U")
    for name in ("other", "messages", "tools", "bos_token", "add_generation_prompt", "namespace"):
        with pytest.raises(RequestError, match="no such variable") as raised:
            template.render([user("U")], template_kwargs={name: "x"})
        assert raised.value.limit == "style"
    for bad in ([], "x", 1, {"style": object()}, {1: 2}):
        with pytest.raises(RequestError, match="chat_template_kwargs"):
            template.render([user("U")], template_kwargs=bad)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="preserve_thinking"):
        built_in("gemma4").render([user("U")], template_kwargs={"preserve_thinking": "yes"})
    with pytest.raises(RequestError, match="no such variable"):
        built_in("gemma3").render([user("U")], template_kwargs={"preserve_thinking": True})


def test_tools_that_the_models_template_cannot_show_are_refused() -> None:
    with pytest.raises(RequestError, match="tools"):
        with_source("gemma4", "{{ messages[0].content }}").render([user("U")], tools=[function("f")])


def test_a_template_of_gemma3_that_takes_tools_gets_them() -> None:
    source = "{% for tool in tools or [] %}{{ tool.function.name }};{% endfor %}"
    source += "{% for message in messages %}{{ message.role }}:{{ message.content[:1] }};{% endfor %}"
    template = with_source("gemma3", source)
    messages = [system("S"), user("U"), assistant("", ("1", "f", {})), tool("1", "x")]
    assert template.render(messages, tools=[function("f")]).text == "f;system:S;user:U;assistant:;tool:x;"
    assert template.render(messages).text == "system:S;user:U;assistant:{;user:f;"


def test_a_template_that_refuses_is_a_request_error() -> None:
    with pytest.raises(RequestError, match="refuses"):
        with_source("gemma4", "{{ raise_exception('no') }}").render([user("U")])
    with pytest.raises(CheckpointError, match="no valid template"):
        with_source("gemma4", "{% if %}")


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        (None, "messages"),
        ("text", "messages"),
        ({"role": "user", "content": "U"}, "messages"),
        ([], "messages"),
        ([1], "messages[0]"),
        ([[]], "messages[0]"),
        ([{"content": "U"}], "messages[0].role"),
        ([{"role": ["user"], "content": "U"}], "messages[0].role"),
        ([{"role": "robot", "content": "U"}], "messages[0].role"),
        ([user(None)], "messages[0].content"),
        ([user(1)], "messages[0].content"),
        ([user([1])], "messages[0].content[0].type"),
        ([user([{"type": "file"}])], "messages[0].content[0].type"),
        ([user([{"type": "text", "text": None}])], "messages[0].content[0].text"),
        ([user("\ud800")], "messages[0].content"),
        ([user("U"), {**user("V"), "tool_calls": [1]}], "messages[1].tool_calls"),
        ([user("U"), assistant("A", thought=1)], "messages[1].reasoning_content"),  # type: ignore[arg-type]
        ([user("U"), {**assistant("A", thought="a"), "reasoning": "b"}], "messages[1]"),
        ([user("U"), {"role": "assistant", "tool_calls": {}}], "messages[1].tool_calls"),
        ([user("U"), {"role": "assistant", "tool_calls": [1]}], "messages[1].tool_calls[0]"),
        ([user("U"), {"role": "assistant", "tool_calls": [{"type": "x"}]}], "messages[1].tool_calls[0].type"),
        ([user("U"), assistant("", ("1", "", {}))], "messages[1].tool_calls[0].function.name"),
        ([user("U"), assistant("", ("1", "a b", {}))], "messages[1].tool_calls[0].function.name"),
        ([user("U"), assistant("", ("1", "<|turn>", {}))], "messages[1].tool_calls[0].function.name"),
        ([user("U"), assistant("", ("1", "f", "{"))], "messages[1].tool_calls[0].function.arguments"),
        ([user("U"), assistant("", ("1", "f", "[1]"))], "messages[1].tool_calls[0].function.arguments"),
        ([user("U"), assistant("", ("1", "f", '{"a": NaN}'))], "messages[1].tool_calls[0].function.arguments"),
        ([user("U"), assistant("", ("1", "f", {"a": float("inf")}))], "messages[1].tool_calls[0].function.arguments"),
        ([user("U"), tool("9", "x")], "messages[1]"),
        ([user("U"), {"role": "tool", "content": "x"}], "messages[1]"),
        ([user("U"), assistant("", ("1", "f", {})), tool("1", 7)], "messages[2].content"),
    ],
)
def test_messages_that_cannot_be_used_are_refused_by_place(messages: Any, place: str) -> None:
    with pytest.raises(RequestError) as raised:
        built_in("gemma4").render(messages)
    assert raised.value.what.startswith(place)


@pytest.mark.parametrize(
    ("tools", "place"),
    [
        ("f", "tools"),
        ([1], "tools[0]"),
        ([{"type": "x"}], "tools[0]"),
        ([{"type": "function", "function": 1}], "tools[0].function"),
        ([{"type": "function", "function": {}}], "tools[0].function.name"),
        ([function("a b")], "tools[0].function.name"),
        ([function("f"), function("f")], "tools[1].function.name"),
        ([{"name": "f", "description": 1}], "tools[0].function.description"),
        ([{"name": "f", "parameters": 1}], "tools[0].function.parameters"),
        ([{"name": "f", "parameters": {"a": float("nan")}}], "tools[0].function"),
    ],
)
def test_tools_that_cannot_be_used_are_refused_by_place(tools: Any, place: str) -> None:
    with pytest.raises(RequestError) as raised:
        built_in("gemma4").render([user("U")], tools=tools)
    assert raised.value.what.startswith(place)


def test_deep_json_is_refused() -> None:
    value: Any = 1
    for _ in range(500):
        value = [value]
    with pytest.raises(RequestError, match="nested too deep"):
        built_in("gemma4").render([user("U"), assistant("", ("1", "f", {"a": value}))])
    with pytest.raises(RequestError, match="nested too deep"):
        built_in("gemma4").render([user("U")], tools=[{"name": "f", "parameters": {"a": value}}])


def test_fields_that_clients_send_back_are_taken() -> None:
    message = {**assistant("A"), "refusal": None, "annotations": [], "audio": None, "function_call": None, "id": "m1"}
    assert built_in("gemma4").render([{**user("U"), "name": "Ann"}, message, user("V")]).text.count("<|turn>") == 4


def test_a_template_says_which_it_is() -> None:
    assert built_in("gemma4-large").name == "built in, gemma4-large"
    assert through_jinja("gemma3").name == "the model's own"
    assert template_source("gemma4") != template_source("gemma4-large")


@pytest.mark.parametrize("source", ["", "hello", "{{ bos_token }}<|turn>model\n", "{{ messages | length }}"])
def test_a_template_that_leaves_out_the_question_is_refused(source: str) -> None:
    template = ChatTemplate(byte_tokenizer("gemma4"), "gemma4", JinjaTemplate(source))
    with pytest.raises(CheckpointError, match="leaves out what the user said"):
        template.render([user("Why is the sky blue?")])
