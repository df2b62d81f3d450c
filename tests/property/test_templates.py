"""Chats drawn at random: only RequestErrors, and what the output machine read renders back to what the model saw."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemwright.errors import RequestError
from gemwright.text.parser import OutputParser, TokenReader
from gemwright.text.parser_events import ParsedOutput
from gemwright.text.template import BUILT_IN, RenderedPrompt
from gemwright.text.tool_syntax import format_call
from tests.chat_templates import (
    ARGUMENTS,
    CONTROL_WORDS,
    JSON,
    KEYS,
    NAMES,
    NUMBERS,
    SAID,
    assistant,
    built_in,
    byte_tokenizer,
    conversations,
    through_jinja,
    tools_lists,
    user,
)

MAKERS = (built_in, through_jinja)

# JSON that comes near to what a request holds.
_WORDS = st.sampled_from(
    (
        *("role", "content", "type", "text", "tool_calls", "function", "name", "arguments", "parameters", "properties"),
        *("items", "required", "enum", "anyOf", "allOf", "$ref", "$defs", "description", "tool_call_id", "id", "f"),
        *("nullable", "user", "assistant", "tool", "system", "image", "object", "string", "array", "reasoning", "#"),
        "#/$defs/type",
    )
)
_NEAR = st.recursive(
    st.none() | st.booleans() | NUMBERS | _WORDS | SAID,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=5),
    max_leaves=16,
)
_ROLES = st.sampled_from(["system", "user", "assistant", "tool", "developer", "model"])
_MESSAGES = JSON | st.lists(
    _NEAR
    | st.fixed_dictionaries(
        {"role": _ROLES, "content": SAID | _NEAR},
        optional={"tool_calls": _NEAR, "name": _NEAR, "tool_call_id": _NEAR, "reasoning": _NEAR},
    ),
    max_size=5,
)
_TOOLS = JSON | st.none() | st.lists(st.fixed_dictionaries({"name": NAMES, "parameters": _NEAR}, optional={"x": _NEAR}))


@pytest.mark.parametrize("name", BUILT_IN)
@given(
    messages=_MESSAGES,
    tools=_TOOLS,
    kwargs=JSON | st.none(),
    continues=st.booleans(),
    thinking=st.none() | st.booleans(),
)
@settings(max_examples=200)
def test_any_json_is_rendered_or_refused(
    name: str, messages: Any, tools: Any, kwargs: Any, continues: bool, thinking: bool | None
) -> None:
    for make in MAKERS:
        try:
            prompt = make(name).render(
                messages,
                tools=tools,
                enable_thinking=thinking,
                continue_final_message=continues,
                template_kwargs=kwargs,
            )
        except RequestError:
            continue
        assert isinstance(prompt, RenderedPrompt)
        assert prompt.token_ids[0] == 2
        assert prompt.token_ids.count(2) == 1


@pytest.mark.parametrize("name", ["gemma4", pytest.param("gemma4-large", marks=pytest.mark.slow)])
@given(messages=conversations(), tools=tools_lists(), thinking=st.booleans())
@settings(max_examples=100)
def test_ids_spell_the_text_and_control_tokens_come_from_the_template_alone(
    name: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]], thinking: bool
) -> None:
    tokenizer = byte_tokenizer("gemma4")
    silent = json.loads(json.dumps([messages, tools]).replace("<", "("))
    for make in MAKERS:
        prompt = make(name).render(messages, tools=tools, enable_thinking=thinking)
        # The vocabulary spells a space as U+2581, so that character comes back as one.
        assert tokenizer.decode(prompt.token_ids, skip_special=False) == prompt.text.replace("\u2581", " ")
        quiet = make(name).render(silent[0], tools=silent[1], enable_thinking=thinking)
        said_thoughts = any("<|channel>" in json.dumps(message) for message in messages)
        if not said_thoughts:
            assert controls(prompt) == controls(quiet)


def controls(prompt: RenderedPrompt) -> list[int]:
    return [token_id for token_id in prompt.token_ids if byte_tokenizer("gemma4").is_special(token_id)]


PLAIN = st.lists(st.sampled_from(["Hello", " ", "\n", "{", "}", ",", ":", '"', "é", "你", "thought\n", "call:f{"])).map(
    "".join
)
PLAIN_VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("name", ["gemma4", pytest.param("gemma4-large", marks=pytest.mark.slow)])
@given(
    history=conversations(),
    thought=st.none() | PLAIN.map(lambda text: f"T{text}"),
    calls=st.lists(st.tuples(NAMES, st.dictionaries(KEYS, PLAIN_VALUES, max_size=3)), max_size=3),
    content=PLAIN.map(lambda text: f"A{text}".strip()),
    thinks=st.booleans(),
)
@settings(max_examples=100)
def test_an_answer_put_back_is_what_the_model_wrote(
    name: str,
    history: list[dict[str, Any]],
    thought: str | None,
    calls: list[tuple[str, dict[str, Any]]],
    content: str,
    thinks: bool,
) -> None:
    """A client that sends answers back as it got them asks for the very tokens that are cached."""
    thinks = thinks or name == "gemma4-large"  # else its prompt holds an empty thought, which histories do not
    history = [*history, user("And now?")]
    tokenizer = byte_tokenizer("gemma4")
    prompt = built_in(name).render(history, enable_thinking=thinks)
    written = "" if thought is None else f"<|channel>thought\n{thought}\n<channel|>"
    written += "".join(format_call(*call) for call in calls)
    written += "<|tool_response>" if calls else f"{content}<turn|>"
    token_ids = tokenizer.encode(written)
    output = read(prompt, token_ids)
    assert output.reasoning_content == thought
    assert output.content == (None if calls else content)
    assert [(call.name, call.arguments) for call in output.tool_calls] == calls
    put_back = built_in(name).render(
        [*history, as_message(output)], enable_thinking=thinks, add_generation_prompt=False
    )
    newline = () if calls else (107,)
    assert put_back.token_ids == (*prompt.token_ids, *token_ids, *newline)


@given(
    thought=PLAIN.map(lambda text: f"T{text}"),
    call=st.tuples(NAMES, st.dictionaries(KEYS, PLAIN_VALUES, max_size=3)),
    result=PLAIN,
)
@settings(max_examples=50)
def test_a_thought_that_the_prompt_opened_is_put_back_too(
    thought: str, call: tuple[str, dict[str, Any]], result: str
) -> None:
    history = [
        user("U"),
        assistant(None, ("c1", *call), thought=thought),
        {"role": "tool", "tool_call_id": "c1", "content": result},
    ]
    prompt = built_in("gemma4").render(history, enable_thinking=True)
    assert prompt.opens_thought
    token_ids = byte_tokenizer("gemma4").encode(f"{thought}\n<channel|>Done.<turn|>")
    output = read(prompt, token_ids)
    assert (output.reasoning_content, output.content) == (thought, "Done.")
    put_back = built_in("gemma4").render(
        [*history, as_message(output)], enable_thinking=True, add_generation_prompt=False
    )
    assert put_back.token_ids == (*prompt.token_ids, *token_ids, 107)


@given(arguments=ARGUMENTS, name=NAMES)
@settings(max_examples=200)
def test_arguments_come_back_from_a_rendered_call(arguments: dict[str, Any], name: str) -> None:
    # A string mark cannot be written inside a string: what reads the prompt back takes it for the end of it.
    arguments = json.loads(json.dumps(arguments).replace(r"<|\"|>", "mark"))
    for make in MAKERS:
        prompt = make("gemma4").render([user("U"), assistant("", ("1", name, arguments))])
        begin = prompt.token_ids.index(48)
        parser = OutputParser("gemma4")
        reader = TokenReader(byte_tokenizer("gemma4"), parser)
        reader.push(prompt.token_ids[begin:])
        reader.finish("stop")
        (call,) = parser.output.tool_calls
        assert (call.name, call.arguments) == (name, arguments)


def read(prompt: RenderedPrompt, token_ids: list[int]) -> ParsedOutput:
    parser = OutputParser(prompt.dialect, tools=prompt.tools, opens_thought=prompt.opens_thought)
    reader = TokenReader(byte_tokenizer("gemma4"), parser)
    reader.push(token_ids)
    reader.finish("stop")
    return parser.output


def as_message(output: ParsedOutput) -> dict[str, Any]:
    """Return an answer as a client of the OpenAI interface sends it back."""
    calls = [(f"id{place}", call.name, call.arguments_json) for place, call in enumerate(output.tool_calls)]
    return assistant(output.content, *calls, thought=output.reasoning_content)


def test_words_of_all_families_are_drawn() -> None:
    assert {"<|turn>", "<start_of_turn>", '<|"|>', "<bos>", "<|image|>"} <= set(CONTROL_WORDS)
