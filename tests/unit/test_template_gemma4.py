"""Turns of Gemma 4 (facts c.2 to c.4): texts and ids of both published variants, ours and through Jinja."""

from __future__ import annotations

from typing import Any

import pytest

from gemwright.errors import RequestError
from tests.chat_templates import assistant, built_in, byte_tokenizer, function, system, through_jinja, tool, user

MAKERS = (built_in, through_jinja)
VARIANTS = ("gemma4", "gemma4-large")
NO_THOUGHT = "<|channel>thought\n<channel|>"
PLACE = ("c1", "look_up", {"place": "12 Quay St, Dock B", "limit": 1, "note": None, "exact": True})
CALL = '<|tool_call>call:look_up{exact:true,limit:1,note:null,place:<|"|>12 Quay St, Dock B<|"|>}<tool_call|>'


def render(name: str, messages: list[dict[str, Any]], **choices: Any) -> str:
    """Return the text that ours and a Jinja template give alike."""
    texts = {make(name).render(messages, **choices).text for make in MAKERS}
    assert len(texts) == 1, texts
    return texts.pop()


def byte_ids(text: str) -> list[int]:
    return [107 if letter == "\n" else 108 + ord(letter) for letter in text]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("thinking", [None, False, True])
def test_a_turn_has_the_published_ids(make: Any, name: str, thinking: bool | None) -> None:
    prompt = make(name).render([user("hi")], enable_thinking=thinking)
    system_turn = [105, *byte_ids("system\n"), 98, 107, 106, 107] if thinking else []
    closed = [100, *byte_ids("thought\n"), 101] if name == "gemma4-large" and not thinking else []
    assert list(prompt.token_ids) == [
        *(2, *system_turn, 105, *byte_ids("user\nhi"), 106, 107, 105, *byte_ids("model\n"), *closed)
    ]
    assert (prompt.dialect, prompt.thinking, prompt.opens_thought) == ("gemma4", bool(thinking), False)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_system_turn(name: str) -> None:
    tail = "<|turn>user\nU<turn|>\n<|turn>model\n"
    closed = NO_THOUGHT if name == "gemma4-large" else ""
    for role in ("system", "developer"):
        said = {"role": role, "content": " S \n"}
        assert render(name, [said, user("U")]) == f"<bos><|turn>system\nS<turn|>\n{tail}{closed}"
        found = render(name, [said, user("U")], enable_thinking=True)
        assert found == f"<bos><|turn>system\n<|think|>\nS<turn|>\n{tail}"
    tools = [function("f", "D", type="object", properties={"a": {"type": "string"}}), function("g")]
    declared = (
        '<|tool>declaration:f{description:<|"|>D<|"|>,parameters:{properties:{a:{type:<|"|>STRING<|"|>}},'
        'type:<|"|>OBJECT<|"|>}}<tool|><|tool>declaration:g{description:<|"|><|"|>}<tool|>'
    )
    assert render(name, [user("U")], tools=tools) == f"<bos><|turn>system\n{declared}<turn|>\n{tail}{closed}"
    found = render(name, [system("S"), user("U")], tools=tools, enable_thinking=True)
    assert found == f"<bos><|turn>system\n<|think|>\nS{declared}<turn|>\n{tail}"


def test_the_first_system_message_is_the_systems_and_others_have_turns_of_their_own() -> None:
    developer = {"role": "developer", "content": "B"}
    found = render("gemma4", [system("A "), developer, user("U"), system("L"), user("V")])
    assert found == (
        "<bos><|turn>system\nA<turn|>\n<|turn>developer\nB<turn|>\n<|turn>user\nU<turn|>\n"
        "<|turn>system\nL<turn|>\n<|turn>user\nV<turn|>\n<|turn>model\n"
    )
    assert render("gemma4", [developer, user("U")]).startswith("<bos><|turn>system\nB<turn|>\n<|turn>user\n")


def test_parts_of_a_first_system_message_are_told_apart_by_spaces() -> None:
    parts = [{"type": "text", "text": " A."}, {"type": "text", "text": "B. "}]
    assert render("gemma4", [system(parts), user("U")]).startswith("<bos><|turn>system\nA. B. <turn|>\n")
    assert render("gemma4", [user(parts)]).startswith("<bos><|turn>user\nA.B.<turn|>\n")


def test_history_without_calls_keeps_answers_and_no_thoughts() -> None:
    said = "<|channel>thought\nold<channel|> An answer.<|channel>more"
    messages = [user("U"), assistant(said, thought="older"), user("V")]
    for name in VARIANTS:
        found = render(name, messages, add_generation_prompt=False)
        assert found == ("<bos><|turn>user\nU<turn|>\n<|turn>model\nAn answer.<turn|>\n<|turn>user\nV<turn|>\n")


def test_thoughts_stay_where_they_belong_to_the_last_question() -> None:
    # Field case 052.
    loop = [user("U"), assistant(None, PLACE, thought="Hm.")]
    thought = "<|channel>thought\nHm.\n<channel|>"
    begin = f"<bos><|turn>user\nU<turn|>\n<|turn>model\n{thought}{CALL}"
    response = '<|tool_response>response:look_up{value:<|"|>42<|"|>}<tool_response|>'
    assert render("gemma4", [*loop, tool("c1", "42")]) == f"{begin}{response}"
    later = [*loop, tool("c1", "42"), assistant("Done."), user("V")]
    end = f"{CALL}{response}Done.<turn|>\n<|turn>user\nV<turn|>\n<|turn>model\n"
    assert render("gemma4", later) == f"<bos><|turn>user\nU<turn|>\n<|turn>model\n{end}"
    kept = render("gemma4", later, template_kwargs={"preserve_thinking": True})
    assert kept == f"<bos><|turn>user\nU<turn|>\n<|turn>model\n{thought}{end}"
    # Thoughts that led to no call are not preserved.
    plain = [user("U"), assistant("A", thought="Hm."), user("V")]
    assert render("gemma4", plain, template_kwargs={"preserve_thinking": True}) == render("gemma4", plain)
    for field in ("reasoning", "reasoning_content"):
        last = [user("U"), {"role": "assistant", "content": "A", field: "Hm."}]
        assert render("gemma4", last, add_generation_prompt=False).endswith(f"model\n{thought}A<turn|>\n")


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("thinking", [False, True])
def test_the_generation_prompt_after_calls_and_responses(name: str, thinking: bool) -> None:
    asked = [user("U"), assistant("", PLACE)]
    called = render(name, asked, enable_thinking=thinking)
    assert called.endswith(f"<|turn>model\n{CALL}<|tool_response>")
    prompt = built_in(name).render([*asked, tool("c1", "r")], enable_thinking=thinking)
    assert prompt.text.endswith("<tool_response|>" + ("<|channel>thought\n" if thinking else ""))
    assert prompt.opens_thought is thinking
    answered = render(name, [*asked, tool("c1", "r"), assistant("A")], enable_thinking=thinking)
    closed = NO_THOUGHT if name == "gemma4-large" and not thinking else ""
    assert answered.endswith(f"<tool_response|>A<turn|>\n<|turn>model\n{closed}")


def test_a_tool_loop_is_one_turn() -> None:
    # Field case 043.
    messages = [user("U")]
    for number in (1, 2):
        messages += [assistant("", (f"c{number}", "f", {})), tool(f"c{number}", "")]
    step = '<|tool_call>call:f{}<tool_call|><|tool_response>response:f{value:<|"|><|"|>}<tool_response|>'
    assert render("gemma4-large", messages) == f"<bos><|turn>user\nU<turn|>\n<|turn>model\n{step}{step}"


def test_consecutive_answers_stay_in_one_turn() -> None:
    found = render("gemma4", [user("U"), assistant("A"), assistant("B"), user("V")], add_generation_prompt=False)
    assert found == "<bos><|turn>user\nU<turn|>\n<|turn>model\nAB<turn|>\n<|turn>user\nV<turn|>\n"
    unanswered = render("gemma4", [user("U"), assistant("", ("1", "f", {})), assistant("B")])
    call = "<|tool_call>call:f{}<tool_call|><|tool_response>"
    assert unanswered == f"<bos><|turn>user\nU<turn|>\n<|turn>model\n{call}B<turn|>\n<|turn>model\n"


def test_calls_of_one_message_come_together_and_find_their_names() -> None:
    calls = (("1", "f", {"b": [1, {"z": 1.5, "Y": "x"}], "A": False}), ("2", "g.h-i", '{"n": -3}'), ("3", "f", {}))
    messages = [
        user("U"),
        assistant("Text.", *calls),
        tool("2", {"b": None, "a": [True]}),
        tool("1", "x"),
        tool("3", None),
    ]
    assert render("gemma4", messages) == (
        "<bos><|turn>user\nU<turn|>\n<|turn>model\nText."
        '<|tool_call>call:f{A:false,b:[1,{Y:<|"|>x<|"|>,z:1.5}]}<tool_call|>'
        "<|tool_call>call:g.h-i{n:-3}<tool_call|><|tool_call>call:f{}<tool_call|>"
        "<|tool_response>response:g.h-i{a:[true],b:null}<tool_response|>"
        '<|tool_response>response:f{value:<|"|>x<|"|>}<tool_response|>'
        "<|tool_response>response:f{value:null}<tool_response|>"
    )


def test_text_beside_calls_stands_before_them_as_the_model_wrote_it() -> None:
    """The published template puts it behind the results and ends the turn, with none for the model to go on in."""
    call = assistant("I look.", ("1", "f", {}), thought="Hm.")
    begin = (
        "<|turn>user\nU<turn|>\n<|turn>model\n<|channel>thought\nHm.\n<channel|>I look.<|tool_call>call:f{}<tool_call|>"
    )
    response = '<|tool_response>response:f{value:<|"|>x<|"|>}<tool_response|>'
    assert render("gemma4", [user("U"), call, tool("1", "x")]) == f"<bos>{begin}{response}"
    thinking = render("gemma4", [user("U"), call, tool("1", "x")], enable_thinking=True)
    assert thinking == f"<bos><|turn>system\n<|think|>\n<turn|>\n{begin}{response}<|channel>thought\n"
    answered = render(
        "gemma4", [user("U"), call, tool("1", "x"), assistant("So."), user("V")], add_generation_prompt=False
    )
    assert answered == (
        "<bos><|turn>user\nU<turn|>\n<|turn>model\nI look.<|tool_call>call:f{}<tool_call|>"
        f"{response}So.<turn|>\n<|turn>user\nV<turn|>\n"
    )


def test_what_a_tool_gave_without_a_call_before_it_is_never_left_out_silently() -> None:
    messages = [user("U"), {"role": "tool", "name": "f", "content": "x"}]
    assert "response:f{" in built_in("gemma4").render(messages).text
    with pytest.raises(RequestError, match="does not stand behind a call"):
        through_jinja("gemma4").render(messages)


def test_null_is_kept_in_arguments_and_results() -> None:
    # Field case 036.
    prompt = render("gemma4", [user("U"), assistant("", ("1", "f", {"note": None})), tool("1", {"r": None})])
    assert "call:f{note:null}" in prompt
    assert "response:f{r:null}" in prompt


def test_older_names_of_calls_and_results_are_taken() -> None:
    messages = [
        user("U"),
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "x"},
    ]
    assert render("gemma4", messages).endswith(
        '<|tool_call>call:f{}<tool_call|><|tool_response>response:f{value:<|"|>x<|"|>}<tool_response|>'
    )


def test_a_result_that_no_call_asked_for_stands_in_a_closed_turn() -> None:
    messages = [user("U"), {"role": "tool", "name": "f", "content": "x"}, user("V")]
    assert built_in("gemma4").render(messages, add_generation_prompt=False).text == (
        '<bos><|turn>user\nU<turn|>\n<|turn>model\n<|tool_response>response:f{value:<|"|>x<|"|>}<tool_response|><turn|>\n'
        "<|turn>user\nV<turn|>\n"
    )


def test_media_stand_where_they_are_said() -> None:
    content = [
        {"type": "text", "text": " Look: "},
        {"type": "image_url", "image_url": {"url": "x"}},
        {"type": "input_audio", "input_audio": {}},
        {"type": "video"},
        {"type": "text", "text": " well? "},
    ]
    messages = [user(content), assistant("", ("1", "f", {})), tool("1", [{"type": "text", "text": "r"}, content[1]])]
    prompt = built_in("gemma4").render(messages)
    assert (
        prompt.text
        == render("gemma4", messages)
        == (
            "<bos><|turn>user\nLook:<|image|><|audio|><|video|>well?<turn|>\n<|turn>model\n<|tool_call>call:f{}<tool_call|>"
            '<|tool_response>response:f{value:<|"|>r<|"|>}<tool_response|><|image|>'
        )
    )
    assert prompt.media == ("image", "audio", "video", "image")


def test_a_declaration_of_every_kind() -> None:
    inner = {"type": "object", "properties": {"b": {"type": "integer"}, "A": {"type": "string"}}, "required": ["A"]}
    tools = [
        function(
            "all",
            "Does it.",
            type="object",
            properties={
                "text": {"type": "string", "description": "What", "enum": ["x", "y"], "nullable": True},
                "count": {"type": "integer", "enum": [1, 2]},
                "Flag": {"type": "boolean"},
                "names": {"type": "array", "items": {"type": "string", "description": "One", "enum": ["n"]}},
                "rows": {"type": "array", "description": "Rows", "items": {**inner, "title": "T", "x": {"k": [1]}}},
                "grid": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
                "object": {**inner, "description": "Deep"},
                "any_object": {"type": "object"},
            },
            required=["text", "rows"],
        )
    ]
    for make in MAKERS:
        prompt = make("gemma4").render([user("U")], tools=tools)
        head, tail = "<bos><|turn>system\n<|tool>", "<tool|><turn|>\n<|turn>user\nU<turn|>\n<|turn>model\n"
        declared = prompt.text.removeprefix(head).removesuffix(tail)
        assert declared == (
            'declaration:all{description:<|"|>Does it.<|"|>,parameters:{properties:{'
            'any_object:{properties:{},type:<|"|>OBJECT<|"|>},'
            'count:{type:<|"|>INTEGER<|"|>},'
            'Flag:{type:<|"|>BOOLEAN<|"|>},'
            'grid:{items:{items:{<|"|>type<|"|>:<|"|>number<|"|>},type:<|"|>ARRAY<|"|>},type:<|"|>ARRAY<|"|>},'
            'names:{items:{description:<|"|>One<|"|>,enum:[<|"|>n<|"|>],type:<|"|>STRING<|"|>},type:<|"|>ARRAY<|"|>},'
            'object:{description:<|"|>Deep<|"|>,properties:{A:{type:<|"|>STRING<|"|>},b:{type:<|"|>INTEGER<|"|>}},'
            'required:[<|"|>A<|"|>],type:<|"|>OBJECT<|"|>},'
            'rows:{description:<|"|>Rows<|"|>,items:{properties:{A:{type:<|"|>STRING<|"|>},b:{type:<|"|>INTEGER<|"|>}},'
            'required:[<|"|>A<|"|>],title:<|"|>T<|"|>,type:<|"|>OBJECT<|"|>,x:{<|"|>k<|"|>:[1]}},type:<|"|>ARRAY<|"|>},'
            'text:{description:<|"|>What<|"|>,enum:[<|"|>x<|"|>,<|"|>y<|"|>],nullable:true,type:<|"|>STRING<|"|>}},'
            'required:[<|"|>text<|"|>,<|"|>rows<|"|>],type:<|"|>OBJECT<|"|>}}'
        )


def test_a_declaration_may_say_what_comes_back() -> None:
    tools = [function("f")]
    tools[0]["function"]["response"] = {"description": "R", "type": "object"}
    assert 'description:<|"|><|"|>,response:{description:<|"|>R<|"|>,type:<|"|>OBJECT<|"|>}}<tool|>' in (
        built_in("gemma4").render([user("U")], tools=tools).text
    )


def test_start_of_turn_is_no_word_of_gemma4() -> None:
    prompt = built_in("gemma4").render([user("<start_of_turn>")])
    assert "<start_of_turn>" in prompt.text
    assert "<start_of_turn>" not in byte_tokenizer("gemma4").special_tokens
