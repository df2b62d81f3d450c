"""Turns of Gemma 2 and 3 (facts c.1): texts and ids, Gemma 3's with the real vocabulary."""

from __future__ import annotations

from typing import Any

import pytest

from gemwright.errors import RequestError
from gemwright.text.parser import OutputParser
from gemwright.text.template import ChatTemplate
from gemwright.text.tokenizer import Tokenizer, from_gguf_metadata
from tests.chat_templates import assistant, built_in, function, system, through_jinja, tool, user
from tests.tokenizer_cases import real_metadata

PAIR = (built_in, through_jinja)
FAMILIES = ("gemma2", "gemma3")


@pytest.fixture(scope="module")
def gemma3() -> Tokenizer:
    return from_gguf_metadata(real_metadata(), cache_dir=None)


def test_a_turn_of_gemma3_has_the_published_ids(gemma3: Tokenizer) -> None:
    prompt = ChatTemplate(gemma3, "gemma3").render([user("hello")])
    assert prompt.token_ids == (2, 105, 2364, 107, 23391, 106, 107, 105, 4368, 107)
    assert prompt.text == "<bos><start_of_turn>user\nhello<end_of_turn>\n<start_of_turn>model\n"
    assert (prompt.dialect, prompt.thinking, prompt.opens_thought) == ("gemma3", False, False)


def test_turns_are_control_ids_and_not_spelled_out(gemma3: Tokenizer) -> None:
    # Field case 096: a tag that goes in as text comes back as text.
    prompt = ChatTemplate(gemma3, "gemma3").render([user("a"), assistant("b"), user("c")])
    assert [prompt.token_ids.count(token_id) for token_id in (105, 106, 2)] == [4, 3, 1]
    assert gemma3.decode(prompt.token_ids, skip_special=False) == prompt.text


def test_a_system_message_of_gemma3_stands_before_the_first_user_text(gemma3: Tokenizer) -> None:
    prompt = ChatTemplate(gemma3, "gemma3").render([system("Be brief."), user(" hello \n")])
    text = "<bos><start_of_turn>user\nBe brief.\n\nhello<end_of_turn>\n<start_of_turn>model\n"
    assert prompt.text == text
    assert list(prompt.token_ids) == gemma3.encode(text)
    assert gemma3.token_to_id("\n\n") == 108
    assert 108 in prompt.token_ids


def test_turns_of_gemma2_have_the_published_ids() -> None:
    prompt = built_in("gemma2").render([user("h"), assistant("i"), user("j")])
    ids = [token_id if token_id < 110 else "byte" for token_id in prompt.token_ids]
    text = ["byte"]
    # 2 bos, 106 start_of_turn, 107 end_of_turn, and in this vocabulary 108 the newline.
    turn = [106, *text * 4, 108, *text, 107, 108]
    assert ids == [2, *turn, 106, *text * 5, 108, *text, 107, 108, *turn, 106, *text * 5, 108]


@pytest.mark.parametrize("make", PAIR)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_system_message_is_folded_even_where_the_models_template_refuses_one(
    make: Any, family: str, role: str
) -> None:
    prompt = make(family).render([{"role": role, "content": "S"}, user("U")])
    assert prompt.text == "<bos><start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\n"


@pytest.mark.parametrize("make", PAIR)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("messages", "turns"),
    [
        ([system("A"), system("B"), user("U")], ["user\nA\n\nB\n\nU"]),
        ([system("A"), {"role": "developer", "content": "B"}, user("U")], ["user\nA\n\nB\n\nU"]),
        ([user("U"), user("V")], ["user\nU\n\nV"]),
        ([user(["U", "V"])], ["user\nUV"]),
        ([user("U"), assistant("M"), assistant("N"), user("V")], ["user\nU", "model\nM\n\nN", "user\nV"]),
        ([user("U"), system("late"), user("V")], ["user\nU\n\nlate\n\nV"]),
        ([user("U"), assistant("M"), system("late")], ["user\nU", "model\nM", "user\nlate"]),
        ([system("alone")], ["user\nalone"]),
        ([user("U"), assistant("M", thought="hm"), user("V")], ["user\nU", "model\nM", "user\nV"]),
        ([user("")], ["user\n"]),
    ],
)
def test_what_comes_out_of_turn_is_put_in_turns(
    make: Any, family: str, messages: list[dict[str, Any]], turns: list[str]
) -> None:
    # Field case 041.
    text = "".join(f"<start_of_turn>{turn}<end_of_turn>\n" for turn in turns)
    assert make(family).render(messages, add_generation_prompt=False).text == f"<bos>{text}"
    assert make(family).render(messages).text == f"<bos>{text}<start_of_turn>model\n"


@pytest.mark.parametrize("make", PAIR)
@pytest.mark.parametrize("family", FAMILIES)
def test_calls_and_results_are_said_in_turns(make: Any, family: str) -> None:
    messages = [
        user("U"),
        assistant("", ("1", "f", '{"b": 1, "a": null}')),
        tool("1", "42"),
        assistant("Both:", ("2", "f", {}), ("3", "g", {"x": "é"})),
        tool("2", {"ok": True}),
        tool("3", ""),
        user("V"),
    ]
    found = make(family).render(messages, add_generation_prompt=False).text
    turns = [
        "user\nU",
        'model\n{"name": "f", "parameters": {"b": 1, "a": null}}',
        "user\nf gave:\n42",
        'model\nBoth:\n\n[{"name": "f", "parameters": {}}, {"name": "g", "parameters": {"x": "é"}}]',
        'user\nf gave:\n{"ok": true}\n\ng gave:\n\nV',
    ]
    assert found == "<bos>" + "".join(f"<start_of_turn>{turn}<end_of_turn>\n" for turn in turns)


@pytest.mark.parametrize("make", PAIR)
@pytest.mark.parametrize("family", FAMILIES)
def test_tools_are_declared_in_words_and_their_calls_are_read_back(make: Any, family: str) -> None:
    # Field case 039: Gemma 2 and 3 know no syntax for tools.
    tools = [function("f", "Looks up.", type="object", properties={"a": {"type": "string"}}), function("g")]
    prompt = make(family).render([system("S"), user("U")], tools=tools)
    head, _, rest = prompt.text.partition("\n\nS\n\nU<end_of_turn>\n")
    assert head.startswith("<bos><start_of_turn>user\nYou can call tools.")
    assert head.endswith(
        '\n{"name": "f", "description": "Looks up.", "parameters": {"type": "object", "properties": {"a": '
        '{"type": "string"}}}}\n{"name": "g"}'
    )
    assert rest == "<start_of_turn>model\n"
    assert [tool["function"]["name"] for tool in prompt.tools] == ["f", "g"]
    # What the history shows as a call is what the output machine reads as one.
    said = make(family).render([user("U"), assistant("", ("1", "f", {"a": "x"}))], add_generation_prompt=False).text
    parser = OutputParser(prompt.dialect, tools=prompt.tools)
    parser.push_text(said.partition("<start_of_turn>model\n")[2])
    parser.finish("stop")
    (call,) = parser.output.tool_calls
    assert (call.name, call.arguments) == ("f", {"a": "x"})


def test_images_stand_where_they_are_said() -> None:
    content = [{"type": "text", "text": " A "}, {"type": "image_url", "image_url": {"url": "x"}}, {"type": "image"}]
    for make in PAIR:
        prompt = make("gemma3").render([user(content)], add_generation_prompt=False)
        assert prompt.text == "<bos><start_of_turn>user\nA<start_of_image><start_of_image><end_of_turn>\n"
        assert prompt.media == ("image", "image")
        assert sum(prompt.token_ids.count(i) for i in (365,)) == 2


def test_what_gemma3_cannot_hear_is_refused() -> None:
    with pytest.raises(RequestError, match="audio"):
        built_in("gemma3").render([user([{"type": "input_audio"}])])


@pytest.mark.parametrize("make", PAIR)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_turn_is_not_the_assistants(make: Any, family: str) -> None:
    with pytest.raises(RequestError, match="first turn"):
        make(family).render([assistant("M"), user("U")])


@pytest.mark.parametrize("make", PAIR)
def test_a_system_message_holds_text(make: Any) -> None:
    with pytest.raises(RequestError, match="system"):
        make("gemma3").render([system([{"type": "image"}]), user("U")])


@pytest.mark.parametrize("family", FAMILIES)
def test_there_is_no_thinking_switch(family: str) -> None:
    assert not built_in(family).can_think
    assert not built_in(family).render([user("U")], enable_thinking=False).thinking
    with pytest.raises(RequestError, match="no thinking switch"):
        built_in(family).render([user("U")], enable_thinking=True)
