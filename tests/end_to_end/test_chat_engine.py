"""Chats through the engine: thought, content and calls come apart the same way streamed, whole, alone, in company and
in coroutines, and a constraint holds with thinking on, off and unsaid."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import jsonschema
import pytest

from gemwright import LLM, AsyncEngine, SamplingParams
from gemwright.engine.pieces import Piece
from gemwright.engine.request import FinishReason
from gemwright.engine.result import Choice
from gemwright.errors import RequestError, UnsupportedError
from gemwright.text.parser_events import Event, EventType, ParsedOutput
from tests.end_to_end.conftest import TinyLLM

SCHEMA = {
    "type": "object",
    "properties": {
        "open": {"type": "boolean"},
        "hours": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
    },
    "required": ["open", "hours"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look_up", "description": "Looks up.", "parameters": SCHEMA}}
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Is the library open?"}]
# A byte is token 108 + byte. What closes thoughts, calls, brackets and answers is made likely.
ENDS = {**{108 + byte: 6.0 for byte in b"}],"}, 101: 9.0, 49: 6.0, 106: 8.0}
RANDOM: dict[str, Any] = {"temperature": 1.0, "max_tokens": 160, "logit_bias": ENDS, "frequency_penalty": 1.0}
THINKS_AND_CALLS = (
    'start: <|channel> "thought\\nLook it up.\\n" <channel|> "One moment. "'
    ' <|tool_call> "call:look_up{hours:[9,1" "2],open:true}" <tool_call|>'
)


@pytest.fixture(scope="module")
def llm(tiny_llm: TinyLLM) -> LLM:
    return tiny_llm("gemma4-e", max_model_len=640, chat_template="gemma4")


def joined(events: Iterable[Event]) -> tuple[str | None, str | None, list[tuple[str, Any]], str | None]:
    """Return what events say, put together as a client does it."""
    reasoning, content, finish = "", "", None
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    ended: list[int] = []
    for event in events:
        assert finish is None, "nothing comes after the finish"
        match event.type:
            case EventType.REASONING:
                reasoning += event.text or ""
            case EventType.CONTENT:
                content += event.text or ""
            case EventType.TOOL_CALL:
                names[event.index or 0] = event.name or ""
            case EventType.ARGUMENTS:
                arguments[event.index or 0] = arguments.get(event.index or 0, "") + (event.text or "")
            case EventType.TOOL_CALL_END:
                ended.append(event.index or 0)
            case EventType.FINISH:
                finish = event.text
    calls = [(names[index], json.loads(arguments[index])) for index in ended]
    return reasoning or None, content or None, calls, finish


def said(message: ParsedOutput | None) -> Any:
    assert message is not None
    calls = [(call.name, call.arguments) for call in message.tool_calls]
    return message.reasoning_content, message.content, calls, message.finish_reason


def check(choice: Choice) -> ParsedOutput:
    assert choice.message is not None
    assert choice.finish_reason == choice.message.finish_reason
    assert choice.text == (choice.message.content or "")
    return choice.message


def test_a_thought_an_answer_and_a_call_come_apart(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, grammar=THINKS_AND_CALLS)
    completion = llm.chat(MESSAGES, params, tools=[TOOL])
    message = check(completion.choices[0])
    assert message.reasoning_content == "Look it up."
    assert message.content == "One moment. "
    assert [(call.name, call.arguments) for call in message.tool_calls] == [
        ("look_up", {"hours": [9, 12], "open": True})
    ]
    assert completion.finish_reason is FinishReason.TOOL_CALLS
    shown = completion.to_dict()
    assert shown["tool_calls"] == [{"name": "look_up", "arguments": {"hours": [9, 12], "open": True}}]
    assert shown["finish_reason"] == "tool_calls"
    cut = llm.chat(MESSAGES, SamplingParams(temperature=0.0, grammar=THINKS_AND_CALLS, max_tokens=50), tools=[TOOL])
    assert cut.finish_reason is FinishReason.LENGTH
    assert check(cut.choices[0]).tool_calls == ()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("stop", [(), ("e",)])
def test_pieces_join_to_the_whole(llm: LLM, seed: int, stop: tuple[str, ...]) -> None:
    params = SamplingParams(**RANDOM, seed=seed, stop=stop)
    prompt = llm.render_chat(MESSAGES, tools=[TOOL], enable_thinking=bool(seed % 2))
    pieces = list(llm.pieces(prompt, params))
    completion = pieces[-1].completion
    assert completion is not None
    message = check(completion.choices[0])
    assert joined(event for piece in pieces for event in piece.events or ()) == said(message)
    assert "".join(piece.text or "" for piece in pieces) == completion.text
    assert tuple(token for piece in pieces for token in piece.token_ids) == completion.token_ids
    (whole,) = llm.generate(prompt, params)
    assert (whole.token_ids, whole.message) == (completion.token_ids, message)
    assert all(word not in (message.content or "") for word in stop)


def test_coroutines_get_the_same_events_in_company(llm: LLM, tiny_llm: TinyLLM) -> None:
    wanted = [
        (
            llm.render_chat(MESSAGES, tools=[TOOL], enable_thinking=bool(seed % 2)),
            SamplingParams(**RANDOM, seed=seed, n=2),
        )
        for seed in range(3)
    ]
    alone = [llm.generate(prompt, params)[0] for prompt, params in wanted]

    async def ask(engine: AsyncEngine, number: int) -> list[Piece]:
        return [piece async for piece in engine.stream(*wanted[number])]

    async def all_together() -> list[list[Piece]]:
        async with AsyncEngine(tiny_llm("gemma4-e", max_model_len=640, chat_template="gemma4")) as engine:
            return list(await asyncio.gather(*(ask(engine, number) for number in range(3))))

    for pieces, completion in zip(asyncio.run(all_together()), alone, strict=True):
        for index, choice in enumerate(completion.choices):
            own = [piece for piece in pieces if piece.answer_index == index]
            assert joined(event for piece in own for event in piece.events or ()) == said(choice.message)
            assert own[-1].finish_reason == choice.finish_reason


@pytest.mark.parametrize("enable_thinking", [True, False, None])
def test_a_constraint_holds_with_thinking_on_off_and_unsaid(llm: LLM, enable_thinking: bool | None) -> None:
    finished = 0
    for seed in range(6):
        params = SamplingParams(**RANDOM, seed=seed, json_schema=SCHEMA)
        completion = llm.chat(MESSAGES, params, enable_thinking=enable_thinking)
        message = check(completion.choices[0])
        assert not message.tool_calls
        assert enable_thinking or message.reasoning_content is None
        if completion.finish_reason is FinishReason.STOP:
            finished += 1
            jsonschema.validate(json.loads(message.content or ""), SCHEMA)
    assert finished >= 3


@pytest.mark.parametrize("enable_thinking", [True, False, None])
@pytest.mark.parametrize("tool_choice", ["required", {"type": "function", "function": {"name": "look_up"}}])
def test_a_required_call_comes_with_thinking_on_off_and_unsaid(
    llm: LLM, tool_choice: Any, enable_thinking: bool | None
) -> None:
    other = {"type": "function", "function": {"name": "other"}}
    finished = 0
    for seed in range(4):
        completion = llm.chat(
            MESSAGES,
            SamplingParams(**RANDOM, seed=seed),
            tools=[TOOL, other],
            tool_choice=tool_choice,
            parallel_tool_calls=False,
            enable_thinking=enable_thinking,
        )
        message = check(completion.choices[0])
        assert message.content is None
        if completion.finish_reason is FinishReason.TOOL_CALLS:
            finished += 1
            (call,) = message.tool_calls
            if call.name == "look_up":
                jsonschema.validate(call.arguments, SCHEMA)
            else:
                assert tool_choice == "required"
    assert finished >= 2


def test_what_was_answered_is_history_and_is_not_read_again(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, grammar='start: "The library closes at nine on weekdays."')
    first = llm.chat(MESSAGES, params)
    message = first.message
    assert message is not None
    history = [*MESSAGES, {"role": "assistant", "content": message.content}, {"role": "user", "content": "And today?"}]
    second = llm.chat(history, params)
    known = len(first.prompt_token_ids) + len(first.token_ids)
    assert second.prompt_token_ids[:known] == (*first.prompt_token_ids, *first.token_ids)
    assert second.usage.cached_tokens >= known - 16


def test_stop_strings_count_in_the_content_alone(llm: LLM) -> None:
    grammar = 'start: <|channel> "thought\\nno end in sight\\n" <channel|> "It ends here, at the end."'
    completion = llm.chat(MESSAGES, SamplingParams(temperature=0.0, grammar=grammar, stop=("end",)))
    message = check(completion.choices[0])
    assert message.reasoning_content == "no end in sight"
    assert message.content == "It "
    late = llm.chat(MESSAGES, SamplingParams(temperature=0.0, grammar=grammar, stop=("end",), min_tokens=42))
    assert check(late.choices[0]).content == "It ends here, at the "


def test_a_chat_that_cannot_be_is_refused_by_name(llm: LLM, tiny_llm: TinyLLM) -> None:
    with pytest.raises(UnsupportedError, match="image in a message"):
        llm.chat([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}])
    with pytest.raises(RequestError, match=r"messages\[0\].role"):
        llm.chat([{"role": "wizard", "content": "Hi"}])
    with pytest.raises(RequestError):
        llm.chat(MESSAGES, SamplingParams(json_schema=SCHEMA), tools=[TOOL], tool_choice="required")
    with pytest.raises(RequestError, match="tool_choice"):
        llm.chat(MESSAGES, tools=[TOOL], tool_choice="nobody")
    with pytest.raises(UnsupportedError, match="base model"):
        tiny_llm("gemma4-e").chat(MESSAGES)
    assert not llm.core._answers


def test_tool_choice_none_leaves_the_tools_out(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=1)
    plain = llm.chat(MESSAGES, params)
    without = llm.chat(MESSAGES, params, tools=[TOOL], tool_choice="none")
    with_tools = llm.chat(MESSAGES, params, tools=[TOOL])
    assert without.prompt_token_ids == plain.prompt_token_ids
    assert len(with_tools.prompt_token_ids) > len(plain.prompt_token_ids)
